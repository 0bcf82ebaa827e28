"""Shares of a count against decimal arithmetic, and where Flower and the configuration count by them."""

from __future__ import annotations

import math
import random
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

import numpy as np
import pytest
from flwr.app import ConfigRecord
from support.fedtu_clients import adapter, federation

from strategies.client_update import ClientUpdate
from strategies.exact_shares import above, ceil_of, floor_of, parts_in
from strategies.rounds.client_selection import further
from strategies.rules.factory import build


def test_they_are_those_of_the_decimals_that_were_written() -> None:
    wrong = 0
    for thousandths in range(1, 1001):
        share, written = thousandths / 1000, Decimal(thousandths) / 1000
        for count in (1, 3, 7, 10, 29, 30, 100, 1000):
            exact = written * count
            assert floor_of(share, count) == int(exact.to_integral_value(ROUND_FLOOR)) == int(count * above(share))
            assert ceil_of(share, count) == int(exact.to_integral_value(ROUND_CEILING))
            assert parts_in(count, share) == int(count / written)
            wrong += int(share * count) != floor_of(share, count)
    assert wrong, "the float product alone is one too few"
    assert (floor_of(np.float64(0.29), 100), floor_of(1.0, 7), floor_of(0.0, 7), above(0.0)) == (29, 7, 0, 0.0)


def updates(count: int) -> list[ClientUpdate]:
    """Client k sends the number k², all of one weight."""
    return [ClientUpdate(k, 1, adapter([float(k * k)] * 2), 1) for k in range(count)]


@pytest.mark.parametrize(("beta", "count", "cut"), [(0.29, 100, 29), (0.35, 180, 63), (0.2, 9, 1), (0.49, 3, 1)])
def test_the_trimmed_mean_cuts_off_what_is_written(beta: float, count: int, cut: int) -> None:
    strategy = build("fedtrimmedmean", beta=beta)
    found = strategy.combine(adapter([0.0, 0.0]), updates(count))["adapter"].numpy()
    kept = [k * k for k in range(cut, count - cut)]
    np.testing.assert_allclose(found, sum(kept) / len(kept), rtol=1e-6)


@pytest.mark.parametrize(
    ("fraction", "clients", "drawn"), [(0.29, 100, 29), (0.57, 100, 57), (0.1, 30, 3), (1.0, 7, 7)]
)
def test_a_round_draws_the_share_that_is_written(fraction: float, clients: int, drawn: int) -> None:
    strategy = build("fedavg", fraction_train=fraction)
    messages = strategy.configure_train(1, adapter([0.0]), ConfigRecord(), federation(clients))
    assert len(list(messages)) == drawn


def test_of_no_share_nothing_is_above() -> None:
    """Flower takes a share of 0 for "nobody", and asks at least one client for any other."""
    assert above(0.0) == 0.0 and above(0.5) > 0.5 == floor_of(above(0.5), 2) / 2
    assert (
        list(build("fedavg", fraction_train=0.0).configure_train(1, adapter([0.0]), ConfigRecord(), federation(3)))
        == []
    )


def test_beyond_need_no_client_more_is_asked_than_written() -> None:
    strategy = build("fedavg", fraction_train=0.25)
    grid = federation(100)
    messages = list(strategy.configure_train(1, adapter([0.0]), ConfigRecord(), grid))
    random.seed(0)
    assert math.ceil(2.2 * 25) == 56
    assert len(further(messages, list(grid.get_node_ids()), 2.2)) == 30
