"""Is a mean percentile rank other than 0.5, and how sure is that?"""

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
    """A mean rank with what its forget records say about its uncertainty.

    mean: in [0, 1]; error: standard error of the mean, NaN for one record; p_value: two-sided Wilcoxon signed-rank test
    of the ranks against 0.5; records: how many. All take the forget records as independent draws and the retained ones
    as given: records about one person are neither, so that error and p_value are, if anything, too small.
    """

    mean: float
    error: float
    p_value: float
    records: int

    @property
    def verdict(self) -> str:
        """One of four words.

        "above" or "below" 0.5 where p_value is at most LEVEL; else "undecided" for fewer than LEAST_RECORDS, which can
        tell nothing, or "near": not to be told from 0.5.
        """
        if self.records < LEAST_RECORDS:
            return UNDECIDED
        if self.p_value > LEVEL or self.mean == NULL:
            return NEAR
        return ABOVE if self.mean > NULL else BELOW


def rank_test(ranks: Sequence[float] | np.ndarray) -> RankTest:
    """The test of percentile ranks (n,) in [0, 1]. Raises ValueError for none, or one out of range."""
    values = np.asarray(ranks, np.float64)
    if not values.size or not ((values >= 0) & (values <= 1)).all():
        raise ValueError("expected at least one rank, all of them in [0, 1]")
    error = float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else math.nan
    return RankTest(float(values.mean()), error, signed_rank(values, NULL).p, values.size)
