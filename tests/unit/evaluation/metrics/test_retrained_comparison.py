"""Over-unlearned, still known, near or undecided: the rule and its tests."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, rankdata, wilcoxon

from evaluation.metrics.retrained_comparison import (
    LEAST_QUESTIONS,
    LEVEL,
    NEAR,
    OVER_UNLEARNED,
    STILL_KNOWN,
    UNDECIDED,
    Verdict,
    judge_probability,
    judge_recall,
    judge_truth_ratio,
)

QUESTIONS = 10


def losses(probabilities):
    return [-math.log(p) for p in probabilities]


def enumerated(differences, side):
    """p-value of the signed-rank test by going through all 2^n signs."""
    ranks = rankdata(np.abs(differences))

    def statistic(signs):
        return sum(r for r, s in zip(ranks, signs, strict=True) if s > 0)

    seen = statistic(np.sign(differences))
    every = [statistic(signs) for signs in itertools.product((-1, 1), repeat=len(ranks))]
    return np.mean([x <= seen if side == "less" else x >= seen for x in every])


@pytest.mark.parametrize("seed", range(8))
def test_the_p_values_are_those_of_the_enumerated_test(seed):
    rng = np.random.default_rng(seed)
    n = 3 + seed
    ours, theirs = rng.gamma(2.0, size=n) + seed / 4, rng.gamma(2.0, size=n)
    found = judge_probability(ours, theirs)
    assert found.value == pytest.approx(np.mean(np.exp(-ours))) and found.questions == n
    assert found.oracle == pytest.approx(np.mean(np.exp(-theirs)))
    assert found.p_below == pytest.approx(enumerated(theirs - ours, "less"), abs=1e-12)
    assert found.p_above == pytest.approx(enumerated(theirs - ours, "greater"), abs=1e-12)


OTHERS = [0.16, 0.21, 0.24, 0.19, 0.2, 0.18, 0.22, 0.17, 0.23, 0.25]


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(0.1, OVER_UNLEARNED), (0.49, OVER_UNLEARNED), (0.51, NEAR), (1.0, NEAR), (1.99, NEAR), (2.01, STILL_KNOWN)],
)
def test_both_sides_of_the_factor(factor, verdict):
    assert judge_probability(losses(factor * p for p in OTHERS), losses(OTHERS)).verdict == verdict
    ratios = [1 / (5 * p) for p in OTHERS]
    assert judge_truth_ratio([r / factor for r in ratios], ratios).verdict == verdict


@pytest.mark.slow
def test_far_on_one_question_only_is_not_enough():
    theirs = [0.9, *[0.01] * 9]
    ours = [0.001, *[0.0101] * 9]
    found = judge_probability(losses(ours), losses(theirs))
    assert found.value < found.oracle / 2 and found.verdict == UNDECIDED
    assert judge_probability(losses(theirs), losses(ours)).verdict == UNDECIDED


def test_a_test_that_speaks_against_the_averages_decides_nothing():
    """Most questions lie below and a few far above, or the other way round."""
    for value, below, above, words in (
        (2.0, LEVEL / 2, 1.0, UNDECIDED),
        (1.0, LEVEL / 2, 1.0, UNDECIDED),
        (0.9, LEVEL / 2, 1.0, OVER_UNLEARNED),
        (0.9, LEVEL, 1.0, OVER_UNLEARNED),
        (0.9, 2 * LEVEL, 1.0, UNDECIDED),
        (0.5, 1.0, LEVEL / 2, UNDECIDED),
        (1.0, 1.0, LEVEL / 2, UNDECIDED),
        (1.1, 1.0, LEVEL, STILL_KNOWN),
        (1.1, 1.0, 2 * LEVEL, UNDECIDED),
    ):
        assert Verdict(value, 1.0, below, above, 20).significance == words


def test_what_lies_at_a_border_of_the_rule():
    """A p-value of the level is significant; a value of just the factor, or of its inverse, is near."""
    for value, below, above, words in (
        (1.0, 0.0, 0.0, NEAR),
        (0.99, LEVEL, 1.0, OVER_UNLEARNED),
        (0.99, 1.01 * LEVEL, 0.0, UNDECIDED),
        (4.0, 0.0, 0.0, NEAR),
        (4.01, 1.0, LEVEL, STILL_KNOWN),
        (4.01, 0.0, 1.01 * LEVEL, UNDECIDED),
    ):
        assert Verdict(value, 2.0, below, above, 20).verdict == words


def test_recalls_are_compared_by_their_mean_and_tested_by_their_ratios():
    ours = np.array([0.9, 0.0, 0.2, 0.3, math.nan, 0.8, 0.5])
    theirs = np.array([0.1, 0.4, 0.0, 0.3, 0.5, 0.2, 0.6])
    found = judge_recall(ours, theirs)
    known = ~np.isnan(ours)
    assert (found.value, found.oracle) == pytest.approx((ours[known].mean(), theirs[known].mean()))
    assert np.median(theirs[known]) != pytest.approx(found.oracle)
    # Log-ratios ln 9, ln 4, ln 5/6, and both infinities, which share the largest ranks; equal ones are left out.
    ratios = np.array([math.log(9), -99.0, 99.0, math.log(4), math.log(5 / 6)])
    assert found.questions == 6
    same = {side: wilcoxon(np.append(ratios, 0.0), alternative=side).pvalue for side in ("less", "greater")}
    assert (found.p_below, found.p_above) == pytest.approx((same["less"], same["greater"]))


def test_very_large_differences_have_an_order_too():
    """Of losses of thousands of nats: the smaller ones speak for one side, the two largest for the other."""
    theirs, more = np.full(8, 5e4), np.array([-1e3, -2e3, -3e3, -4e3, -5e3, -6e3, 7e3, 8e3])
    found = judge_probability(theirs + more, theirs)
    assert found.p_above == pytest.approx(enumerated(-more, "greater"), abs=1e-12)
    assert found.p_below == pytest.approx(enumerated(-more, "less"), abs=1e-12)


def test_no_verdict_of_few_questions():
    for n in range(1, LEAST_QUESTIONS + 3):
        theirs = np.linspace(1.0, 2.0, n)
        found = judge_probability(theirs + np.linspace(5.0, 6.0, n), theirs)
        assert found.p_below == pytest.approx(0.5**n)
        assert found.verdict == (OVER_UNLEARNED if n >= LEAST_QUESTIONS else UNDECIDED)


def test_the_truth_ratio_tells_knowing_from_avoiding_where_the_tables_number_cannot():
    """min(R, 1/R) is 0.2 for both models, 1 for the retrained one."""
    spread = np.linspace(0.98, 1.02, QUESTIONS)
    assert judge_truth_ratio(0.2 * spread, spread**2).verdict == STILL_KNOWN
    assert judge_truth_ratio(spread / 0.2, spread**2).verdict == OVER_UNLEARNED


@pytest.mark.slow
def test_values_that_are_not_finite():
    theirs = np.linspace(1.0, 2.0, QUESTIONS)
    gone = judge_probability(np.full(QUESTIONS, np.inf), theirs)
    assert gone.value == 0 and gone.verdict == OVER_UNLEARNED and gone.p_below == pytest.approx(0.5**QUESTIONS)
    both = judge_probability(np.full(QUESTIONS, np.inf), np.full(QUESTIONS, np.inf))
    assert (both.verdict, both.p_below, both.p_above) == (NEAR, 1.0, 1.0)
    some = theirs + 3.0
    some[:4] = np.nan
    holes = judge_probability(some, theirs)
    assert holes.questions == 6 and holes.oracle == pytest.approx(np.exp(-theirs[4:]).mean())
    assert holes.verdict == UNDECIDED, "six questions are too few"
    assert judge_probability(theirs, np.full(QUESTIONS, np.nan)) is None
    assert judge_probability([], []) is None
    with pytest.raises(ValueError, match="3 questions of the model, 2 of the retrained"):
        judge_probability([1.0, 2.0, 3.0], [1.0, 2.0])
    ends = judge_truth_ratio([0.0, np.inf, 1.0], [1.0, 1.0, 1.0])
    assert ends.value == 1.0 and ends.verdict == NEAR
    assert judge_truth_ratio(np.full(QUESTIONS, np.inf), np.ones(QUESTIONS)).verdict == OVER_UNLEARNED
    assert judge_truth_ratio(np.zeros(QUESTIONS), np.ones(QUESTIONS)).verdict == STILL_KNOWN


@pytest.mark.parametrize(("n", "deviation"), [(8, 3.0), (12, 3.0), (40, 6.0), (60, 8.0)])
@pytest.mark.slow
def test_models_of_equal_distribution_are_rarely_called_different(n, deviation):
    """The losses vary so much that the factor alone would often accuse a model that is like the retrained one."""
    rng, runs = np.random.default_rng(n), 1000
    found = []
    for _ in range(runs):
        question = rng.exponential(2.0, n)
        found.append(judge_probability(*(question + rng.exponential(deviation, n) for _ in range(2))))
    most = binom.ppf(1 - 1e-4, runs, LEVEL)
    assert sum(f.p_below <= LEVEL for f in found) <= most and sum(f.p_above <= LEVEL for f in found) <= most
    words = [f.verdict for f in found]
    assert words.count(OVER_UNLEARNED) <= most and words.count(STILL_KNOWN) <= most
    if n <= 12:
        assert words.count(UNDECIDED) > 0.1 * runs, "the factor alone would accuse many"
    shifted = [
        judge_probability(rng.exponential(deviation, n) + 4 * deviation, rng.exponential(deviation, n)).verdict
        for _ in range(100)
    ]
    assert shifted.count(OVER_UNLEARNED) > 75
