"""P-values of the signed-rank test: by going through all signs where they are exact, and SciPy's where they are not."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata, wilcoxon

from evaluation.metrics.signed_ranks import MOST, MOST_UNEVEN, p_values


def enumerated(differences: np.ndarray) -> tuple[float, float]:
    """Of all 2^n signs of the differences, the share with no more, and with no less, positive ranks than these."""
    differences = differences[differences != 0]
    ranks = rankdata(np.abs(differences))
    sums = np.array(list(itertools.product((0, 1), repeat=len(ranks)))) @ ranks
    seen = ranks[differences > 0].sum()
    return float((sums <= seen).mean()), float((sums >= seen).mean())


@pytest.mark.parametrize("size", [1, 2, 5, 9, MOST_UNEVEN])
@pytest.mark.parametrize("uneven", [False, True], ids=["all different", "ties and zeros"])
def test_few_differences_are_tested_by_all_signs_that_they_may_have(size: int, uneven: bool) -> None:
    rng = np.random.default_rng(size)
    differences = rng.normal(0.3, 1.0, size)
    if uneven:
        differences = rng.permutation([1.0, *np.round(differences[1:])])
    assert p_values(differences) == enumerated(differences)


@pytest.mark.parametrize(
    ("size", "uneven"),
    [(MOST_UNEVEN + 1, False), (MOST, False), (MOST + 1, False), (MOST_UNEVEN + 1, True), (MOST, True)],
)
def test_more_differences_have_the_p_values_of_scipy(size: int, uneven: bool) -> None:
    differences = np.random.default_rng(size).normal(0.3, 1.0, size)
    differences = np.round(differences, 1) if uneven else differences
    assert (len(set(abs(differences))) < size or 0 in differences) == uneven
    found: list[Any] = [wilcoxon(differences, alternative=side) for side in ("less", "greater", "two-sided")]
    below, above, either = (test.pvalue for test in found)
    assert p_values(differences) == pytest.approx((below, above), rel=1e-12)
    assert 2 * min(p_values(differences)) == pytest.approx(either, rel=1e-12)
