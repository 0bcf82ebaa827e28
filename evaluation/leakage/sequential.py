"""Confidence sequences for the mean leakage by betting: valid at every sample size, so that sampling may stop early.

Hedged capital process with predictable plug-in bets (Waudby-Smith & Ramdas 2023, "Estimating means of bounded random
variables by betting", Theorem 3). For each candidate mean m a gambler who bets that the mean is larger, and one who
bets that it is smaller, each start with capital 1; if m is the mean, either reaches 2 / alpha with probability at most
alpha / 2, ever. The first one's capital falls in m, the second one's grows, so the candidates left are an interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from evaluation.leakage.bounds import as_samples, check_alpha

TRUNCATION = 0.75
"""Largest share of the capital that a bet may lose: 1/2 or 3/4 in the paper; 3/4 certifies rare leakage sooner."""

BLOCK = 128


def _one_question(samples: ArrayLike) -> np.ndarray:
    """The samples of one question, checked."""
    values = as_samples(samples)
    if values.ndim != 1:
        raise ValueError(f"samples must be (n,), got shape {values.shape}")
    return values


class _Gamblers:
    """Both gamblers' capital for G candidate means (increasing, in [0, 1]) after the samples seen so far."""

    def __init__(self, candidates: np.ndarray, alpha: float) -> None:
        self.candidates = candidates
        self.goal = math.log(2 / alpha)
        with np.errstate(divide="ignore"):
            self._largest = TRUNCATION / np.stack([candidates, 1 - candidates])
        self._capital = np.zeros_like(self._largest)
        self._sum, self._squares = 0.0, 0.0
        self.seen = 0
        self.lower, self.upper = 0.0, 1.0

    def _bets(self, values: np.ndarray) -> np.ndarray:
        """The bet (k,) on each value, from the values before it: larger where those varied less."""
        time = self.seen + np.arange(1, len(values) + 1)
        sums = np.cumsum(np.append(self._sum, values))
        deviations = (values - (0.5 + sums[1:]) / (time + 1)) ** 2
        squares = np.cumsum(np.append(self._squares, deviations))
        self._sum, self._squares = float(sums[-1]), float(squares[-1])
        return np.sqrt(2 * self.goal / ((0.25 + squares[:-1]) * np.log(time + 1)))

    def play(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The limits (k,), (k,) after each of k further values."""
        bets = self._bets(values)[:, None]
        gains = values[:, None] - self.candidates
        beaten = []
        for side, sign in enumerate((1, -1)):
            growth = np.log1p(sign * np.minimum(bets, self._largest[side]) * gains)
            capital = np.cumsum(np.concatenate([self._capital[side][None], growth]), axis=0)
            self._capital[side] = capital[-1]
            beaten.append(capital[1:] >= self.goal)
        lower = np.where(beaten[0], self.candidates, 0).max(1)
        upper = np.where(beaten[1], self.candidates, 1).min(1)
        lower = np.maximum.accumulate(np.maximum(lower, self.lower))
        upper = np.minimum.accumulate(np.minimum(upper, self.upper))
        self.seen += len(values)
        self.lower, self.upper = float(lower[-1]), float(upper[-1])
        return lower, upper


def _candidates(grid: int) -> np.ndarray:
    """Candidate means, `grid` + 1 in [0, 1]."""
    if grid < 1:
        raise ValueError(f"the grid must have at least 1 step, got {grid}")
    return np.linspace(0, 1, grid + 1)


def confidence_sequence(samples: ArrayLike, alpha: float, grid: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Confidence sequence for E[X]: with probability 1 − alpha it lies between the limits at every n at once.

    Intervals only shrink; limits that cross refute a common mean, which happens to samples of one distribution with
    probability at most alpha.

    Parameters
    ----------
    samples : array (n,) in [0, 1]
        Independent, in the order of sampling.
    alpha : float in (0, 1/2]
    grid : int, at least 1
        Limits are rounded outwards to multiples of 1 / grid.

    Returns
    -------
    lower, upper : array (n,), in [0, 1]

    Raises
    ------
    ValueError
        As in `evaluation.leakage.bounds`, and for a grid below 1.
    """
    check_alpha(alpha)
    values = _one_question(samples)
    gamblers = _Gamblers(_candidates(grid), alpha)
    limits = [gamblers.play(values[start : start + BLOCK]) for start in range(0, len(values), BLOCK)]
    lower, upper = zip(*limits, strict=True)
    return np.concatenate(lower), np.concatenate(upper)


@dataclass(frozen=True)
class Decision:
    """State of a `SequentialTest`.

    Attributes
    ----------
    verdict : {"below", "above", "undecided"}
        "below": E[X] < threshold is certified; "above": E[X] > threshold is shown.
    samples : int
        How many were needed for the verdict, or seen so far.
    saved : int
        reference − samples, negative beyond the reference.
    lower, upper : float in [0, 1]
        Limits on E[X] after that many samples.
    """

    verdict: Literal["below", "above", "undecided"]
    samples: int
    saved: int
    lower: float
    upper: float


class SequentialTest:
    """Sequential test of whether E[X] is below or above a threshold; sampling may stop or go on at any time.

    A wrong verdict is ever reached with probability at most alpha.

    Parameters
    ----------
    threshold : float in (0, 1)
    alpha : float in (0, 1/2]
    reference : int, at least 1
        The fixed number of samples to compare with.
    grid : int, at least 1
        As in `confidence_sequence`.

    Raises
    ------
    ValueError
        For arguments out of range.
    """

    def __init__(self, threshold: float, alpha: float, reference: int = 1024, grid: int = 1000) -> None:
        check_alpha(alpha)
        if not 0 < threshold < 1:
            raise ValueError(f"threshold must lie in (0, 1), got {threshold}")
        if reference < 1:
            raise ValueError(f"reference must be at least 1, got {reference}")
        self.threshold, self.reference = float(threshold), reference
        self._gamblers = _Gamblers(np.union1d(_candidates(grid), self.threshold), alpha)
        self.decision = Decision("undecided", 0, reference, 0.0, 1.0)

    def update(self, values: ArrayLike) -> Decision:
        """Take further samples; a verdict, once reached, stays.

        The result does not depend on how the samples are divided among calls.

        Parameters
        ----------
        values : array (k,), k >= 1, in [0, 1]

        Returns
        -------
        Decision

        Raises
        ------
        ValueError
            As `confidence_sequence`.
        """
        further = _one_question(values)
        for start in range(0, len(further), BLOCK):
            if self.decision.verdict != "undecided":
                break
            self._play(further[start : start + BLOCK])
        return self.decision

    def _play(self, values: np.ndarray) -> None:
        """Take one block of samples."""
        before = self._gamblers.seen
        lower, upper = self._gamblers.play(values)
        above, below = lower >= self.threshold, upper <= self.threshold
        reached = np.flatnonzero(above | below)
        last = int(reached[0]) if reached.size else len(values) - 1
        samples = before + last + 1
        self.decision = Decision(
            "above" if above[last] else "below" if below[last] else "undecided",
            samples,
            self.reference - samples,
            float(lower[last]),
            float(upper[last]),
        )
