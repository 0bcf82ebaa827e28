"""How long the replies of an exchange are waited for, and who is late, has failed, or comes too late."""

from __future__ import annotations

import pytest
from flwr.app import Error, Message, RecordDict
from support.fedtu_clients import Recorder

from strategies import message_keys
from strategies.replies import ReplyCheck
from strategies.rounds.collection import AllAtOnce, OneByOne
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rounds.reply_stream import EXCHANGE, SimulatedArrivals


class Seconds:
    """Client p takes p + 1 seconds."""

    def seconds(self, stage, kind, client, server_round):
        return client + 1.0


def client_of(message: Message) -> int:
    return message.metadata.dst_node_id - 1000


def messages_to(*clients: int) -> list[Message]:
    return [Message(RecordDict(), dst_node_id=1000 + client, message_type=message_keys.NUDGE) for client in clients]


class Told(Recorder):
    def arrived(self, answers, sent):
        self.events.append(("arrived", answers, sent))

    def discarded(self, node):
        self.events.append(("discarded", node))


def simulated(deadline=None, failing=()) -> OneByOne:
    nodes = {p: lambda message: RecordDict() for p in range(5)}
    grid = MemoryGrid(nodes | {p: lambda message: Error(code=1, reason="off") for p in failing})
    stream = SimulatedArrivals(grid, client_of, Seconds(), patience=5.0)  # type: ignore[arg-type]
    return OneByOne(stream=stream, listener=Told(), deadline=deadline)


def late(clients, reason) -> list[ReplyCheck]:
    return [ReplyCheck(client, None, f"late: {reason}", late=True) for client in clients]


def test_enough_replies_end_an_exchange_and_the_others_are_late() -> None:
    """A reply to an earlier exchange counts for nothing, and those that are not waited for are void."""
    collection = simulated()
    stream = collection.stream
    (old,) = stream.send(messages_to(0), EXCHANGE)
    received, missing = collection.collect("train", messages_to(4, 1, 2, 3), 60.0, 2)
    assert [client for client, _ in received] == [1, 2] and all(reply is not None for _, reply in received)
    assert missing == late([3, 4], "2 others had answered")
    assert collection.listener.events == [  # type: ignore[attr-defined]
        ("discarded", 0),
        ("arrived", 0, 4),
        ("arrived", 1, 4),
        ("arrived", 2, 4),
    ]
    assert stream.now == 3.0 and [one.void for one in stream.underway(EXCHANGE)] == [True, True] and not old.void


def test_an_error_is_a_reply_but_none_of_those_that_are_wanted() -> None:
    received, missing = simulated(failing=(0,)).collect("train", messages_to(0, 1, 2), 60.0, 1)
    assert [client for client, _ in received] == [0, 1] and received[0][1].has_error()  # type: ignore[union-attr]
    assert missing == late([2], "1 others had answered")


@pytest.mark.parametrize(
    ("kind", "deadline", "seconds"), [("train", 2.5, 2.5), ("train", 9.0, 4.0), ("unlearn", 2.5, 4.0)]
)
def test_who_misses_a_deadline_is_late_and_who_misses_the_timeout_has_failed(kind, deadline, seconds) -> None:
    """Only training has a deadline, and one beyond the timeout is none."""
    collection = simulated(deadline)
    received, missing = collection.collect(kind, messages_to(4, 1, 0, 3), 4.0)
    assert collection.stream.now == seconds
    if seconds == deadline:
        assert [client for client, _ in received] == [0, 1] and missing == late([3, 4], "no reply within 2.5 s")
    else:
        assert [(client, reply is None) for client, reply in received] == [
            (0, False),
            (1, False),
            (3, False),
            (4, True),
        ]
        assert missing == []


def test_all_at_once_nobody_is_late_however_few_were_wanted() -> None:
    grid = MemoryGrid({0: lambda message: RecordDict(), 1: lambda message: None})
    received, missing = AllAtOnce(grid=grid, client_of=client_of).collect("train", messages_to(1, 0), 1.0, 1)
    assert [(client, reply is None) for client, reply in received] == [(1, True), (0, False)] and missing == []
