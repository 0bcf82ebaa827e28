"""P-values of Wilcoxon's signed-rank test, from the distribution of its statistic wherever that is small enough."""

from __future__ import annotations

import functools
import math

import numpy as np

MOST, MOST_UNEVEN = 50, 13
"""So many differences are tested exactly; so many where some are tied or 0."""


def p_values(differences: np.ndarray) -> tuple[float, float]:
    """P-values of the one-sided tests that differences lie below, above 0; twice the smaller one is the two-sided.

    Differences of 0 are left out, tied ones share their mean rank. The numbers are those of scipy's `wilcoxon`: exact
    for few differences, by the normal distribution without a correction for more.

    Parameters
    ----------
    differences : array (n,)
        Finite, not all of them 0.

    Returns
    -------
    below, above : float
    """
    sizes = np.abs(differences)
    ordered = np.sort(sizes[sizes > 0])
    twice = ordered.searchsorted(ordered, "left") + ordered.searchsorted(ordered, "right") + 1
    total, positive = int(twice.sum()), int(twice[ordered.searchsorted(differences[differences > 0])].sum())
    uneven = len(ordered) < len(sizes) or bool((ordered[1:] == ordered[:-1]).any())
    if len(differences) <= (MOST_UNEVEN if uneven else MOST):
        at_most = _at_most(tuple(twice.tolist()))
        return float(at_most[positive]), float(at_most[total - positive])
    from scipy.special import ndtr  # a client's process starts without scipy

    z = (2 * positive - total) / math.sqrt(int((twice**2).sum()))
    return float(ndtr(z)), float(ndtr(-z))


@functools.lru_cache(maxsize=256)
def _at_most(ranks: tuple[int, ...]) -> np.ndarray:
    """Probability that the sum of `ranks`, each of them taken by a fair coin, is at most 0, 1, ..., sum of all."""
    chances = np.ones(1)
    for rank in ranks:
        apart = np.zeros(rank)
        chances = (np.concatenate([chances, apart]) + np.concatenate([apart, chances])) / 2
    return np.cumsum(chances)
