"""FedAdam: an adaptive server step with two decaying moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from strategies.rules.adaptive_checks import check_adaptive
from strategies.rules.server_step import Floats, ServerStep

LABEL = "FedAdam"
LIMITS = {
    "eta": {"help": "Server step (epsilon in eq. 29).", "above": 0},
    "beta_1": {"help": "Decay of the server's first moment.", "at_least": 0, "below": 1},
    "beta_2": {"help": "Decay of the server's second moment.", "at_least": 0, "below": 1},
    "tau": {"help": "Adaptivity: added to the root of the second moment, which starts at tau².", "above": 0},
}


class FedAdam(ServerStep):
    """m_0 = Δ_0, m_t = β1 m_{t-1} + (1−β1) Δ_t; v_t = β2 v_{t-1} + (1−β2) Δ_t²; φ_t = φ_{t-1} + ε m_t / (√v_t + τ).

    Oblivionis eqs. 26–29. v starts at τ²; ε is `eta`. There is no bias correction, unlike in Flower's FedAdam.
    """

    moments = ("m", "v")
    settings = ("eta", "beta_1", "beta_2", "tau")

    def __init__(
        self, eta: float = 1e-3, beta_1: float = 0.9, beta_2: float = 0.99, tau: float = 1e-3, **sampling: Any
    ) -> None:
        super().__init__(**sampling)
        check_adaptive(eta, tau, beta_1, beta_2)
        self.eta, self.beta_1, self.beta_2, self.tau = eta, beta_1, beta_2, tau

    def step(
        self, previous: Floats, mean: Floats, moments: Mapping[str, Floats] | None
    ) -> tuple[Floats, dict[str, Floats]]:
        """A step along the first moment of Δ_t = mean − previous, scaled by the root of the second."""
        delta = mean - previous
        m = delta if moments is None else self.beta_1 * moments["m"] + (1 - self.beta_1) * delta
        v = self.second_moment(self.tau**2 if moments is None else moments["v"], delta**2)
        return previous + self.eta * m / (np.sqrt(v) + self.tau), {"m": m, "v": v}

    def second_moment(self, v: Floats | float, squared: Floats) -> Floats:
        """v_t from v_{t-1} and Δ_t² (n,), eq. 28."""
        return self.beta_2 * v + (1 - self.beta_2) * squared
