"""Does what was forgotten come back while the others train on? The rebound curve and its half-life."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_FORGOTTEN = 0.01
"""A value in [0, 1] that fell by less than this was not forgotten: its recovered share would be noise."""


@dataclass(frozen=True)
class Curve:
    """A value in [0, 1] of the records of one deletion request, larger where the model knows them better.

    before, after: right before and right after its unlearning; later: at the end of the round that served it, which
    includes that round's fine-tuning of other clients (position 0), and of every following round.
    """

    request: str
    round: int
    before: float
    after: float
    later: Sequence[float]

    @property
    def forgotten(self) -> float:
        """before − after."""
        return self.before - self.after

    @property
    def shares(self) -> np.ndarray | None:
        """(later − after) / (before − after): 0, nothing is back; 1, all of it. None where nothing was forgotten."""
        if self.forgotten < LEAST_FORGOTTEN:
            return None
        return (np.asarray(self.later, np.float64) - self.after) / self.forgotten

    @property
    def half_life(self) -> float | None:
        """Fewest rounds after the serving one by which at least half of what was forgotten is back.

        0: the fine-tuning in the serving round sufficed. Infinite where that did not happen within the measured rounds
        (censored), None where nothing was forgotten.
        """
        shares = self.shares
        if shares is None:
            return None
        back = np.flatnonzero(shares >= 0.5)
        return float(back[0]) if back.size else math.inf


def rebound_metrics(curves: Sequence[Curve]) -> dict[str, float]:
    """Metrics over the requests that forgot something; those that are not finite or have no request are left out.

    requests: how many forgot something; forgotten: mean of before − after; share_back_at_end: mean recovered share
    at the last measured round; censored_share: share of the requests of which less than half came back;
    half_life_median: (lower) median half-life, in rounds, left out where most are censored.
    """
    known = [c for c in curves if c.shares is not None and len(c.later)]
    if not known:
        return {"requests": 0.0} if curves else {}
    lives = np.array([c.half_life for c in known], np.float64)
    found = {
        "requests": float(len(known)),
        "forgotten": float(np.mean([c.forgotten for c in known])),
        "share_back_at_end": float(np.mean([c.shares[-1] for c in known if c.shares is not None])),
        "censored_share": float(np.isinf(lives).mean()),
    }
    median = float(np.sort(lives)[(len(lives) - 1) // 2])
    return found | ({"half_life_median": median} if math.isfinite(median) else {})


def mean_shares(curves: Sequence[Curve]) -> np.ndarray:
    """Mean recovered share by rounds since the serving one, over the requests that were measured for so long.

    (R,), R being the length of the longest curve; fewer requests reach the later positions.
    """
    shares = [s for c in curves if (s := c.shares) is not None]
    length = max((len(s) for s in shares), default=0)
    return np.array([np.mean([s[i] for s in shares if len(s) > i]) for i in range(length)])
