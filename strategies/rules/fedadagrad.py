"""FedAdagrad: an adaptive server step with a growing second moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from strategies.rules.adaptive_checks import check_adaptive
from strategies.rules.server_step import Floats, ServerStep

LABEL = "FedAdagrad"
LIMITS = {
    "eta": {"help": "Server step (epsilon in eq. 25).", "above": 0},
    "tau": {"help": "Adaptivity: added to the root of the second moment, which starts at tau².", "above": 0},
}


class FedAdagrad(ServerStep):
    """FedAdagrad: v_t = v_{t-1} + Δ_t²; φ_t = φ_{t-1} + ε Δ_t / (√v_t + τ) (Oblivionis eqs. 23–25); v starts at τ².

    Parameters
    ----------
    eta : float above 0
        Server learning rate ε.
    tau : float above 0
        Adaptivity τ.
    **sampling
        Settings of `ServerStep`.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    moments = ("v",)
    settings = ("eta", "tau")

    def __init__(self, eta: float = 1e-3, tau: float = 1e-3, **sampling: Any) -> None:
        super().__init__(**sampling)
        check_adaptive(eta, tau)
        self.eta, self.tau = eta, tau

    def step(
        self, previous: Floats, mean: Floats, moments: Mapping[str, Floats] | None
    ) -> tuple[Floats, dict[str, Floats]]:
        """Step along Δ_t = mean − previous, scaled down where earlier Δ were large; see `ServerStep.step`."""
        delta = mean - previous
        v = (self.tau**2 if moments is None else moments["v"]) + delta**2
        return previous + self.eta * delta / (np.sqrt(v) + self.tau), {"v": v}
