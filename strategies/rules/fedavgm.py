"""FedAvgM: FedAvg with server momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strategies.rules.server_step import Floats, ServerStep

LABEL = "FedAvgM"
LIMITS = {
    "server_learning_rate": {"help": "Server step (1.0: eq. 22 as it stands).", "above": 0},
    "server_momentum": {"help": "Momentum β1 of the server's updates.", "at_least": 0, "below": 1},
}


class FedAvgM(ServerStep):
    """FedAvgM: m_0 = Δ_0, m_t = β1 m_{t-1} + Δ_t; φ_t = φ_{t-1} + η m_t (Oblivionis eqs. 20–22, where η = 1).

    Parameters
    ----------
    server_learning_rate : float above 0
        Server learning rate η.
    server_momentum : float in [0, 1)
        Momentum β1.
    **sampling
        Settings of `ServerStep`.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    moments = ("m",)
    settings = ("server_learning_rate", "server_momentum")

    def __init__(self, server_learning_rate: float = 1.0, server_momentum: float = 0.9, **sampling: Any) -> None:
        super().__init__(**sampling)
        if not (server_learning_rate > 0 and 0 <= server_momentum < 1):
            raise ValueError(
                f"expected server_learning_rate > 0 and 0 <= server_momentum < 1, "
                f"got {server_learning_rate} and {server_momentum}"
            )
        self.server_learning_rate = server_learning_rate
        self.server_momentum = server_momentum

    def step(
        self, previous: Floats, mean: Floats, moments: Mapping[str, Floats] | None
    ) -> tuple[Floats, dict[str, Floats]]:
        """Step along the momentum of Δ_t = mean − previous; see `ServerStep.step`."""
        delta = mean - previous
        m = delta if moments is None else self.server_momentum * moments["m"] + delta
        return previous + self.server_learning_rate * m, {"m": m}
