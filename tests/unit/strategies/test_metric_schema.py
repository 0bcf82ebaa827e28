"""Which numbers of a reply are taken, and what is said of others."""

from __future__ import annotations

import math

import pytest
from flwr.app import MetricRecord

from strategies import metric_schema as tables
from strategies.metric_schema import Number, fault, known

NUMBERS = {"count": Number(0, 5, whole=True, required=True), "loss": Number(-1.5, 2)}


@pytest.mark.parametrize("value", [0, 5, 3])
def test_the_ends_of_a_range_are_in_it(value: int) -> None:
    assert fault({"count": value}, NUMBERS) == "" == fault({"count": 1, "loss": -1.5}, NUMBERS)


@pytest.mark.parametrize("value", [-1, 6, 1.0, True, "1", [1]])
def test_a_whole_number_in_its_range_is_expected(value: object) -> None:
    assert fault({"count": value}, NUMBERS) == f"metric 'count' is {value!r}, expected a whole number from 0 to 5"


@pytest.mark.parametrize("value", [-1.51, 2.1, math.nan, math.inf, True, None])
def test_a_number_in_its_range_is_expected(value: object) -> None:
    told = {"count": 1, "loss": value}
    assert fault(told, NUMBERS) == f"metric 'loss' is {value!r}, expected a number from -1.5 to 2"


def test_what_is_required_must_be_told_and_nothing_else_is_taken() -> None:
    assert fault({"loss": 1}, NUMBERS) == "metric 'count' is missing" and fault({"count": 1}, NUMBERS) == ""
    told = MetricRecord({"count": 1, "secret": 2.0, "partition-id": 3})
    assert dict(known(told, NUMBERS)) == {"count": 1, "partition-id": 3}


MOST = 9_007_199_254_740_992


def test_what_clients_may_tell_of_each_exchange() -> None:
    """(lowest, highest, whole, required); a calibration tells what training does, and counts hide what came of it."""
    weight, count, seconds = (1, MOST, True, True), (0, MOST, True, False), (0, 1e9, False, False)
    loss, nats = (-1e12, 1e12, False, False), (0, 1e9, False, False)
    train = {
        "num-examples": weight,
        "train-loss": (*loss[:3], True),
        "train-seconds": (*seconds[:3], True),
        "train-steps": count,
    }
    unlearn = {
        "num-examples": weight,
        "unlearn-loss": loss,
        "unlearn-seconds": seconds,
        "unlearn-steps": count,
        **{f"forget-{of}-{when}": nats for of in ("nll", "entropy", "gap") for when in ("before", "after")},
        "live-records": count,
    }
    replay = {**train, "live-records": count, "changed-records": count}
    assert {"train": train, "calibrate": train, "replay": replay, "unlearn": unlearn} == tables.NUMBERS
    counts = {kind: {*numbers} for kind, numbers in tables.COUNTS.items()}
    trained = {"num-examples", "train-seconds", "train-steps"}
    unlearned = {"num-examples", "unlearn-seconds", "unlearn-steps", "live-records"}
    replayed = {*trained, "live-records", "changed-records"}
    assert counts == {"train": trained, "calibrate": trained, "replay": replayed, "unlearn": unlearned}
