"""Significance of a mean percentile rank against 0.5."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluation.ruler.statistics import signed_rank

NULL = 0.5
LEVEL = 0.05
LEAST_RECORDS = 6
"""Fewest records that can be significant: n differences of one sign have the two-sided p-value 2^(1-n)."""
ABOVE, BELOW, NEAR, UNDECIDED = "above", "below", "near", "undecided"


@dataclass(frozen=True)
class RankTest:
    """A mean percentile rank with its uncertainty.

    The statistics take the forget records as independent draws and the retained ones as given: records about one person
    are neither, so that error and p_value are, if anything, too small.

    Attributes
    ----------
    mean : float in [0, 1]
    error : float
        Standard error of the mean, NaN for one record.
    p_value : float
        Two-sided Wilcoxon signed-rank test of the ranks against 0.5.
    records : int
    """

    mean: float
    error: float
    p_value: float
    records: int

    @property
    def verdict(self) -> str:
        """Verdict on the mean rank.

        Returns
        -------
        str
            "above" or "below" 0.5 where p_value is at most LEVEL; else "undecided" for fewer than LEAST_RECORDS, which
            cannot be significant, or "near": not distinguishable from 0.5.
        """
        if self.records < LEAST_RECORDS:
            return UNDECIDED
        if self.p_value > LEVEL or self.mean == NULL:
            return NEAR
        return ABOVE if self.mean > NULL else BELOW


def rank_test(ranks: Sequence[float] | np.ndarray) -> RankTest:
    """Test percentile ranks against 0.5.

    Parameters
    ----------
    ranks : array (n,), n >= 1, in [0, 1]

    Returns
    -------
    RankTest

    Raises
    ------
    ValueError
        For no ranks, or one out of range.
    """
    values = np.asarray(ranks, np.float64)
    if not values.size or not ((values >= 0) & (values <= 1)).all():
        raise ValueError("expected at least one rank, all of them in [0, 1]")
    error = float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else math.nan
    return RankTest(float(values.mean()), error, signed_rank(values, NULL).p, values.size)
