"""Betting limits against the process written out sample by sample; errors and savings when one may stop at any time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy import stats

from evaluation.leakage.sequential import TRUNCATION, Decision, SequentialTest, confidence_sequence

REPETITIONS = 500


def capital_by_definition(samples: np.ndarray, m: float, alpha: float) -> list[tuple[float, float]]:
    """(K+, K-) after each sample, multiplied out as in Waudby-Smith & Ramdas 2023."""
    more = less = 1.0
    history = []
    for t in range(1, len(samples) + 1):
        seen = samples[: t - 1].tolist()
        means = [(0.5 + sum(seen[: i + 1])) / (i + 2) for i in range(len(seen))]
        variance = (0.25 + sum((x - mean) ** 2 for x, mean in zip(seen, means, strict=True))) / t
        bet = math.sqrt(2 * math.log(2 / alpha) / (variance * t * math.log(t + 1)))
        more *= 1 + (min(bet, TRUNCATION / m) if m > 0 else bet) * (samples[t - 1] - m)
        less *= 1 - (min(bet, TRUNCATION / (1 - m)) if m < 1 else bet) * (samples[t - 1] - m)
        history.append((more, less))
    return history


@pytest.mark.parametrize("alpha", [0.05, 0.5])
@pytest.mark.parametrize("p", [0.0, 0.2, 1.0])
def test_limits_are_the_candidates_that_no_gambler_has_beaten(alpha: float, p: float) -> None:
    rng = np.random.default_rng(1)
    samples = np.where(rng.random(150) < 0.5, (rng.random(150) < p) * 1.0, p)
    lower, upper = confidence_sequence(samples, alpha, grid=20)
    expected_lower, expected_upper = np.zeros(150), np.ones(150)
    for m in np.linspace(0, 1, 21):
        for t, (more, less) in enumerate(capital_by_definition(samples, m, alpha)):
            if more >= 2 / alpha:
                expected_lower[t:] = np.maximum(expected_lower[t:], m)
            if less >= 2 / alpha:
                expected_upper[t:] = np.minimum(expected_upper[t:], m)
    np.testing.assert_array_equal(lower, expected_lower)
    np.testing.assert_array_equal(upper, expected_upper)
    assert upper[-1] - lower[-1] < 0.6


def test_limits_shrink_round_outwards_and_mirror() -> None:
    samples = np.random.default_rng(0).beta(1, 4, 700)
    lower, upper = confidence_sequence(samples, 0.05)
    assert lower.shape == upper.shape == (700,)
    assert (np.diff(lower) >= 0).all() and (np.diff(upper) <= 0).all()
    assert 0 <= lower[-1] < 0.2 < upper[-1] <= 0.3 and upper[-1] - lower[-1] < 0.06
    coarse_lower, coarse_upper = confidence_sequence(samples, 0.05, grid=10)
    assert (coarse_lower <= lower + 1e-12).all() and (coarse_upper >= upper - 1e-12).all()
    mirrored_lower, mirrored_upper = confidence_sequence(1 - samples, 0.05)
    np.testing.assert_allclose(1 - mirrored_upper, lower, atol=1.0001e-3)
    np.testing.assert_allclose(1 - mirrored_lower, upper, atol=1.0001e-3)
    # What comes later does not change what was known before.
    early_lower, early_upper = confidence_sequence(samples[:301], 0.05)
    np.testing.assert_array_equal(early_lower, lower[:301])
    np.testing.assert_array_equal(early_upper, upper[:301])


def bernoulli(p: float) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: (rng.random(1024) < p) * 1.0


def spike(rng: np.random.Generator) -> np.ndarray:
    return np.where(rng.random(1024) < 0.01, 1.0, 0.05 * rng.random(1024))


DISTRIBUTIONS = {
    "Bernoulli(0.5)": (bernoulli(0.5), 0.5),
    "Bernoulli(0.02)": (bernoulli(0.02), 0.02),
    "Beta(1/2, 2)": (lambda rng: rng.beta(0.5, 2, 1024), 0.2),
    "rare spike": (spike, 0.99 * 0.025 + 0.01),
    "point at 0.3": (lambda rng: np.full(1024, 0.3), 0.3),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.slow
def test_a_verdict_at_the_threshold_is_rare_however_long_one_looks(name: str) -> None:
    draw, mean = DISTRIBUTIONS[name]
    for alpha in (0.05, 0.01):
        rng = np.random.default_rng(0)
        wrong = 0
        for _ in range(REPETITIONS):
            wrong += SequentialTest(mean, alpha, grid=1).update(draw(rng)).verdict != "undecided"
        assert wrong <= stats.binom.ppf(0.999999, REPETITIONS, alpha)


@pytest.mark.parametrize("name", ["Bernoulli(0.02)", "rare spike"])
@pytest.mark.slow
def test_limits_hold_at_every_time_at_once(name: str) -> None:
    draw, mean = DISTRIBUTIONS[name]
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(REPETITIONS):
        lower, upper = confidence_sequence(draw(rng), 0.05, grid=50)
        missed += bool(((lower > mean + 1e-12) | (upper < mean - 1e-12)).any())
    assert missed <= stats.binom.ppf(0.999999, REPETITIONS, 0.05)


def test_the_usual_interval_looked_at_again_and_again_would_not_hold() -> None:
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(REPETITIONS):
        samples, n = bernoulli(0.5)(rng), np.arange(1, 1025)
        missed += bool((np.abs(samples.cumsum() / n - 0.5) > 1.96 * 0.5 / np.sqrt(n))[30:].any())
    assert missed > stats.binom.ppf(0.999999, REPETITIONS, 0.05)


@pytest.mark.slow
def test_stops_early_far_from_the_threshold() -> None:
    rng = np.random.default_rng(0)
    for draw, threshold, verdict, at_most in (
        (bernoulli(0.0), 0.1, "below", 70),
        (bernoulli(0.0), 0.01, "below", 710),
        (bernoulli(0.5), 0.1, "above", 60),
        (bernoulli(0.3), 0.8, "below", 60),
        (spike, 0.2, "below", 200),
    ):
        used = []
        for _ in range(20):
            decision = SequentialTest(threshold, 0.01).update(draw(rng))
            assert decision.verdict == verdict and decision.saved == 1024 - decision.samples
            assert (decision.upper <= threshold) if verdict == "below" else (decision.lower >= threshold)
            used.append(decision.samples)
        assert max(used) <= at_most


def test_no_leak_at_all_by_hand() -> None:
    # Each zero multiplies the lower gambler's capital by 1 + c m / (1 - m), as soon as bets are that large.
    growth = math.log1p(TRUNCATION * 0.1 / 0.9)
    decision = SequentialTest(0.1, 0.05, reference=100).update(np.zeros(1024))
    assert decision.samples == math.ceil(math.log(2 / 0.05) / growth)
    assert decision.saved == 100 - decision.samples and decision.lower == 0.0
    assert 0.097 < decision.upper <= 0.1


def test_how_samples_are_cut_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    for p, threshold in ((0.1, 0.2), (0.3, 0.2), (0.2, 0.2)):
        samples = np.where(rng.random(600) < 0.5, (rng.random(600) < p) * 1.0, p)
        whole = SequentialTest(threshold, 0.05)
        whole.update(samples)
        for cuts in ([1], [1, 2, 3], [127, 128, 129, 400], np.arange(1, 600), np.sort(rng.integers(1, 600, 12))):
            test = SequentialTest(threshold, 0.05)
            for part in np.split(samples, np.unique(cuts)):
                decision = test.update(part.tolist())
            assert test.decision is decision
            assert decision == whole.decision
        if whole.decision.verdict != "undecided":
            # The limits are those of the sequence, up to the threshold's own place in the grid.
            lower, upper = confidence_sequence(samples, 0.05)
            k = whole.decision.samples - 1
            assert (whole.decision.lower, whole.decision.upper) == pytest.approx((lower[k], upper[k]), abs=1e-12)


def test_a_verdict_stays() -> None:
    test = SequentialTest(0.5, 0.05)
    assert test.decision == Decision("undecided", 0, 1024, 0.0, 1.0)
    first = test.update([1.0])
    assert first.verdict == "undecided" and first.samples == 1 and first.saved == 1023
    verdict = test.update(np.ones(100))
    assert verdict.verdict == "above" and verdict.samples < 30
    assert test.update(np.zeros(2000)) == verdict
    undecided = SequentialTest(0.5, 0.05, reference=10).update(np.tile([0.0, 1.0], 20))
    assert undecided.verdict == "undecided" and undecided.saved == -30


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no samples"),
        (0.5, "samples must be"),
        ([[0.5, 0.5]], "samples must be"),
        ([0.5, math.nan], "samples must not be NaN"),
        ([0.5, 1.01], "samples must lie in"),
        ([-0.01], "samples must lie in"),
    ],
)
def test_bad_samples(samples: ArrayLike, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        confidence_sequence(samples, 0.05)
    decided = SequentialTest(0.5, 0.05)
    decided.update(np.ones(100))
    for test in (SequentialTest(0.5, 0.05), decided):
        before = test.decision
        with pytest.raises(ValueError, match=message):
            test.update(samples)
        assert test.decision == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": 0.0}, "threshold must lie in"),
        ({"threshold": 1.0}, "threshold must lie in"),
        ({"threshold": math.nan}, "threshold must lie in"),
        ({"alpha": 0.0}, "alpha must lie in"),
        ({"alpha": 0.6}, "alpha must lie in"),
        ({"reference": 0}, "reference must be at least 1, got 0"),
        ({"grid": 0}, "at least 1 step, got 0"),
    ],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SequentialTest(**{"threshold": 0.5, "alpha": 0.05, **arguments})


def test_bad_arguments_of_the_sequence() -> None:
    with pytest.raises(ValueError, match="alpha must lie in"):
        confidence_sequence([0.5], math.nan)
    with pytest.raises(ValueError, match="at least 1 step, got 0"):
        confidence_sequence([0.5], 0.05, grid=0)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.6])
def test_a_threshold_between_two_steps_of_the_grid_is_judged_by_itself(value: float) -> None:
    """1/4 lies on the fine grid only; the verdict comes as soon either way."""
    coarse, fine = (SequentialTest(0.25, 0.05, grid=grid).update([value] * 300) for grid in (10, 1000))
    assert coarse.verdict == fine.verdict == ("below" if value == 0 else "above")
    assert coarse.samples == fine.samples < 300
