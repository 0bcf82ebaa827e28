"""FedAvg: the weighted mean."""

from __future__ import annotations

from collections.abc import Mapping

from strategies.rules.server_step import Floats, ServerStep

LABEL = "FedAvg"


class FedAvg(ServerStep):
    """FedAvg: φ_t = Σ α_k φ_k with α_k = n_k / Σ n_j (Oblivionis eq. 19); settings as `ServerStep`."""

    def step(
        self, previous: Floats, mean: Floats, moments: Mapping[str, Floats] | None
    ) -> tuple[Floats, dict[str, Floats]]:
        """The mean itself is the new model; no accumulators."""
        return mean, {}
