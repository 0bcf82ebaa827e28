"""`leakage_bounds`: each number is that of its own function, in the shape of the scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oblivionis import leakage, leakage_bounds

SCORES = np.random.default_rng(1).beta(1, 3, size=(4, 50))


@pytest.mark.parametrize("scores", [SCORES, SCORES[0], SCORES.tolist()], ids=["many", "one", "lists"])
def test_the_bounds_are_those_of_the_functions(scores: Any) -> None:
    found = leakage_bounds(scores, 0.05, leaks_from=0.25, rho=1.0)
    values = np.asarray(scores)
    lower, upper = leakage.expectation_bounds(values, 0.05)
    expected = {
        "mean": values.mean(-1),
        "std": values.std(-1),
        "max": values.max(-1),
        "ed": values.mean(-1) + values.std(-1),
        "mu_lower": lower,
        "mu_upper": upper,
        "m_mu": leakage.expectation_upper_bound(values, 0.05),
        "m_sigma": leakage.std_upper_bound(values, 0.05),
        "m_bin": leakage.binary_leakage_bound((values >= 0.25).sum(-1), 50, 0.05),
    }
    for name, value in expected.items():
        np.testing.assert_array_equal(getattr(found, name), value, name)
        assert getattr(found, name).shape == values.shape[:-1]
    assert (found.samples, found.alpha) == (50, 0.05)


def test_the_bounds_of_all_questions_hold_at_once() -> None:
    together, each = leakage_bounds(SCORES, 0.04, family_wise=True), leakage_bounds(SCORES, 0.01)
    assert together.alpha == each.alpha == 0.01
    np.testing.assert_array_equal(together.m_bin, each.m_bin)
    assert leakage_bounds(SCORES[0], 0.04, family_wise=True).alpha == 0.04


@pytest.mark.parametrize(
    ("scores", "settings", "message"),
    [
        ([0.5, 1.5], {}, "must lie in"),
        ([0.5, float("nan")], {}, "must not be NaN"),
        ([], {}, "no samples"),
        (0.5, {}, "samples must be"),
        ([0.5], {"alpha": 0.6}, "alpha must lie in"),
        ([0.5], {"leaks_from": 0.0}, "leaks_from must lie in"),
        ([0.5], {"rho": -1.0}, "rho must be finite"),
    ],
)
def test_values_out_of_range_are_told(scores: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        leakage_bounds(scores, **settings)
