"""The rebound of forgotten records, by curves worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluation.metrics.rebound import Curve, mean_shares, rebound_metrics


def curve(*later, before=0.9, after=0.1):
    return Curve("r", 1, before, after, later)


@pytest.mark.parametrize(
    ("later", "life"),
    [
        ([0.5, 0.1], 0.0),
        ([0.1, 0.49, 0.51], 2.0),
        ([0.1, 0.3, 0.9, 0.1], 2.0),
        ([0.1, 0.2], math.inf),
        ([], math.inf),
    ],
)
def test_the_half_life_is_the_first_round_by_which_half_is_back(later, life):
    """0.8 was forgotten, so half of it is back at 0.5; that counts as half."""
    assert curve(*later).half_life == life


@pytest.mark.parametrize(("before", "known"), [(0.51, True), (0.509, False), (0.4, False)])
def test_what_fell_by_less_than_a_hundredth_was_not_forgotten(before, known):
    found = curve(0.6, before=before, after=0.5)
    assert (found.shares is not None) is known is (found.half_life is not None)
    assert curve(0.6, before=0.01, after=0.0).shares is not None, "a hundredth to the last bit"


def test_shares_of_what_was_forgotten():
    np.testing.assert_allclose(curve(0.1, 0.5, 1.3, 0.0).shares, [0, 0.5, 1.5, -0.125])


@pytest.mark.parametrize(
    ("lives", "median"),
    [([1], 1), ([1, 3], 1), ([3, 1, 2], 2), ([1, 2, 3, None], 2), ([1, None], 1), ([1, None, None], None)],
)
def test_the_lower_median_half_life_where_most_came_back(lives, median):
    """None: half of it never came back within five rounds."""
    curves = [curve(*[0.9 if life is not None and i >= life else 0.1 for i in range(5)]) for life in lives]
    found = rebound_metrics(curves)
    assert found.get("half_life_median") == median
    assert found["censored_share"] == pytest.approx(lives.count(None) / len(lives))


def test_metrics_are_of_the_requests_that_forgot_something():
    curves = [curve(0.1, 0.5), curve(0.3, 0.3, 0.4, before=0.5, after=0.3), curve(0.2, before=0.2, after=0.2), curve()]
    found = rebound_metrics(curves)
    assert found["requests"] == 2 and found["forgotten"] == pytest.approx((0.8 + 0.2) / 2)
    assert found["share_back_at_end"] == pytest.approx((0.5 + 0.5) / 2) and found["half_life_median"] == 1
    assert rebound_metrics([]) == {}
    assert rebound_metrics([curve(0.2, before=0.2, after=0.2)]) == {"requests": 0.0}


def test_the_mean_share_of_each_round_is_over_those_measured_for_so_long():
    curves = [curve(0.1, 0.5, 0.9), curve(0.9), curve(0.3, before=0.3, after=0.3)]
    np.testing.assert_allclose(mean_shares(curves), [0.5, 0.5, 1.0])
    assert mean_shares([]).shape == (0,)
