"""How often answers are asked for, and what is waited for."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from support.fedtu_clients import adapter, federation
from support.late import LateGrid

from strategies import message_keys
from strategies.rounds.grids import PassingGrid
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rounds.reply_stream import EXCHANGE, FLIGHT, Pauses, RealArrivals, SimulatedArrivals, arriving


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
    (sent,) = arrivals.send([Message(RecordDict(), 1000, message_keys.TRAIN)], FLIGHT)
    assert arrivals.underway(FLIGHT) == [sent] and arrivals.underway(EXCHANGE) == [] and sent.client == 7
    until = arrivals.now + 0.03
    assert arrivals.wait(until, FLIGHT) == [] and arrivals.now >= until
    assert arrivals.engaged() == set(), "nobody is at work on it"
    arrivals.forget(sent)
    assert arrivals.underway(FLIGHT) == []


def messages_to(*clients: int) -> list[Message]:
    config = {message_keys.STAGE: "train", message_keys.SERVER_ROUND: 1}

    def content() -> RecordDict:
        return RecordDict({message_keys.ARRAYS: adapter(np.zeros(12)), message_keys.CONFIG: ConfigRecord(config)})

    return [Message(content(), dst_node_id=1000 + client, message_type=message_keys.TRAIN) for client in clients]


def who(message: Message) -> int:
    return message.metadata.dst_node_id - 1000


def test_what_is_void_is_on_its_way_as_long_as_patience_lasts_and_then_thrown_away() -> None:
    grid = LateGrid(federation(2), lambda message: 0.6)
    arrivals = RealArrivals(grid, who, patience=0.25)
    void, other = arrivals.send(messages_to(0, 1), EXCHANGE)
    void.void = True
    assert arrivals.engaged() == {1000, 1001} and arrivals.underway(EXCHANGE) == [void, other]
    assert arrivals.wait(arrivals.now + 0.01, EXCHANGE) == [] and arrivals.underway(EXCHANGE) == [void, other]
    assert [sent for sent, _ in arrivals.wait(arrivals.now + 5, EXCHANGE)] == [other]
    assert arrivals.underway(EXCHANGE) == [] and arrivals.engaged() == set()
    assert arrivals.wait(arrivals.now, EXCHANGE) == [], "its answer came meanwhile"


def test_answers_that_come_together_are_handed_out_by_client_and_those_of_a_group_alone() -> None:
    arrivals = RealArrivals(federation(4), who, patience=60.0)
    arrivals.send(messages_to(3, 1, 2), EXCHANGE)
    (flight,) = arrivals.send(messages_to(0), FLIGHT)
    assert [sent.client for sent, _ in arrivals.wait(math.inf, EXCHANGE, most=2)] == [1, 2]
    assert [sent.client for sent, _ in arrivals.wait(math.inf, EXCHANGE)] == [3]
    arrivals.forget(flight)
    assert arrivals.wait(math.inf, FLIGHT) == [], "it had come, and nobody asked for it"


def test_the_machines_clock_has_nothing_to_keep() -> None:
    arrivals = arriving(federation(1), who, 1.0, None, {"now": np.zeros(1)})
    assert arrivals.state_dict() == {}
    arrivals.load_state_dict({})
    with pytest.raises(ValueError, match=r"RealArrivals cannot load a state \(\['now'\]\)"):
        arrivals.load_state_dict({"now": np.zeros(1)})


class Seconds:
    """A client's number, and one more, is how long it takes."""

    def seconds(self, stage: str, kind: str, client: int, server_round: int) -> float:
        assert (stage, kind, server_round) == ("train", message_keys.TRAIN, 1)
        return client + 1.0


class Pulled(PassingGrid):
    """Writes down after which messages it is asked, and loses the answers of some clients."""

    def __init__(self, grid, lost=()):
        super().__init__(grid)
        self.asked, self._lost, self._to = [], set(lost), {}

    def push_messages(self, messages):
        ids = self._grid.push_messages(messages)
        self._to |= {i: who(message) for i, message in zip(ids, messages, strict=True)}
        return ids

    def pull_messages(self, message_ids):
        self.asked.append({self._to[i] for i in message_ids})
        return self._grid.pull_messages([i for i in message_ids if self._to[i] not in self._lost])


def simulated(grid, patience: float = 5.0) -> SimulatedArrivals:
    return SimulatedArrivals(grid, who, Seconds(), patience=patience)


def test_a_simulated_clock_goes_from_answer_to_answer_and_never_back() -> None:
    arrivals = simulated(federation(4))
    assert arrivals.wait(9.0, EXCHANGE) == [] and arrivals.now == 0, "nothing is on its way"
    sent = arrivals.send(messages_to(3, 1, 0), EXCHANGE)
    assert [one.due for one in sent] == [4.0, 2.0, 1.0] and [one.since for one in sent] == [0.0] * 3
    for until in (0.5, 0.25):
        assert arrivals.wait(until, EXCHANGE) == [] and arrivals.now == 0.5
    assert [s.client for s, _ in arrivals.wait(1.0, EXCHANGE)] == [0] and arrivals.now == 1.0
    (again,) = arrivals.send(messages_to(1), FLIGHT)
    assert again.due == 4.0, "client 1 is at work until 2, and then for two seconds"
    (given,) = arrivals.send(messages_to(2), FLIGHT, due=[2.0])
    assert given.due == 2.0 and arrivals.underway(FLIGHT) == [again, given]
    assert [s.client for s, _ in arrivals.wait(math.inf, FLIGHT)] == [2] and arrivals.now == 2.0
    assert [s.client for s, _ in arrivals.wait(math.inf, EXCHANGE)] == [1] and arrivals.now == 2.0
    assert [s.client for s, _ in arrivals.wait(math.inf, FLIGHT, most=1)] == [1] and arrivals.now == 4.0
    ((last, reply),) = arrivals.wait(3.0, EXCHANGE)
    assert last is sent[0] and reply is not None and arrivals.now == 4.0, "due at 4, which is now"


def test_simulated_answers_of_one_moment_are_in_the_order_of_the_clients() -> None:
    arrivals = simulated(federation(4))
    arrivals.send(messages_to(3, 0, 2), EXCHANGE, due=[1.0, 1.0, 0.5])
    arrivals.send(messages_to(1), EXCHANGE, due=[1.0])
    assert [s.client for s, _ in arrivals.wait(math.inf, EXCHANGE)] == [2]
    assert [s.client for s, _ in arrivals.wait(math.inf, EXCHANGE, most=2)] == [0, 1]
    assert [s.client for s, _ in arrivals.wait(math.inf, EXCHANGE)] == [3]


def test_nobody_waits_for_a_simulated_answer_that_is_void_forgotten_or_lost() -> None:
    """Of the void and the forgotten one is asked with the next ones, so that they lie nowhere."""
    grid = Pulled(federation(4), lost=(0, 3))
    arrivals = simulated(grid, patience=0.05)
    void, forgotten, good, lost = arrivals.send(messages_to(0, 1, 2, 3), EXCHANGE)
    void.void = True
    began = time.monotonic()
    assert arrivals.wait(math.inf, EXCHANGE) == [(void, None)] and not grid.asked
    arrivals.forget(forgotten)
    assert arrivals.underway(EXCHANGE) == [good, lost]
    ((one, reply),) = arrivals.wait(math.inf, EXCHANGE)
    assert one is good and reply is not None and grid.asked[-1] == {0, 1, 2} and time.monotonic() - began < 0.05
    assert arrivals.wait(math.inf, EXCHANGE) == [(lost, None)] and grid.asked[-1] == {0, 3}
    assert 0.05 <= time.monotonic() - began < 1
    arrivals.send(messages_to(2), EXCHANGE)
    arrivals.wait(math.inf, EXCHANGE)
    assert grid.asked[-1] == {0, 2, 3}, "what was lost may still come"


def test_a_simulated_clock_goes_on_with_who_works_for_nothing() -> None:
    arrivals = simulated(federation(3))
    _, second = arrivals.send(messages_to(0, 2), EXCHANGE)
    (flight,) = arrivals.send(messages_to(1), FLIGHT)
    arrivals.wait(0.5, EXCHANGE)
    second.void = flight.void = True
    state = arrivals.state_dict()
    again = arriving(federation(3), who, 5.0, Seconds(), state)
    assert again.now == 0.5 and again.state_dict().keys() == state.keys()
    for group, client, due in ((EXCHANGE, 2, 3.0), (FLIGHT, 1, 2.0)):
        (one,) = again.underway(group)
        assert (one.client, one.due, one.void, one.message) == (client, due, True, None)
    (queued,) = again.send(messages_to(2), EXCHANGE)
    assert queued.due == 6.0
    fresh = arriving(federation(3), who, 5.0, Seconds(), {})
    assert fresh.now == 0 and fresh.underway(EXCHANGE) == []


def test_an_error_is_an_answer() -> None:
    arrivals = simulated(MemoryGrid({0: lambda message: Error(code=7, reason="no memory")}))
    arrivals.send(messages_to(0), EXCHANGE)
    ((_, reply),) = arrivals.wait(math.inf, EXCHANGE)
    assert reply is not None and reply.error.code == 7


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """A machine's clock that stands at 1000 s and goes on by what somebody sleeps; the pauses are behind it."""
    told = [1000.0]

    def sleep(seconds: float) -> None:
        told[0] += seconds
        told.append(seconds)

    monkeypatch.setattr("time.monotonic", lambda: told[0])
    monkeypatch.setattr("time.sleep", sleep)
    return told


def test_the_machines_clock_begins_when_it_is_made_and_a_pause_ends_with_the_wait(clock) -> None:
    """A question takes 4 ms, so pauses are of 200 ms; the last one is cut to what is left."""

    class Slow(PassingGrid):
        def pull_messages(self, message_ids):
            clock[0] += 0.004
            return []

    arrivals = RealArrivals(Slow(federation(2)), who, patience=60.0)
    assert arrivals.now == 0
    arrivals.send(messages_to(0), EXCHANGE)
    assert arrivals.wait(0.5, EXCHANGE) == []
    assert clock[1:] == pytest.approx([0.2, 0.2, 0.5 - 2 * 0.2 - 3 * 0.004]) and arrivals.now >= 0.5


def test_a_lost_answer_is_waited_for_as_long_as_patience_lasts(clock) -> None:
    arrivals = simulated(Pulled(federation(2), lost=(0,)), patience=3.0)
    arrivals.send(messages_to(0), EXCHANGE)
    ((_, reply),) = arrivals.wait(math.inf, EXCHANGE)
    assert reply is None and 1003 <= clock[0] <= 1003.5


def test_what_is_forgotten_is_fetched_once_and_thrown_away() -> None:
    grid = Pulled(federation(3))
    arrivals = RealArrivals(grid, who, patience=60.0)
    first, _ = arrivals.send(messages_to(0, 1), EXCHANGE)
    arrivals.forget(first)
    assert [sent.client for sent, _ in arrivals.wait(math.inf, EXCHANGE)] == [1]
    arrivals.send(messages_to(2), EXCHANGE)
    assert [sent.client for sent, _ in arrivals.wait(math.inf, EXCHANGE)] == [2]
    assert grid.asked == [{0, 1}, {2}]


def test_answers_that_are_overdue_come_by_their_time_and_their_client_is_free_now() -> None:
    arrivals = simulated(federation(4))
    arrivals.send(messages_to(3, 2), EXCHANGE, due=[0.5, 1.0])
    arrivals.send(messages_to(1), FLIGHT)
    assert [sent.client for sent, _ in arrivals.wait(math.inf, FLIGHT)] == [1] and arrivals.now == 2.0
    (again,) = arrivals.send(messages_to(3), FLIGHT)
    assert again.due == 6.0, "4 s from now on, not from 0.5 s on"
    assert [sent.client for sent, _ in arrivals.wait(math.inf, EXCHANGE)] == [3, 2]
