"""Calibrated scores, ranks and strengths against loops over the definitions and numbers worked out by hand."""

import math

import numpy as np
import pytest

from evaluation.wikimem.score import (
    PairScore,
    by_cohort,
    by_property,
    calibrated_scores,
    memorization_strength,
    memorized,
    score_pair,
    summarize,
)


def slow_scores(nll, variants, generic, weight):
    """The definition, one number at a time."""
    result = np.zeros(nll.shape)
    for t in range(nll.shape[0]):
        for i in range(nll.shape[1]):
            gains = [generic[t, i] - variants[t, k, i] for k in range(variants.shape[1])]
            result[t, i] = (generic[t, i] - nll[t, i]) - weight * sum(gains) / len(gains)
    return result


def slow_strength(scores, truth):
    """z* of one template by the definition, or None where no ground truth has rank 1 (a tie is none)."""
    values = list(map(float, scores))
    right = [i for i in range(len(values)) if truth[i]]
    wrong = [i for i in range(len(values)) if not truth[i]]
    star = max(right, key=lambda i: values[i])
    rank = 1 + sum(values[i] >= values[star] for i in wrong)
    if rank > 1:
        return None
    margins = [values[i] - max(values[j] for j in range(len(values)) if j != i) for i in range(len(values))]
    mean = sum(margins) / len(margins)
    deviation = math.sqrt(sum((margin - mean) ** 2 for margin in margins) / len(margins))
    return (values[star] - max(values[i] for i in wrong) - mean) / deviation


@pytest.fixture
def nlls():
    rng = np.random.default_rng(0)
    return rng.uniform(5, 60, (11, 101)), rng.uniform(5, 60, (11, 2, 101)), rng.uniform(5, 60, (11, 101))


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0, 1.7])
def test_scores_are_those_of_the_definition(nlls, weight):
    nll, variants, generic = nlls
    expected = slow_scores(nll, variants, generic, weight)
    np.testing.assert_allclose(calibrated_scores(nll, variants, generic, weight=weight), expected, atol=1e-10)


def test_the_generic_subject_cancels_at_weight_one(nlls):
    nll, variants, generic = nlls
    without = calibrated_scores(nll, variants)
    np.testing.assert_allclose(without, slow_scores(nll, variants, generic, 1.0), atol=1e-10)
    np.testing.assert_allclose(without, slow_scores(nll, variants, generic * 100, 1.0), atol=1e-8)


def test_scores_worked_out_by_hand():
    nll, variants, generic = [10.0, 20.0], [[14.0, 21.0], [16.0, 25.0]], [18.0, 22.0]
    np.testing.assert_allclose(calibrated_scores(nll, variants), [5.0, 3.0])
    # (18 - 10) - 0.5 (18 - 15) and (22 - 20) - 0.5 (22 - 23)
    np.testing.assert_allclose(calibrated_scores(nll, variants, generic, weight=0.5), [6.5, 2.5])


def test_a_value_that_every_name_makes_likely_gains_nothing(nlls):
    nll, variants, generic = nlls
    popular = np.zeros(101)
    popular[7] = 40.0
    shifted = calibrated_scores(nll - popular, variants - popular, generic - popular)
    np.testing.assert_allclose(shifted, calibrated_scores(nll, variants, generic))


@pytest.mark.parametrize(
    ("nll", "variants", "options", "message"),
    [
        (np.zeros((2, 3)), np.zeros((2, 3)), {}, r"expected \(\.\.\., S, C\)"),
        (np.zeros((2, 3)), np.zeros((2, 1, 4)), {}, r"expected \(\.\.\., S, C\)"),
        (np.zeros((2, 3)), np.zeros((3, 1, 3)), {}, r"expected \(\.\.\., S, C\)"),
        (np.zeros((2, 3)), np.zeros((2, 0, 3)), {}, "no look-alike"),
        (np.zeros(3), np.zeros((1, 3)), {"weight": 0.5}, "generic_nll is needed"),
        (np.zeros(3), np.zeros((1, 3)), {"weight": 0.5, "generic_nll": np.zeros(2)}, "generic_nll has shape"),
        (np.array([0, np.nan, 1]), np.zeros((1, 3)), {}, "not finite"),
        (np.zeros(3), np.full((1, 3), np.inf), {}, "not finite"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(nll, variants, options, message):
    with pytest.raises(ValueError, match=message):
        calibrated_scores(nll, variants, **options)


BY_HAND = [
    # margins 2, -2, -3: mean -1, variance 14/3
    ([3, 1, 0], [0], True, 3 / math.sqrt(14 / 3)),
    # margins 1, -1, -4, -5: mean -9/4, variance 91/16; the best ground truth leads the best counterfactual by 4
    ([5, 4, 1, 0], [0, 1], True, 6.25 / math.sqrt(91 / 16)),
    # two ground truths tie at the top: margins 0, 0, -3; mean -1, variance 2; lead 3
    ([7, 7, 4], [0, 1], True, 4 / math.sqrt(2)),
    # the second ground truth is the one with rank 1: margins -8, 8: mean 0, variance 64 with one counterfactual
    ([1, 9], [1], True, 1.0),
    # a counterfactual leads
    ([3, 1, 0], [1], False, None),
    # a counterfactual ties with the ground truth: no rank 1
    ([3, 3, 0], [0], False, None),
    # all alike
    ([2, 2, 2], [0], False, None),
]


@pytest.mark.parametrize(("scores", "right", "expected", "strength"), BY_HAND)
def test_ranks_and_strengths_worked_out_by_hand(scores, right, expected, strength):
    truth = np.isin(np.arange(len(scores)), right)
    assert memorized(np.array(scores), truth).tolist() is expected
    found = memorization_strength(np.array(scores), truth)
    assert found.shape == ()
    assert np.isnan(found) if strength is None else found == pytest.approx(strength)


@pytest.mark.parametrize("candidates", [2, 5, 37, 101])
@pytest.mark.parametrize("right", [1, 3])
def test_ranks_and_strengths_are_those_of_the_definition(candidates, right):
    rng = np.random.default_rng(candidates + right)
    right = min(right, candidates - 1)
    truth = np.zeros(candidates, dtype=bool)
    truth[rng.choice(candidates, right, replace=False)] = True
    # Small integers, so that ties of all sorts occur.
    scores = rng.integers(0, 4 * candidates, (40, 11, candidates)) + np.where(truth, candidates, 0.0)
    found, ranked = memorization_strength(scores, truth), memorized(scores, truth)
    assert found.shape == ranked.shape == (40, 11)
    assert 0 < ranked.sum() < ranked.size
    for index in np.ndindex(40, 11):
        expected = slow_strength(scores[index], truth)
        assert ranked[index] == (expected is not None)
        if expected is None:
            assert np.isnan(found[index])
        else:
            assert found[index] == pytest.approx(expected) and found[index] > 0


def test_strength_ignores_scale_offset_and_order():
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(6, 30))
    truth = np.arange(30) < 2
    scores[:, 0] += 4
    base = memorization_strength(scores, truth)
    assert not np.isnan(base).any()
    np.testing.assert_allclose(memorization_strength(3.5 * scores - 8, truth), base)
    order = rng.permutation(30)
    np.testing.assert_allclose(memorization_strength(scores[:, order], truth[order]), base)


@pytest.mark.parametrize(
    ("scores", "truth", "message"),
    [
        ([1.0, 2.0], [False, False], "at least one true and one not"),
        ([1.0, 2.0], [True, True], "at least one true and one not"),
        ([1.0, 2.0], [True, False, False], "expected bool"),
        ([1.0, 2.0], [1, 0], "expected bool"),
        ([1.0, np.nan], [True, False], "not finite"),
    ],
)
@pytest.mark.parametrize("function", [memorized, memorization_strength])
def test_candidates_that_cannot_be_compared_are_refused(function, scores, truth, message):
    with pytest.raises(ValueError, match=message):
        function(np.array(scores), np.array(truth))


def pair(subject, property, strengths, cohort=None):
    """A pair whose templates have these strengths; None: not memorised."""
    strength = np.array([np.nan if value is None else value for value in strengths])
    return PairScore(subject, property, ~np.isnan(strength), strength, cohort)


PAIRS = [
    pair("Ada", "P19", [2.0, 3.0, None, None], "known"),
    pair("Ada", "P106", [1.0, 2.0, 4.0, 6.0], "known"),
    pair("Bo", "P19", [None] * 4, "known"),
    pair("Bo", "P106", [None] * 4, "known"),
    pair("Cy", "P19", [None, 5.0, None, None], "other"),
    pair("Di", "P106", [None] * 4),
]


def test_figures_worked_out_by_hand():
    figures = summarize(PAIRS)
    assert (figures.pairs, figures.subjects, figures.unmemorized_subjects) == (6, 4, 2)
    assert figures.strict_rate == pytest.approx((0.5 + 1 + 0 + 0 + 0.25 + 0) / 6)
    assert figures.lenient_rate == pytest.approx(3 / 6)
    assert figures.unanimous_rate == pytest.approx(1 / 6)
    assert figures.mean_strength == pytest.approx((2 + 3 + 1 + 2 + 4 + 6 + 5) / 7)


def test_every_pair_counts_alike_however_many_templates_it_has():
    figures = summarize([pair("Ada", "P19", [1.0]), pair("Bo", "P19", [None, None, None])])
    assert (figures.strict_rate, figures.lenient_rate, figures.unanimous_rate) == (0.5, 0.5, 0.5)


def test_figures_per_property_and_cohort():
    properties = by_property(PAIRS)
    assert list(properties) == ["P19", "P106"]
    assert properties["P19"].strict_rate == pytest.approx(0.25)
    assert properties["P19"].mean_strength == pytest.approx(10 / 3)
    assert (properties["P106"].subjects, properties["P106"].unmemorized_subjects) == (3, 2)
    cohorts = by_cohort(PAIRS)
    assert list(cohorts) == ["known", "other"]
    assert (cohorts["known"].pairs, cohorts["known"].subjects, cohorts["known"].unmemorized_subjects) == (4, 2, 1)
    assert cohorts["other"].mean_strength == pytest.approx(5.0)


def test_nothing_memorised_has_no_strength():
    figures = summarize([PAIRS[2], PAIRS[5]])
    assert figures.mean_strength is None
    assert figures.strict_rate == figures.lenient_rate == figures.unanimous_rate == 0
    assert figures.unmemorized_subjects == 2
    assert by_cohort([PAIRS[5]]) == {}
    with pytest.raises(ValueError, match="no pairs"):
        summarize([])


def test_a_pair_is_scored_from_nlls_to_figures():
    rng = np.random.default_rng(5)
    truth = np.arange(21) == 4
    variants = rng.uniform(20, 30, (3, 2, 21))
    nll = variants.mean(axis=1)
    nll[:2, 4] -= 1
    result = score_pair("Ada", "P19", calibrated_scores(nll, variants), truth, "known")
    assert result.memorized.tolist() == [True, True, False]
    # One margin is 1 and the others are -1 less rounding: mean -19/21, so z* = 40/21 / std.
    margins = np.array([1.0] + [-1.0] * 20)
    assert result.strength[0] == pytest.approx((1 - margins.mean()) / margins.std())
    assert np.isnan(result.strength[2])
    assert summarize([result]).strict_rate == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="Ada, P19"):
        score_pair("Ada", "P19", np.zeros(21), truth)


def test_a_pair_keeps_its_cohort():
    scores, truth = np.array([[2.0, 1.0]]), np.array([True, False])
    assert [score_pair("Ann", "P19", scores, truth, cohort).cohort for cohort in (None, "known")] == [None, "known"]
