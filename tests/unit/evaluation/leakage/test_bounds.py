"""Each bound against its written-out definition, numbers by hand, and how often it fails on known distributions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy import optimize, stats

from evaluation.leakage.bounds import (
    binary_leakage_bound,
    ed_score,
    expectation_bounds,
    expectation_upper_bound,
    general_leakage_bound,
    samples_needed,
    std_upper_bound,
)

GRID = np.linspace(0, 1, 100)
REPETITIONS = 2000


def cdf(samples: ArrayLike, x: float) -> float:
    values = np.asarray(samples).tolist()
    return sum(value <= x for value in values) / len(values)


def band(samples: ArrayLike, x: float, eps: float) -> tuple[float, float]:
    return max(0.0, cdf(samples, x) - eps), min(1.0, cdf(samples, x) + eps)


def two_sided(n: int, alpha: float) -> float:
    return math.sqrt(math.log(2 / alpha) / (2 * n))


def one_sided(n: int, alpha: float) -> float:
    return math.sqrt(math.log(1 / alpha) / (2 * n))


def mean_by_definition(samples: ArrayLike, eps: float, tau: np.ndarray) -> tuple[float, float]:
    low = high = 1.0
    for i in range(len(tau) - 1):
        high -= (tau[i + 1] - tau[i]) * band(samples, tau[i], eps)[0]
        low -= (tau[i + 1] - tau[i]) * band(samples, tau[i + 1], eps)[1]
    return low, high


def variance_by_definition(samples: ArrayLike, eps: float, tau: np.ndarray, *, first_term: bool) -> float:
    """Metric 4; with first_term as printed, where the bins are open at the left and the mass at 0 is lost."""
    means = mean_by_definition(samples, eps, tau)
    eta = [max((k - a) ** 2 for k in tau[i : i + 2] for a in means) for i in range(len(tau) - 1)]
    total = eta[-1] - (eta[0] * band(samples, tau[0], eps)[0] if first_term else 0)
    for i in range(1, len(eta)):
        delta = eta[i - 1] - eta[i]
        total += delta * band(samples, tau[i], eps)[int(delta > 0)]
    return total


def some_samples(seed: int, n: int) -> np.ndarray:
    """(6, n): rounded and with ties, at the ends, constant, spread out."""
    rng = np.random.default_rng(seed)
    rows = [rng.random(n), rng.beta(0.2, 2, n), (rng.random(n) < 0.4) * 1.0, np.zeros(n), np.ones(n)]
    return np.array([*rows, rng.choice(GRID, n)])


@pytest.mark.parametrize("n", [1, 2, 7, 60])
@pytest.mark.parametrize("alpha", [0.01, 0.5])
def test_partitioned_bounds_are_their_definitions(n: int, alpha: float) -> None:
    samples = some_samples(n, n)
    for tau in (GRID, np.array([0, 0.1, 0.11, 0.8, 1]), np.array([0, 1])):
        lower, upper = expectation_bounds(samples, alpha, tau)
        alone, spread = expectation_upper_bound(samples, alpha, tau), std_upper_bound(samples, alpha, tau)
        expected = [mean_by_definition(row, two_sided(n, alpha), tau) for row in samples]
        np.testing.assert_allclose(np.stack([lower, upper], axis=1), expected, atol=1e-12)
        expected = [mean_by_definition(row, one_sided(n, alpha), tau)[1] for row in samples]
        np.testing.assert_allclose(alone, expected, atol=1e-12)
        expected = [variance_by_definition(row, two_sided(n, alpha), tau, first_term=False) for row in samples]
        np.testing.assert_allclose(np.square(spread), expected, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 7, 300])
def test_general_bound_is_its_definition_at_and_between_the_samples(n: int) -> None:
    samples = some_samples(n, n)
    x = np.random.default_rng(0).permutation(np.concatenate([GRID, samples[0, :5], samples[1, :5], [0, 1, 1]]))
    bound = np.asarray(general_leakage_bound(samples, x, 0.05))
    assert bound.shape == (6, x.size)
    expected = [[min(1, 1 - cdf(row, at) + one_sided(n, 0.05)) for at in x] for row in samples]
    np.testing.assert_allclose(bound, expected, atol=1e-12)
    np.testing.assert_array_equal(general_leakage_bound(samples, x[3], 0.05), bound[:, 3])
    np.testing.assert_array_equal(general_leakage_bound(samples[0], x, 0.05), bound[0])
    assert general_leakage_bound(samples[0], float(x[3]), 0.05) == bound[0, 3]


def test_the_whole_band_is_the_limit_of_partitions() -> None:
    samples = some_samples(3, 30)
    tau = np.unique(np.concatenate([np.linspace(0, 1, 20_001), samples.ravel(), np.nextafter(samples.ravel(), 0)]))
    for row in samples:
        assert expectation_bounds(row, 0.05) == pytest.approx(expectation_bounds(row, 0.05, tau), abs=1e-4)


def worst_spread(samples: np.ndarray, eps: float, centre: float) -> float:
    """Largest E[(X - centre)^2] in the band: the mass eps at each end replaces what is nearest to the centre."""
    atoms = [((x - centre) ** 2, 1 / len(samples)) for x in samples.tolist()]
    left, total = 1.0, 0.0
    for value, mass in sorted([*atoms, (centre**2, eps), ((1 - centre) ** 2, eps)], reverse=True):
        total += value * min(mass, left)
        left -= min(mass, left)
    return total


@pytest.mark.parametrize("n", [1, 5, 40, 333])
def test_std_without_a_partition_is_the_largest_in_the_band(n: int) -> None:
    # The variance is the least mean square distance from a centre; largest and least may be exchanged.
    for alpha in (0.01, 0.3):
        eps = two_sided(n, alpha)
        for row in some_samples(n, n):
            least: Any = optimize.minimize_scalar(
                lambda centre, row=row, eps=eps: worst_spread(row, eps, centre), bounds=(0, 1), options={"xatol": 1e-9}
            )
            assert np.square(std_upper_bound(row, alpha)) == pytest.approx(least.fun, abs=1e-7)


def test_std_bound_is_reached_within_the_band() -> None:
    rng = np.random.default_rng(0)
    for row in some_samples(1, 50):
        bound, eps, ordered = std_upper_bound(row, 0.05), two_sided(50, 0.05), np.sort(row)
        reached = 0.0
        for start in np.append(np.linspace(0, 1 - 2 * eps, 200), rng.random(50) * (1 - 2 * eps)):
            removed = np.clip(np.minimum(np.arange(1, 51) / 50, start + 2 * eps), start, None)
            removed -= np.clip(np.arange(50) / 50, start, start + 2 * eps)
            masses = np.concatenate([[eps], 1 / 50 - removed, [eps]])
            assert masses.min() > -1e-12 and masses.sum() == pytest.approx(1)
            atoms = np.concatenate([[0], ordered, [1]])
            mean = (masses * atoms).sum()
            reached = max(reached, math.sqrt((masses * (atoms - mean) ** 2).sum()))
        assert reached <= np.asarray(bound) + 1e-12
        assert reached == pytest.approx(bound, abs=1e-3)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from([0.0, 1.0, 0.5, *GRID[:7].tolist()]) | st.floats(0, 1, allow_subnormal=False),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from([0.001, 0.05, 0.5]),
    st.lists(st.floats(1e-6, 1 - 1e-6, allow_subnormal=False), unique=True, max_size=30),
)
def test_without_a_partition_no_bound_is_looser(samples: list[float], alpha: float, inner: list[float]) -> None:
    lower, upper = expectation_bounds(samples, alpha)
    alone, spread = expectation_upper_bound(samples, alpha), std_upper_bound(samples, alpha)
    assert 0 <= lower <= np.mean(samples) + 1e-9 and np.mean(samples) - 1e-9 <= alone <= upper + 1e-12 <= 1 + 1e-12
    assert np.std(samples) - 1e-9 <= spread <= 0.5
    # Bhatia-Davis
    worst = np.clip(0.5, lower, upper)
    assert spread <= math.sqrt(worst * (1 - worst)) + 1e-9
    for tau in (GRID, [0.0, *sorted(inner), 1.0], np.unique([0.0, *samples, 1.0])):
        coarse_lower, coarse_upper = expectation_bounds(samples, alpha, tau)
        assert lower >= coarse_lower - 1e-12 and upper <= coarse_upper + 1e-12
        assert alone <= expectation_upper_bound(samples, alpha, tau) + 1e-12
        assert spread <= std_upper_bound(samples, alpha, tau) + 1e-9


def test_numbers_by_hand() -> None:
    n, alpha = 1024, 0.01
    zeros, ones, eps = np.zeros(n), np.ones(n), two_sided(n, alpha)
    assert expectation_bounds(zeros, alpha) == pytest.approx((0, eps))
    assert expectation_bounds(ones, alpha) == pytest.approx((1 - eps, 1))
    assert expectation_upper_bound(zeros, alpha) == pytest.approx(one_sided(n, alpha))
    # Mass eps moves to 1.
    assert std_upper_bound(zeros, alpha) == pytest.approx(math.sqrt(eps * (1 - eps)))
    assert std_upper_bound(ones, alpha) == pytest.approx(math.sqrt(eps * (1 - eps)))
    # Mass eps moves to 0 and to 1.
    assert std_upper_bound(zeros + 0.5, alpha) == pytest.approx(math.sqrt(2 * eps / 4))
    assert std_upper_bound(np.repeat([0.0, 1.0], n // 2), alpha) == pytest.approx(0.5)
    assert std_upper_bound([0.3], alpha) == 0.5
    assert general_leakage_bound(np.repeat([0.0, 0.4], n // 2), 0.4, alpha) == pytest.approx(one_sided(n, alpha))
    assert general_leakage_bound(np.repeat([0.0, 0.4], n // 2), 0.3, alpha) == pytest.approx(0.5 + one_sided(n, alpha))
    assert ed_score([0.0, 1.0, 0.5, 0.5]) == pytest.approx(0.5 + 2 * math.sqrt(1 / 8))
    np.testing.assert_allclose(ed_score([[0.0, 1.0], [0.5, 0.5]], rho=1), [1.0, 0.5])


def test_samples_needed() -> None:
    assert samples_needed(0.05, 0.05) == 738
    for epsilon in (0.3, 0.05, 0.011):
        for alpha in (0.5, 0.01):
            n = samples_needed(epsilon, alpha)
            assert two_sided(n, alpha) <= epsilon < two_sided(n - 1, alpha)
    assert samples_needed(5, 0.5) == 1


@pytest.mark.parametrize("alpha", [0.5, 0.01, 1e-18])
def test_binary_bound_is_where_so_few_successes_have_probability_alpha(alpha: float) -> None:
    n = 50
    bounds = np.asarray(binary_leakage_bound(np.arange(n + 1), n, alpha))
    assert bounds[n] == 1.0 and binary_leakage_bound(n, n, alpha) == 1.0
    assert bounds[0] == pytest.approx(1 - alpha ** (1 / n), abs=1e-12)
    assert (np.diff(bounds) >= 0).all()
    for successes in range(n):
        assert binary_leakage_bound(successes, n, alpha) == bounds[successes]
        if alpha > 1e-10:
            assert stats.binom.cdf(successes, n, bounds[successes]) == pytest.approx(alpha)
            assert bounds[successes] == pytest.approx(stats.beta.ppf(1 - alpha, successes + 1, n - successes))


@pytest.mark.parametrize(
    "bound",
    [
        lambda x: expectation_bounds(x, 0.05)[0],
        lambda x: expectation_bounds(x, 0.05)[1],
        lambda x: expectation_bounds(x, 0.05, GRID)[0],
        lambda x: expectation_upper_bound(x, 0.05),
        lambda x: std_upper_bound(x, 0.05),
        lambda x: std_upper_bound(x, 0.05, GRID),
        lambda x: general_leakage_bound(x, 0.2, 0.05),
        ed_score,
    ],
)
@pytest.mark.parametrize("n", [1, 64])
def test_questions_side_by_side_give_the_same(bound: Callable[[ArrayLike], float | np.ndarray], n: int) -> None:
    samples = some_samples(5, n)
    before = samples.copy()
    together = bound(samples)
    assert isinstance(together, np.ndarray) and together.shape == (6,)
    np.testing.assert_array_equal(samples, before)
    for row, value in zip(samples, together, strict=True):
        alone = bound(row.tolist())
        assert isinstance(alone, float) and alone == pytest.approx(value, abs=1e-14)
    # The order of the samples does not matter.
    np.testing.assert_allclose(bound(samples[:, ::-1]), together, atol=1e-14)


def spike(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return np.where(rng.random(shape) < 0.01, 1.0, 0.05 * rng.random(shape))


SPIKE_STD = math.sqrt(0.99 * 0.05**2 / 3 + 0.01 - (0.99 * 0.025 + 0.01) ** 2)
BERNOULLI = {f"Bernoulli({p})": p for p in (0.5, 0.02, 0.97)}
POINTS = {f"point at {p}": p for p in (0.0, 0.3, 1.0)}
DISTRIBUTIONS: dict[str, tuple[Callable, float, float]] = {
    **{
        key: (lambda rng, shape, p=p: (rng.random(shape) < p) * 1.0, p, math.sqrt(p * (1 - p)))
        for key, p in BERNOULLI.items()
    },
    **{key: (lambda rng, shape, p=p: np.full(shape, p), p, 0.0) for key, p in POINTS.items()},
    "Beta(1/2, 2)": (lambda rng, shape: rng.beta(0.5, 2, shape), 0.2, math.sqrt(0.16 / 3.5)),
    "rare spike": (spike, 0.99 * 0.025 + 0.01, SPIKE_STD),
}


LEAKAGES = np.array([0, 0.05, 0.3, 0.9])


@functools.cache
def exceeding(name: str) -> np.ndarray:
    """Probability to lie above each of `LEAKAGES`, from a million draws."""
    return (DISTRIBUTIONS[name][0](np.random.default_rng(0), (1000, 1000))[..., None] > LEAKAGES).mean((0, 1))


@pytest.mark.parametrize("n", [16, 128, 1024])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_bound_fails_in_at_most_a_share_alpha(name: str, n: int) -> None:
    draw, mean, std = DISTRIBUTIONS[name]
    samples = draw(np.random.default_rng(n), (REPETITIONS, n))
    for alpha in (0.05, 0.01):
        missed: dict[str, np.ndarray] = {}
        for tau in (None, GRID):
            lower, upper = expectation_bounds(samples, alpha, tau)
            kind = "whole band" if tau is None else "grid"
            missed[f"mean, {kind}"] = (np.asarray(lower) > mean + 1e-12) | (np.asarray(upper) < mean - 1e-12)
            missed[f"M_mu, {kind}"] = np.asarray(expectation_upper_bound(samples, alpha, tau)) < mean - 1e-12
            missed[f"M_sigma, {kind}"] = np.asarray(std_upper_bound(samples, alpha, tau)) < std - 1e-12
        # 5e-3: the true probabilities are themselves estimated.
        bound = np.asarray(general_leakage_bound(samples, LEAKAGES, alpha))
        missed["M_gen"] = (bound < exceeding(name) - 5e-3).any(-1)
        if name in BERNOULLI or mean in (0.0, 1.0):
            successes = samples.sum(-1).astype(int)
            missed["M_bin"] = np.asarray(binary_leakage_bound(successes, n, alpha)) < mean - 1e-12
        allowed = stats.binom.ppf(0.999999, REPETITIONS, alpha)
        counts = {bound: int(misses.sum()) for bound, misses in missed.items()}
        assert all(count <= allowed for count in counts.values()), (alpha, counts)


def test_std_bound_as_printed_fails_on_a_fair_coin() -> None:
    samples = (np.random.default_rng(0).random((6, 1024)) < 0.5) * 1.0
    eps = two_sided(1024, 0.01)
    printed = [math.sqrt(variance_by_definition(row, eps, GRID, first_term=True)) for row in samples]
    assert max(printed) < 0.46
    assert np.min(std_upper_bound(samples, 0.01)) == pytest.approx(0.5)
    assert np.min(std_upper_bound(samples, 0.01, GRID)) >= 0.5


@pytest.mark.parametrize("alpha", [0.0, -0.1, 0.51, 1.0, math.nan])
def test_bad_alpha(alpha: float) -> None:
    calls: list[Callable[[], object]] = [
        lambda: binary_leakage_bound(0, 5, alpha),
        lambda: general_leakage_bound([0.5], 0.5, alpha),
        lambda: expectation_bounds([0.5], alpha),
        lambda: expectation_upper_bound([0.5], alpha),
        lambda: std_upper_bound([0.5], alpha),
        lambda: samples_needed(0.1, alpha),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="alpha must lie in"):
            call()


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no samples"),
        (np.empty((3, 0)), "no samples"),
        (0.5, "samples must be"),
        (np.zeros((2, 2, 2)), "samples must be"),
        ([0.1, math.nan], "samples must not be NaN"),
        ([0.1, 1.1], "samples must lie in"),
        ([[0.1], [-0.1]], "samples must lie in"),
    ],
)
def test_bad_samples(samples: ArrayLike, message: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: general_leakage_bound(samples, 0.5, 0.05),
        lambda: expectation_bounds(samples, 0.05),
        lambda: expectation_upper_bound(samples, 0.05),
        lambda: std_upper_bound(samples, 0.05),
        lambda: ed_score(samples),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    "partition", [[], [0], [0, 0.5], [0.1, 1], [0, 0.5, 0.5, 1], [0, 0.6, 0.5, 1], [[0, 1]], [0, math.nan, 1]]
)
def test_bad_partition(partition: ArrayLike) -> None:
    for bound in (expectation_bounds, expectation_upper_bound, std_upper_bound):
        with pytest.raises(ValueError, match="partition must"):
            bound([0.5], 0.05, partition)


@pytest.mark.parametrize("successes", [-1, 6, [0, 6], 2.5, math.nan])
def test_bad_successes(successes: ArrayLike) -> None:
    with pytest.raises(ValueError, match=r"successes must be whole numbers in 0\.\.5"):
        binary_leakage_bound(successes, 5, 0.05)


def test_other_bad_arguments() -> None:
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        binary_leakage_bound(0, 0, 0.05)
    with pytest.raises(ValueError, match="successes must be one number"):
        binary_leakage_bound([[1]], 5, 0.05)
    with pytest.raises(ValueError, match="x must be one number"):
        general_leakage_bound([0.5], [[0.5]], 0.05)
    with pytest.raises(ValueError, match="x must lie in"):
        general_leakage_bound([0.5], 1.5, 0.05)
    with pytest.raises(ValueError, match="x must not be NaN"):
        general_leakage_bound([0.5], math.nan, 0.05)
    for rho in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="rho must be finite"):
            ed_score([0.5], rho)
    for epsilon in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="epsilon must be positive"):
            samples_needed(epsilon, 0.05)
