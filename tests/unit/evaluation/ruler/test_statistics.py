"""RULER's statistics against closed forms, an independent likelihood, scipy, numbers made by hand and simulations."""

from __future__ import annotations

import itertools
import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag
from scipy.optimize import minimize
from scipy.stats import norm, rankdata, wilcoxon
from scipy.stats import t as student

from evaluation.ruler.statistics import (
    attack_passes,
    effect_label,
    mixed_model,
    noise_band,
    post_hoc,
    signed_rank,
    threshold_attack,
)


def grouped(k: int, n: int, between: float, seed: int = 0, mean: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """k groups of n values: means of spread `between`, residuals of spread 1. Values (k, n), groups (k, n)."""
    rng = np.random.default_rng(seed)
    return mean + between * rng.normal(size=(k, 1)) + rng.normal(size=(k, n)), np.repeat(np.arange(k), n).reshape(k, n)


@pytest.mark.parametrize("between", [0.3, 1.0, 30.0])
@pytest.mark.parametrize("unit", [1.0, 1e-5, 1e4])
def test_a_balanced_fit_is_the_analysis_of_variance(between: float, unit: float) -> None:
    """REML of the balanced one-way random-effects model has a closed form where MSB > MSW (Searle et al. 1992)."""
    values, groups = grouped(10, 10, between, seed=3, mean=0.7)
    msb, msw = 10 * values.mean(1).var(ddof=1), values.var(axis=1, ddof=1).mean()
    assert msb > msw
    fit = mixed_model(unit * values.ravel(), groups.ravel().tolist(), null=unit * 0.5)
    assert not fit.singular
    assert fit.estimate == pytest.approx(unit * values.mean(), rel=1e-9)
    assert fit.group_variance == pytest.approx(unit**2 * (msb - msw) / 10, rel=1e-4)
    assert fit.residual_variance == pytest.approx(unit**2 * msw, rel=1e-5)
    assert fit.standard_error == pytest.approx(unit * math.sqrt(msb / 100), rel=1e-5)
    assert fit.icc == pytest.approx((msb - msw) / (msb + 9 * msw), rel=1e-4)
    z = (values.mean() - 0.5) / math.sqrt(msb / 100)
    assert fit.z == pytest.approx(z, rel=1e-4)
    assert fit.p == pytest.approx(2 * student.sf(abs(z), 9), rel=1e-3)
    assert (fit.observations, fit.groups, fit.null) == (100, 10, unit * 0.5)
    expected = wilcoxon(unit * (values.mean(1) - 0.5))
    assert fit.signed_rank.statistic == expected.statistic
    assert fit.signed_rank.p == pytest.approx(expected.pvalue)


def dense_reml(values: np.ndarray, sizes: list[int]) -> tuple[float, float, float, float]:
    """Intercept, its standard error and both variances by maximising the restricted likelihood of the full matrix."""
    ones = np.ones(len(values))

    def parts(logs: np.ndarray) -> tuple[np.ndarray, float, float]:
        between, within = np.exp(logs)
        inverse = np.linalg.inv(block_diag(*[between * np.ones((n, n)) + within * np.eye(n) for n in sizes]))
        weight = float(ones @ inverse @ ones)
        return inverse, weight, float(ones @ inverse @ values) / weight

    def loss(logs: np.ndarray) -> float:
        inverse, weight, estimate = parts(logs)
        residual = values - estimate
        return 0.5 * (-np.linalg.slogdet(inverse)[1] + math.log(weight) + residual @ inverse @ residual)

    best = minimize(loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000})
    _, weight, estimate = parts(best.x)
    between, within = np.exp(best.x)
    return estimate, weight**-0.5, between, within


def test_an_unbalanced_fit_maximises_the_restricted_likelihood() -> None:
    sizes = [2, 9, 4, 1, 6, 12]
    rng = np.random.default_rng(5)
    groups = np.repeat(["f", "a", "c", "b", "e", "d"], sizes)
    values = np.repeat(rng.normal(size=6), sizes) + rng.normal(size=sum(sizes))
    estimate, error, between, within = dense_reml(values, sizes)
    order = rng.permutation(len(values))
    fit = mixed_model(values[order], groups[order].tolist())
    assert fit.estimate == pytest.approx(estimate, rel=1e-5)
    # statsmodels' error is of the joint information of all parameters, this one of the intercept at known variances.
    assert fit.standard_error == pytest.approx(error, rel=5e-3)
    assert fit.group_variance == pytest.approx(between, rel=1e-4)
    assert fit.residual_variance == pytest.approx(within, rel=1e-4)


def balanced_without_variance_between() -> tuple[np.ndarray, list[int]]:
    """Each group holds the same values: MSB is 0, below MSW."""
    return np.tile([1.0, 2.0, 4.0], 5), np.repeat(np.arange(5), 3).tolist()


SINGULAR = {
    "the variance between groups is estimated as 0": balanced_without_variance_between(),
    "one group only": (np.array([1.0, 2.0, 4.0]), [0, 0, 0]),
    "no group has more than one value": (np.array([1.0, 2.0, 4.0]), [0, 1, 2]),
    "nothing varies within the groups": (np.repeat([0.1, 0.2, 0.3, 0.7], 3), np.repeat(np.arange(4), 3).tolist()),
    "all values are equal": (np.full(6, 0.1), [0, 0, 1, 1, 2, 2]),
}


def test_two_values_and_values_of_nothing_but_zeros_are_enough_for_a_singular_fit() -> None:
    assert "no group has more than one value" in mixed_model([1.0, 2.0], [0, 1]).note
    assert "all values are equal" in mixed_model([0.0] * 4, [0, 0, 1, 1]).note


@pytest.mark.parametrize(
    "wrong",
    [{"scale": math.nan}, {"cov_re": [[math.inf]]}, {"fe_params": [math.nan]}, {"bse_fe": [0.0]}, {"converged": False}],
)
def test_an_optimiser_that_ends_nowhere_gives_a_singular_fit(monkeypatch: pytest.MonkeyPatch, wrong: dict) -> None:
    sound = {"scale": 1.0, "cov_re": [[1.0]], "fe_params": [0.0], "bse_fe": [0.5], "converged": True}

    class Model:
        told = sound

        def __init__(self, *_: object, **__: object) -> None: ...

        def fit(self, **_: object) -> SimpleNamespace:
            return SimpleNamespace(**self.told)

    monkeypatch.setattr("statsmodels.regression.mixed_linear_model.MixedLM", Model)
    assert not mixed_model([1.0, 2.0, 3.0, 5.0], [0, 0, 1, 1]).singular
    Model.told = {**sound, **wrong}
    assert "the optimiser did not converge" in mixed_model([1.0, 2.0, 3.0, 5.0], [0, 0, 1, 1]).note


def test_many_differences_with_ties_take_the_normal_distribution_without_a_correction() -> None:
    values = np.random.default_rng(5).integers(-6, 9, 80).astype(float)
    ranked = values[values != 0]
    ranks = rankdata(np.abs(ranked))
    spread = math.sqrt((ranks**2).sum() / 4)
    z = (ranks[ranked > 0].sum() - ranks.sum() / 2) / spread
    found = signed_rank(values)
    assert found.observations == len(ranked) and 0.001 < found.p < 0.9
    assert found.p == pytest.approx(2 * norm.sf(abs(z)), rel=1e-9)


def test_what_is_rounding_goes_by_the_largest_value_on_either_side() -> None:
    small, large = [0.0, 1e-7], [1e6, 0.0]
    assert signed_rank(small, large).observations == signed_rank(large, small).observations == 1
    assert signed_rank(small, [1.0, 0.0]).observations == 2


@pytest.mark.parametrize(("reason", "data"), SINGULAR.items(), ids=list(SINGULAR))
def test_singular_fits_are_said_to_be_and_give_wilcoxon(reason: str, data: tuple[np.ndarray, list[int]]) -> None:
    values, groups = data
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = mixed_model(values, groups, null=0.05)
    assert fit.singular
    assert reason in fit.note
    assert "Wilcoxon" in fit.note
    assert (fit.standard_error, fit.z, fit.p, fit.icc, fit.group_variance, fit.residual_variance) == (None,) * 6
    means = [np.mean([v for v, g in zip(values, groups, strict=True) if g == name]) for name in dict.fromkeys(groups)]
    assert fit.estimate == pytest.approx(np.mean(means))
    assert fit.signed_rank.p == pytest.approx(wilcoxon(np.array(means) - 0.05).pvalue)
    assert fit.signed_rank.rank_biserial == 1


@pytest.mark.parametrize("wobble", [0.0, 1e-9])
def test_a_singular_estimate_is_the_mean_of_the_group_means_however_large_the_groups(wobble: float) -> None:
    """Values that differ within their groups by rounding alone are all one, whatever the optimiser makes of them."""
    values = np.repeat([1.0, 2.0, 6.0], [1, 2, 5]) + wobble * np.array([0, 1, -1, 1, -1, 0, 0, 0])
    fit = mixed_model(values, np.repeat(["c", "a", "b"], [1, 2, 5]).tolist(), null=2.5)
    assert fit.singular and "nothing varies within the groups" in fit.note
    assert fit.estimate == pytest.approx(3.0)
    assert fit.signed_rank.observations == 3 and fit.signed_rank.signed == pytest.approx(0.0)
    assert (fit.observations, fit.groups, fit.null) == (8, 3, 2.5)


def test_a_mean_square_between_below_that_within_is_singular_and_above_is_not() -> None:
    for seed in range(12):
        values, groups = grouped(6, 4, 0.2, seed=seed)
        msb, msw = 4 * values.mean(1).var(ddof=1), values.var(axis=1, ddof=1).mean()
        assert mixed_model(values.ravel(), groups.ravel().tolist()).singular == (msb <= msw)


def test_a_fit_warns_of_nothing() -> None:
    values, groups = grouped(4, 2, 1.0, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed_model(values.ravel(), groups.ravel().tolist())


@pytest.mark.parametrize(
    ("values", "groups", "message"),
    [
        ([1.0], [0], "at least two values"),
        ([], [], "n >= 1"),
        ([1.0, 2.0], [0], "2 values, 1 groups"),
        ([1.0, math.nan], [0, 0], "holds NaN, first at 1"),
        ([math.inf, 1.0], [0, 0], "holds an infinity, first at 0"),
        ([[1.0], [2.0]], [0, 0], "shape"),
        (["a", "b"], [0, 0], "are not numbers"),
    ],
)
def test_values_a_mixed_model_refuses(values: list, groups: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mixed_model(values, groups)
    if len(groups) == len(values) != 1:
        with pytest.raises(ValueError, match=message):
            signed_rank(values)


def test_signed_rank_by_hand() -> None:
    # |differences| 1, 2, 3, 4 and a zero: W+ = 1 + 3 + 4 = 8, W- = 2, m = 4; 1 - 4 * 2 / 20 = 0.6.
    test = signed_rank([1.5, -1.5, 3.5, 4.5, 0.5], null=0.5)
    assert (test.statistic, test.observations) == (2, 4)
    assert test.rank_biserial == pytest.approx(0.6)
    assert test.signed == pytest.approx(0.6)
    assert test.label == "large"
    # Of the 16 signs of four ranks, W- <= 2 for {}, {1}, {2}: p = 2 * 3/16.
    assert test.p == pytest.approx(0.375)
    mirrored = signed_rank([-0.5, 2.5, -2.5, -3.5, 0.5], null=0.5)
    assert mirrored.signed == pytest.approx(-0.6)
    assert (mirrored.statistic, mirrored.rank_biserial, mirrored.p) == (test.statistic, test.rank_biserial, test.p)


def test_signed_rank_without_any_difference() -> None:
    test = signed_rank([0.1 + 0.2, 0.3], null=0.3)
    assert (test.p, test.observations, test.rank_biserial, test.signed, test.label) == (1, 0, 0, 0, "negligible")


def test_ten_datasets_of_one_sign() -> None:
    test = signed_rank(-np.arange(1.0, 11.0))
    assert test.p == pytest.approx(2 / 1024)
    assert (test.rank_biserial, test.signed) == (1, -1)


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=7).filter(any))
@settings(max_examples=30, deadline=None)
def test_signed_rank_agrees_with_pairwise_counting(values: list[int]) -> None:
    """W+ is the number of Walsh averages above 0, those at 0 counted half."""
    kept = [v for v in values if v]
    m = len(kept)
    walsh = [kept[i] + kept[j] for i, j in itertools.combinations_with_replacement(range(m), 2)]
    positive = sum(1.0 if w > 0 else 0.5 if w == 0 else 0.0 for w in walsh)
    test = signed_rank(values)
    w = min(positive, m * (m + 1) / 2 - positive)
    assert test.statistic == w
    assert test.rank_biserial == pytest.approx(1 - 4 * w / (m * (m + 1)))
    assert abs(test.signed) == pytest.approx(test.rank_biserial)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = wilcoxon(np.array(kept, float))
    assert test.statistic == expected.statistic
    assert test.p == pytest.approx(expected.pvalue)


@pytest.mark.parametrize(
    ("value", "label"),
    [(0, "negligible"), (0.0999, "negligible"), (0.1, "small"), (0.3, "medium"), (-0.49, "medium"), (-0.5, "large")],
)
def test_labels_of_effects(value: float, label: str) -> None:
    assert effect_label(value) == label


def test_post_hoc_adjusts_over_all_pairs_and_metrics() -> None:
    rng = np.random.default_rng(0)
    shift = {"a": 0.0, "b": 0.4, "c": 1.5}
    orders = {"a": ("gap", "rank"), "b": ("gap", "rank"), "c": ("rank", "gap")}
    values = {m: {k: rng.normal(size=20) + shift[m] for k in orders[m]} for m in shift}
    tests = post_hoc(values)
    assert [(t.first, t.second, t.metric) for t in tests] == [
        (f, s, k) for k in ("gap", "rank") for f, s in (("a", "b"), ("a", "c"), ("b", "c"))
    ]
    p = [wilcoxon(values[t.first][t.metric], values[t.second][t.metric]).pvalue for t in tests]
    np.testing.assert_allclose([t.test.p for t in tests], p)
    # Benjamini and Hochberg's step-up rule, by its definition.
    n = len(p)
    for test in tests:
        above = [n / (i + 1) * q for i, q in enumerate(sorted(p)) if q >= test.test.p]
        assert test.p_adjusted == pytest.approx(min(1.0, *above))
    assert next(t for t in tests if (t.first, t.second) == ("a", "c")).test.signed < -0.5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": {"gap": [1.0]}}, "at least two"),
        ({"a": {"gap": [1.0]}, "b": {"rank": [1.0]}}, "b has the metrics"),
        ({"a": {}, "b": {}}, "a has the metrics"),
        ({"a": {"gap": [1.0, 2.0]}, "b": {"gap": [1.0]}}, "gap of a and b: 2 values, 1"),
        ({"a": {"gap": [1.0, math.nan]}, "b": {"gap": [1.0, 2.0]}}, "gap of a and b: values holds NaN"),
    ],
)
def test_methods_post_hoc_refuses(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        post_hoc(values)


def test_a_noise_band_by_hand() -> None:
    # Mean 2, s = 1, t(0.975; 2) = 4.302653: half = 4.302653 * sqrt(4/3).
    band = noise_band([1.0, 2.0, 3.0])
    assert (band.mean, band.n, band.confidence) == (2, 3, 0.95)
    assert band.high - 2 == pytest.approx(4.302652729911275 * math.sqrt(4 / 3))
    assert 2 - band.low == pytest.approx(band.high - 2)
    assert band.contains(band.low)
    assert band.contains(2)
    assert not band.contains(band.high + 1e-9)
    assert not band.contains(math.nan)
    flat = noise_band([0.5, 0.5, 0.5])
    assert (flat.low, flat.high) == (0.5, 0.5)


@pytest.mark.parametrize(("n", "confidence"), [(3, 0.95), (5, 0.8), (10, 0.95)])
def test_the_noise_band_holds_one_more_value_as_often_as_it_says(n: int, confidence: float) -> None:
    rng = np.random.default_rng(n)
    draws = 0.3 + 0.02 * rng.normal(size=(3000, n + 1))
    share = np.mean([noise_band(row[:-1], confidence).contains(row[-1]) for row in draws])
    assert abs(share - confidence) < 4 * math.sqrt(confidence * (1 - confidence) / 3000)


@pytest.mark.parametrize(
    ("values", "confidence", "message"),
    [
        ([1.0, 2.0], 0.95, "at least 3"),
        ([1.0, 2.0, 3.0], 1.0, "between 0 and 1"),
        ([1.0, 2.0, 3.0], 0.0, "between 0 and 1"),
        ([1.0, 2.0, 3.0], math.nan, "between 0 and 1"),
        ([1.0, 2.0, math.nan], 0.95, "NaN"),
        ([1.0, 2.0, math.inf], 0.95, "infinity"),
    ],
)
def test_values_a_noise_band_refuses(values: list[float], confidence: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noise_band(values, confidence)


def test_an_attack_on_separate_and_on_equal_losses() -> None:
    low, high = np.linspace(0, 1, 21), np.linspace(2, 3, 33)
    assert threshold_attack(low, high) == 1
    assert threshold_attack(high, low) == 0.5
    assert threshold_attack(np.ones(9), np.ones(30)) == 0.5
    assert threshold_attack(np.zeros(4), np.full(4, np.inf)) == 1


def test_an_attack_is_near_the_best_threshold_of_known_distributions() -> None:
    rng = np.random.default_rng(1)
    accuracy = threshold_attack(rng.normal(0, 1, 4000), rng.normal(1, 1, 4000))
    assert accuracy == pytest.approx(norm.cdf(0.5), abs=0.02)
    assert not attack_passes(accuracy)


def test_an_attack_on_few_forgotten_records_is_at_chance_on_average_and_on_either_side() -> None:
    rng = np.random.default_rng(2)
    pairs = [(rng.exponential(size=10), rng.exponential(size=40)) for _ in range(150)]
    held_out = np.array([threshold_attack(*pair) for pair in pairs])
    error = held_out.std(ddof=1) / math.sqrt(len(pairs))
    assert abs(held_out.mean() - 0.5) < 3 * error
    assert 3 * error < 0.02
    assert (held_out < 0.5).any()
    assert (held_out > 0.5).any()
    # The best accuracy on the records themselves, by trying every threshold: always above chance, by far.
    same = [max(((m <= t).mean() + (o > t).mean()) / 2 for t in np.concatenate([m, o])) for m, o in pairs]
    assert np.mean(same) > 0.57
    assert np.mean([attack_passes(x) for x in same]) < 0.4


def test_an_attack_is_a_function_of_order_and_of_its_state() -> None:
    rng = np.random.default_rng(3)
    members, others = rng.uniform(size=31), rng.uniform(size=57) + 0.2
    expected = threshold_attack(members, others)
    assert threshold_attack(members, others) == expected
    assert threshold_attack(5 * members + 3, 5 * others + 3) == pytest.approx(expected)
    assert threshold_attack(members, others, random_state=1) != expected


def balanced_accuracy(members: np.ndarray, others: np.ndarray, threshold: float) -> float:
    return ((members <= threshold).mean() + (others > threshold).mean()) / 2


@pytest.mark.parametrize("options", [{}, {"splits": 3, "random_state": 7}])
@pytest.mark.parametrize(("low", "high"), [(6, 4), (4, 9), (1, 1)])
def test_an_attack_judges_each_half_by_the_best_threshold_of_the_other(low: int, high: int, options: dict) -> None:
    """By trying every threshold between two losses, with many equal losses and halves of different sizes."""
    draws = np.random.default_rng(low)
    members, others = draws.integers(0, low, 9).astype(float), draws.integers(0, high, 14).astype(float)
    rng, accuracies = np.random.default_rng(options.get("random_state", 42)), []
    for _ in range(options.get("splits", 20)):
        halves = [np.array_split(rng.permutation(losses), 2) for losses in (members, others)]
        for fit in (0, 1):
            (m, judged_m), (o, judged_o) = ((half[fit], half[1 - fit]) for half in halves)
            values = sorted({*m, *o})
            between = [(a + b) / 2 for a, b in itertools.pairwise(values)]
            best = max([-np.inf, *between, values[-1]], key=lambda t: (balanced_accuracy(m, o, t), -t))
            accuracies.append(balanced_accuracy(judged_m, judged_o, best))
    assert threshold_attack(members, others, **options) == pytest.approx(np.mean(accuracies))


def test_an_attack_counts_a_loss_on_the_threshold_as_a_members() -> None:
    """The threshold between halves of nothing but 1 and of nothing but 3 is 2, the loss of the other members."""
    members, others = np.array([1.0, 1.0, 2.0, 2.0]), np.array([3.0, 3.0, 3.0, 3.0])
    parts = [np.random.default_rng(seed).permutation(members) for seed in range(20)]
    seeds = [seed for seed, x in enumerate(parts) if x[0] == x[1] == 1.0]
    assert seeds, "a half of nothing but the lowest loss"
    assert [threshold_attack(members, others, 1, seed) for seed in seeds] == [1.0] * len(seeds)


def test_passing_is_being_within_the_tolerance_both_ways() -> None:
    assert [attack_passes(x) for x in (0.45, 0.5, 0.55, 0.4499, 0.5501)] == [True, True, True, False, False]
    assert attack_passes(0.6, tolerance=0.1)


@pytest.mark.parametrize(
    ("members", "others", "message"),
    [
        ([1.0], [1.0, 2.0], "at least two"),
        ([1.0, 2.0], [1.0], "at least two"),
        ([1.0, math.nan], [1.0, 2.0], "member_loss holds NaN"),
        ([1.0, 2.0], [], "nonmember_loss has shape"),
    ],
)
def test_losses_an_attack_refuses(members: list[float], others: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        threshold_attack(members, others)


def test_an_attack_refuses_no_split() -> None:
    with pytest.raises(ValueError, match="splits"):
        threshold_attack([1.0, 2.0], [1.0, 2.0], splits=0)
