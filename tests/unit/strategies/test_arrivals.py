"""How often answers are asked for, and what is waited for."""

from __future__ import annotations

import pytest
from flwr.app import Message, RecordDict
from support.fedtu_clients import federation

from strategies import protocol
from strategies.arrivals import EXCHANGE, FLIGHT, Pauses, RealArrivals
from strategies.passing import PassingGrid


def test_asking_takes_two_percent_of_the_time_by_the_quickest_question() -> None:
    pauses = Pauses()
    assert pauses.after(0.004) == pytest.approx(0.2)
    assert pauses.after(0.0002) == pytest.approx(0.01)
    assert pauses.after(0.009) == pytest.approx(0.01), "it waited for the processor, or fetched answers"


@pytest.mark.parametrize(("cost", "pause"), [(0.0, 0.005), (1e-5, 0.005), (0.02, 0.5), (3.0, 0.5)])
def test_a_pause_is_neither_none_nor_long(cost: float, pause: float) -> None:
    assert Pauses().after(cost) == pause


class Refusing(PassingGrid):
    """A SuperLink that takes no message."""

    def push_messages(self, messages):
        return [None for _ in messages]


def test_a_message_that_was_not_taken_is_on_its_way_until_its_time_is_over() -> None:
    """It counts as lost at the timeout, as others do, not as nobody's; what is forgotten is waited for no more."""
    arrivals = RealArrivals(Refusing(federation(2)), lambda message: 7, patience=60.0)
    (sent,) = arrivals.send([Message(RecordDict(), 1000, protocol.TRAIN)], FLIGHT)
    assert arrivals.underway(FLIGHT) == [sent] and arrivals.underway(EXCHANGE) == [] and sent.client == 7
    until = arrivals.now + 0.03
    assert arrivals.wait(until, FLIGHT) == [] and arrivals.now >= until
    assert arrivals.engaged() == set(), "nobody is at work on it"
    arrivals.forget(sent)
    assert arrivals.underway(FLIGHT) == []
