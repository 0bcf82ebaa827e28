"""The federation without processes: which message is answered how often, by whom."""

from __future__ import annotations

import pytest
from flwr.app import Error, Message, RecordDict
from support.fedtu_clients import content

from strategies import message_keys
from strategies.rounds.memory_grid import MemoryGrid


def message(node: int, kind: str = message_keys.TRAIN) -> Message:
    return Message(RecordDict(), dst_node_id=node, message_type=kind)


def answers(value):
    return lambda message: content([value])


def test_a_message_that_is_sent_twice_is_two_and_each_is_answered_once() -> None:
    grid, one = MemoryGrid({0: answers(1.0)}), message(1000)
    first, second = grid.push_messages([one]) + grid.push_messages([one])
    assert first != second
    for identifier in (second, first):
        (reply,) = grid.pull_messages([identifier])
        assert reply.metadata.reply_to_message_id == identifier
        assert grid.pull_messages([identifier]) == []
    assert grid.sent == {message_keys.TRAIN: 2} and grid.log == []


def test_who_answers_what() -> None:
    """A query is answered by the grid itself; nothing is an answer that never comes, an error comes from node 1."""
    grid = MemoryGrid({0: lambda m: Error(code=7), 1: lambda m: None, 2: answers(2.0)}, keep_log=True)
    replies = grid.send_and_receive([message(1000), message(1001), message(1002), message(1003)])
    told = {r.metadata.reply_to_message_id: (r.metadata.src_node_id, r.has_error()) for r in replies}
    assert list(told.values()) == [(1, True), (1002, False), (1, True)]
    assert [r.error.code for r in replies if r.has_error()] == [7, 5], "nobody has the last node"
    assert [(kind, partition) for kind, partition, _ in grid.log] == [(message_keys.TRAIN, p) for p in (0, 1, 2)]
    (reply,) = grid.send_and_receive([message(1001, message_keys.QUERY)])
    assert reply.content["metrics"]["partition-id"] == 1


def test_node_ids_may_change_and_replies_be_rearranged() -> None:
    grid = MemoryGrid({0: answers(0.0), 1: answers(1.0)}, node_ids={0: 7, 1: 8}, order=lambda replies: replies[::-1])
    assert grid.get_node_ids() == [7, 8]
    replies = grid.send_and_receive([message(7), message(8)])
    assert [r.metadata.src_node_id for r in replies] == [8, 7]
    grid.node_ids = {0: 8, 1: 9}
    (reply,) = grid.send_and_receive([message(8)])
    assert reply.content["arrays"]["adapter"].numpy() == [0.0]
    assert grid.send_and_receive([message(7)])[0].has_error(), "the old one is nobody's"


def test_messages_are_a_list_as_a_deployed_flower_wants_them() -> None:
    with pytest.raises(TypeError, match="messages must be a list"):
        MemoryGrid({}).push_messages(iter([]))
