"""Relearning after unlearning: how much of what was forgotten comes back while other clients train, and how soon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_FORGOTTEN = 0.01
"""A value in [0, 1] that fell by less than this was not forgotten: its recovered share would be noise."""


@dataclass(frozen=True)
class Curve:
    """A memorisation measure in [0, 1] of the records of one request over the rounds; larger: better known.

    Attributes
    ----------
    request : str
    round : int
        The round that served it.
    before, after : float
        Right before and right after the unlearning.
    later : sequence of float
        At the end of the serving round, which includes other clients' fine-tuning in it (position 0), and of every
        following round.
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
        """Recovered share (later − after) / (before − after) by round: 0, nothing is back; 1, all of it.

        Returns
        -------
        array (R,) or None
            None where less than `LEAST_FORGOTTEN` was forgotten.
        """
        if self.forgotten < LEAST_FORGOTTEN:
            return None
        return (np.asarray(self.later, np.float64) - self.after) / self.forgotten

    @property
    def half_life(self) -> float | None:
        """Rounds after the serving one until at least half of what was forgotten is back.

        Returns
        -------
        float or None
            0: in the serving round already; infinite if it never happened in the measured rounds (censored); None where
            nothing was forgotten.
        """
        shares = self.shares
        if shares is None:
            return None
        back = np.flatnonzero(shares >= 0.5)
        return float(back[0]) if back.size else math.inf


def rebound_metrics(curves: Sequence[Curve]) -> dict[str, float]:
    """Summary of the curves of requests that forgot something.

    Parameters
    ----------
    curves : sequence of Curve

    Returns
    -------
    dict of float
        requests: how many forgot something; forgotten: mean of before − after; share_back_at_end: mean recovered share
        at the last measured round; censored_share: share of the requests of which less than half came back;
        half_life_median: (lower) median half-life in rounds, left out where most are censored. Empty without curves;
        `requests` alone, 0, where nothing was forgotten.
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
    """Mean recovered share by rounds since the serving one.

    Parameters
    ----------
    curves : sequence of Curve

    Returns
    -------
    array (R,)
        R is the length of the longest curve; each position averages the requests that were measured for so long.
    """
    shares = [s for c in curves if (s := c.shares) is not None]
    length = max((len(s) for s in shares), default=0)
    return np.array([np.mean([s[i] for s in shares if len(s) > i]) for i in range(length)])
