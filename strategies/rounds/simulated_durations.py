"""How long simulated clients take: heavy-tailed times by client and round, the same on every run."""

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
    """Seconds that a client takes to answer one message, on a clock that is simulated.

    `median`: of all clients and rounds, in seconds. `spread`: how heavy the tail is: of `lognormal` the deviation σ of
    the logarithm, T = median · exp(σ z); of `pareto` the inverse ξ of the tail's exponent, P(T > t) ∝ t^(−1/ξ),
    T = median · (2 Φ(−z))^(−ξ). 0: all take equally long. `persistence` ρ: z = √ρ z_k + √(1 − ρ) z_kt is standard
    normal, z_k the client's own in all rounds and stages, z_kt drawn anew for each message.

    Raises ValueError for values out of range.
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
        """Of the answer of `client` to a message of type `kind` in a round of a stage."""
        own = self._draw("client", client)
        z = math.sqrt(self.persistence) * own
        z += math.sqrt(1 - self.persistence) * self._draw(stage, kind, client, server_round)
        if self.distribution == "lognormal":
            return self.median * math.exp(self.spread * z)
        return self.median * (2 * _STANDARD.cdf(-z)) ** -self.spread

    def _draw(self, *labels: object) -> float:
        """A standard normal number that the labels decide."""
        uniform = random.Random("/".join(map(str, (self.seed, "seconds", *labels)))).random()
        return _STANDARD.inv_cdf(uniform + _LEAST)
