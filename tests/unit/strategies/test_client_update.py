"""The shares of clients in a mean, against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from flwr.app import ArrayRecord

from strategies.client_update import ClientUpdate, shares


@pytest.mark.parametrize(
    "weights", [[3.0], [1.0, 2.0, 5.0], [1.7e308, 1.7e308], [1.7e308, 1.0, 1.7e308, 1e300], [1e-300, 1.7e308, 1e308]]
)
def test_shares_are_those_of_the_weights_also_where_their_sum_is_more_than_a_float_holds(weights):
    found = shares([ClientUpdate(k, weight, ArrayRecord()) for k, weight in enumerate(weights)])
    total = sum(map(Fraction, weights))
    assert found == [pytest.approx(float(Fraction(weight) / total), rel=1e-12) for weight in weights]
    assert sum(found) == pytest.approx(1, rel=1e-15)
