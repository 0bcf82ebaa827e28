"""ε against the definitions, written out once more."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from oblivionis.runs import epsilon as account
from oblivionis.runs.epsilon import Event, added, calibrated, epsilon, unsampled

DELTA = 1e-3


def gaussian_delta(eps: float, sigma: float) -> float:
    """Balle and Wang 2018, Theorem 8, for a sensitivity of 1."""
    return stats.norm.cdf(0.5 / sigma - eps * sigma) - math.exp(eps) * stats.norm.cdf(-0.5 / sigma - eps * sigma)


def converted(orders: np.ndarray, renyi: np.ndarray, delta: float) -> float:
    """Canonne, Kamath and Steinke 2020, Proposition 12."""
    bounds = renyi + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    return max(0.0, float(bounds.min()))


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("count", [1, 16])
def test_plain_gaussians_compose_as_one_with_less_noise(sigma, count):
    found = epsilon({Event(sigma): count}, DELTA)
    assert gaussian_delta(found, sigma / math.sqrt(count)) == pytest.approx(DELTA, rel=1e-6)


def test_a_replaced_client_moves_the_sum_by_twice_the_norm():
    """z = 4 clipping norms of noise stand against a move of 2: the multiplier is 2."""
    assert epsilon({Event.of_clients(4.0): 1}, DELTA) == epsilon({Event(2.0): 1}, DELTA)
    assert Event.of_clients(4.0, 3, 30) == Event(2.0, 3, 30)
    assert Event.of_records(4.0, 0.1) == Event(4.0, rate=0.1), "an added record moves it by one"


def test_drawing_everybody_is_no_drawing():
    assert epsilon({Event(2.0, 7, 7): 3, Event(2.0, rate=1.0): 2}, DELTA) == epsilon({Event(2.0): 5}, DELTA)


@pytest.mark.parametrize(("rate", "sigma", "steps"), [(0.1, 1.0, 50), (0.02, 0.8, 400), (0.4, 5.0, 20)])
def test_poisson_sampling_by_the_binomial_sum(rate, sigma, steps):
    """Mironov, Talwar and Zhang 2019, equation 6, at whole orders."""
    orders = np.array(account.ORDERS, dtype=float)
    renyi = []
    for order in orders:
        k = np.arange(order + 1)
        terms = special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
        terms += k * math.log(rate) + (order - k) * math.log1p(-rate) + k * (k - 1) / (2 * sigma**2)
        renyi.append(special.logsumexp(terms) / (order - 1))
    expected = converted(orders, steps * np.array(renyi), DELTA)
    assert epsilon({Event.of_records(sigma, rate): steps}, DELTA) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("clients", "population", "z"), [(3, 30, 4.0), (10, 100, 2.0), (1, 50, 8.0)])
def test_sampling_without_replacement_at_order_two(clients, population, z):
    """Wang, Balle and Kasiviswanathan 2019, Theorem 27, where its sum has one term; ε(2) of the Gaussian is 1/σ²."""
    event = Event.of_clients(z, clients, population)
    of_two = 1 / (z / 2) ** 2
    rate = clients / population
    expected = math.log1p(rate**2 * min(4 * math.expm1(of_two), 2 * math.exp(of_two)))
    assert account.renyi(event)[0] == pytest.approx(expected, rel=1e-9)


def test_sampling_helps_and_who_knows_the_draw_is_not_helped():
    events = {Event.of_clients(4.0, 3, 30): 20, Event.of_clients(4.0): 2}
    plain = epsilon({Event.of_clients(4.0): 22}, DELTA)
    assert epsilon(events, DELTA) < plain == unsampled(events, DELTA)
    loud = {Event.of_clients(0.5, 3, 30): 20}
    assert epsilon(loud, DELTA) <= unsampled(loud, DELTA), "the bound for samples alone may lie above"


def test_more_is_never_less():
    events: dict[Event, int] = {}
    last = 0.0
    for event in (Event(2.0, 3, 30), Event(2.0), Event(1.0, rate=0.2), Event(2.0, 3, 30)):
        events = added(events, {event: 1})
        assert epsilon(events, DELTA) > last
        last = epsilon(events, DELTA)
    assert epsilon({}, DELTA) == 0.0


@pytest.mark.parametrize("target", [0.5, 8.0])
def test_calibrated_noise_reaches_the_target_and_wastes_little(target):
    def planned(z):
        yield {Event.of_clients(z, 3, 30): 10, Event.of_clients(z): 4}
        yield {Event.of_clients(z, 3, 30): 10}

    z = calibrated(planned, target, DELTA)
    assert 0.98 * target <= epsilon(next(planned(z)), DELTA) <= target


def test_the_account_that_costs_most_decides():
    cheap, dear = {Event(9.0): 0}, 40

    def planned(z):
        return [cheap, {Event(z): dear}]

    assert calibrated(planned, 3.0, DELTA) == pytest.approx(calibrated(lambda z: [{Event(z): dear}], 3.0, DELTA))


def test_what_was_spent_before_cannot_be_taken_back():
    with pytest.raises(ValueError, match="no noise keeps ε within 1 at"):
        calibrated(lambda z: [{Event(0.5): 1, Event(z): 1}], 1.0, DELTA)
