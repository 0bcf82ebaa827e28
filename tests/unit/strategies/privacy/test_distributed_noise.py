"""Shares of discrete Gaussian noise against their probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from strategies.privacy.distributed_noise import (
    clipped,
    contribution,
    counting,
    discrete_gaussian,
    joint_norm,
    share_sigma,
    shortfall,
)


@pytest.mark.parametrize("sigma", [0.5, 0.9, 1.0, 3.7, 60.0])
def test_samples_have_the_probabilities_of_the_discrete_gaussian(sigma):
    """Chi-square against exp(−x²/2σ²), normalised; of another σ, three per cent off, it must not hold."""
    drawn = discrete_gaussian(400_000, sigma, np.random.default_rng(1))
    for claimed, holds in ((sigma, True), (1.03 * sigma, False)):
        support = np.arange(-math.ceil(12 * sigma), math.ceil(12 * sigma) + 1)
        probability = np.exp(-(support**2) / (2 * claimed**2))
        expected = probability / probability.sum() * drawn.size
        inner = expected >= 10
        observed = np.bincount(drawn - support[0], minlength=support.size)
        rest = [observed[~inner].sum()], [expected[~inner].sum()]
        found = stats.chisquare(np.append(observed[inner], rest[0]), np.append(expected[inner], rest[1]))
        assert (found.pvalue > 1e-3) == holds, (claimed, found.pvalue)


@pytest.mark.parametrize("sigma", [1e4, 1e7])
def test_a_wide_one_is_the_normal_distribution(sigma):
    drawn = discrete_gaussian(200_000, sigma, np.random.default_rng(2))
    assert drawn.dtype == np.int64
    assert stats.kstest(drawn / sigma, "norm").pvalue > 1e-3
    assert stats.kstest(drawn / (1.02 * sigma), "norm").pvalue < 1e-3


def test_a_seed_repeats_the_noise():
    assert np.array_equal(*(discrete_gaussian(100, 3.0, np.random.default_rng(5)) for _ in range(2)))
    assert discrete_gaussian(0, 3.0, np.random.default_rng(5)).shape == (0,)


def test_the_shares_of_the_survivors_add_up():
    """z = 1.5, C = 2, a step of 1/100, 400 numbers: the sum of 5 shares deviates by 1.5·(200 + 10)."""
    sigma = share_sigma(1.5, 2.0, 0.01, 400, 5)
    assert sigma == pytest.approx(1.5 * (200 + 10) / math.sqrt(5))
    rng = np.random.default_rng(3)
    total = sum(discrete_gaussian(100_000, sigma, rng) for _ in range(5))
    assert np.std(total) == pytest.approx(1.5 * 210, rel=0.01)
    assert stats.kstest(total / (1.5 * 210), "norm").pvalue > 1e-3


@pytest.mark.parametrize(("multiplier", "clients"), [(1.0, 100), (2.5, 30), (0.3, 3)])
def test_updates_and_their_count_are_together_as_private_as_updates_alone(multiplier, clients):
    """Andrew et al. 2021: 1/z² = 1/z_Δ² + 1/(2σ_b)², with the same noise on both in units of what they weigh."""
    norm = 0.7
    count = counting(multiplier, norm, clients)
    deviation = multiplier * joint_norm(norm, count)
    on_updates, on_count = deviation / norm, deviation / count
    assert 1 / multiplier**2 == pytest.approx(1 / on_updates**2 + 1 / (2 * on_count) ** 2)
    assert on_count == pytest.approx(max(clients / 20, multiplier))


def test_what_a_client_adds_says_whether_it_was_cut():
    np.testing.assert_allclose(contribution(np.array([3.0, 4.0]), 5.0, 0.2), [3.0, 4.0, 0.1])
    np.testing.assert_allclose(contribution(np.array([6.0, 8.0]), 5.0, 0.2), [3.0, 4.0, -0.1])
    np.testing.assert_allclose(contribution(np.array([6.0, 8.0]), 5.0, 0.0), [3.0, 4.0])


def test_no_rounded_update_is_longer_than_the_sensitivity():
    rng = np.random.default_rng(4)
    for scale in (0.1, 1.0, 100.0):
        update = clipped(rng.normal(size=400) * scale, 2.0)
        assert np.linalg.norm(np.rint(update / 0.01)) <= 2.0 / 0.01 + math.sqrt(400) / 2


def test_the_sum_of_shares_is_as_near_to_a_discrete_gaussian_as_the_theorem_says():
    """Two shares with σ = 0.6, convolved: the log-ratio to the discrete Gaussian of twice the variance."""
    sigma, support = 0.6, np.arange(-12, 13)
    one = np.exp(-(support**2) / (2 * sigma**2))
    both = np.convolve(one / one.sum(), one / one.sum())
    wide = np.arange(-24, 25)
    single = np.exp(-(wide**2) / (4 * sigma**2))
    ratio = np.log(both / (single / single.sum()))[12:-12]
    assert 1e-3 < np.abs(ratio).max() <= shortfall(sigma, 2)
    assert shortfall(2.0, 100) < 1e-14 and shortfall(1.0, 1) == 0.0


def test_a_grid_that_is_too_coarse_is_refused():
    with pytest.raises(ValueError, match="take a smaller step"):
        share_sigma(1.0, 1.0, 1.0, 100, 50)
    assert share_sigma(1.0, 1.0, 0.01, 100, 50) > 10


@pytest.mark.parametrize("bad", [(0, 1, 1, 1, 1), (1, -1, 1, 1, 1), (1, 1, math.nan, 1, 1), (1, 1, 1, 0, 1)])
def test_values_out_of_range(bad):
    with pytest.raises(ValueError, match="expected"):
        share_sigma(*bad)


@pytest.mark.parametrize(("size", "sigma"), [(1, 0), (1, -2.0), (1, math.nan), (-1, 1.0)])
def test_no_such_distribution(size, sigma):
    with pytest.raises(ValueError, match="expected size"):
        discrete_gaussian(size, sigma, np.random.default_rng(0))


def test_clipping_shortens_what_is_longer_and_nothing_else():
    short = np.array([[0.3, 0.0], [0.0, 0.4]], np.float32)
    assert np.array_equal(clipped(short, 0.5 + 1e-6), short.astype(np.float64))
    long = clipped(np.array([3e200, 4e200]), 2.0)
    np.testing.assert_allclose(long, [1.2, 1.6])
    assert clipped(np.zeros(3), 1.0).tolist() == [0, 0, 0]
    assert clipped(np.array([1e-300, 0.0]), 1.0)[0] == 1e-300
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="not finite"):
            clipped(np.array([bad]), 1.0)
    with pytest.raises(ValueError, match="norm is 0"):
        clipped(np.ones(2), 0)


@pytest.mark.parametrize("multiplier", [0.05, 1.0, 2.0])
def test_a_grid_is_fine_enough_by_the_theorem(multiplier):
    """The second part of ε, τ√d, is a millionth of the first, 1/z, at most: by the formula, on both sides of that."""
    seen = set()
    for step in np.geomspace(1e-2, 30.0, 800):
        sigma = multiplier * (1.0 / step + math.sqrt(2) / 2) / math.sqrt(5)
        tau = 10 * sum(math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, 5))
        fine = sigma >= 0.5 and tau * math.sqrt(2) <= 1e-6 / multiplier
        seen.add(fine)
        if fine:
            assert share_sigma(multiplier, 1.0, step, 2, 5) == pytest.approx(sigma)
        else:
            with pytest.raises(ValueError, match="take a smaller step"):
                share_sigma(multiplier, 1.0, step, 2, 5)
    assert seen == {True, False}


def test_noise_of_less_than_half_a_step_is_too_little_for_a_grid_whoever_is_left():
    """Of one client no theorem on sums says so: 0.1 · (1 + ½) steps; with z = ½ it is three quarters of a step."""
    with pytest.raises(ValueError, match=r"step is 1: with noise of 0.15 steps a share"):
        share_sigma(0.1, 1.0, 1.0, 1, 1)
    assert share_sigma(0.5, 1.0, 1.0, 1, 1) == 0.75
