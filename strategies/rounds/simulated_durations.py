"""Simulated response times of clients: heavy-tailed by client and round, the same on every run."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

_STANDARD = NormalDist()
_LEAST = 2.0**-54
"""Added to `random()`, whose values are multiples of 2⁻⁵³ with 0, of which there is no quantile."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Response times of clients on a simulated clock.

    z = √ρ z_k + √(1 − ρ) z_kt is standard normal: z_k is the client's own in all rounds and stages, z_kt new for each
    message.

    Attributes
    ----------
    distribution : {"lognormal", "pareto"}
        T = median · exp(σ z), or T = median · (2 Φ(−z))^(−ξ), for which P(T > t) ∝ t^(−1/ξ).
    median : float above 0
        Median over all clients and rounds, in seconds.
    spread : float, at least 0
        σ or ξ, the weight of the tail; 0: all take equally long.
    persistence : float in [0, 1]
        ρ, the share of the variance that is the client's own.
    seed : int

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    distribution: Literal["lognormal", "pareto"]
    median: float
    spread: float
    persistence: float
    seed: int = 0

    def __post_init__(self) -> None:
        if self.distribution not in ("lognormal", "pareto"):
            raise ValueError(f"distribution is {self.distribution!r}, expected 'lognormal' or 'pareto'")
        if not (0 < self.median < math.inf and 0 <= self.spread < math.inf and 0 <= self.persistence <= 1):
            raise ValueError(
                f"expected median > 0, spread >= 0 and 0 <= persistence <= 1, got {self.median}, {self.spread} and "
                f"{self.persistence}"
            )

    def seconds(self, stage: str, kind: str, client: int, server_round: int) -> float:
        """Seconds that `client` takes to answer a message of type `kind` in a round of a stage."""
        own = self._draw("client", client)
        z = math.sqrt(self.persistence) * own
        z += math.sqrt(1 - self.persistence) * self._draw(stage, kind, client, server_round)
        if self.distribution == "lognormal":
            return self.median * math.exp(self.spread * z)
        return self.median * (2 * _STANDARD.cdf(-z)) ** -self.spread

    def _draw(self, *labels: object) -> float:
        """A standard normal number that the labels determine."""
        uniform = random.Random("/".join(map(str, (self.seed, "seconds", *labels)))).random()
        return _STANDARD.inv_cdf(uniform + _LEAST)
