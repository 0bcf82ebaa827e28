"""FedYogi: FedAdam whose second moment moves by small steps only."""

from __future__ import annotations

import numpy as np

from strategies.rules.fedadam import FedAdam
from strategies.rules.server_step import Floats

LABEL = "FedYogi"
LIMITS = {
    "eta": {"help": "Server step (epsilon in eq. 33).", "above": 0},
    "beta_1": {"help": "Decay of the server's first moment.", "at_least": 0, "below": 1},
    "beta_2": {"help": "Decay of the server's second moment.", "at_least": 0, "below": 1},
    "tau": {"help": "Adaptivity: added to the root of the second moment, which starts at tau².", "above": 0},
}


class FedYogi(FedAdam):
    """FedYogi: FedAdam with v_t = v_{t-1} − (1−β2) Δ_t² sign(v_{t-1} − Δ_t²) (Oblivionis eqs. 30–33).

    Parameters, errors and the start value of v as `FedAdam`.
    """

    def second_moment(self, v: Floats | float, squared: Floats) -> Floats:
        """Second moment v_t after one more update (Oblivionis eq. 32); shapes as `FedAdam.second_moment`."""
        return v - (1 - self.beta_2) * squared * np.sign(v - squared)
