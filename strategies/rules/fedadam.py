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
    """FedAdam: m_t = β1 m_{t-1} + (1−β1) Δ_t; v_t = β2 v_{t-1} + (1−β2) Δ_t²; φ_t = φ_{t-1} + ε m_t / (√v_t + τ).

    Oblivionis eqs. 26–29, with m_0 = Δ_0 and v starting at τ². There is no bias correction, unlike in Flower's FedAdam.

    Parameters
    ----------
    eta : float above 0
        Server learning rate ε.
    beta_1, beta_2 : float in [0, 1)
        Decays β1, β2 of the first and the second moment.
    tau : float above 0
        Adaptivity τ.
    **sampling
        Settings of `ServerStep`.

    Raises
    ------
    ValueError
        If a setting is out of range.
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
        """Step along the first moment of Δ_t = mean − previous, over the root of the second; see `ServerStep.step`."""
        delta = mean - previous
        m = delta if moments is None else self.beta_1 * moments["m"] + (1 - self.beta_1) * delta
        v = self.second_moment(self.tau**2 if moments is None else moments["v"], delta**2)
        return previous + self.eta * m / (np.sqrt(v) + self.tau), {"m": m, "v": v}

    def second_moment(self, v: Floats | float, squared: Floats) -> Floats:
        """Second moment v_t after one more update (Oblivionis eq. 28).

        Parameters
        ----------
        v : array (n,) or float, at least 0
            v_{t-1}; τ² before the first aggregation.
        squared : array (n,)
            Δ_t².

        Returns
        -------
        array (n,), float64
        """
        return self.beta_2 * v + (1 - self.beta_2) * squared
