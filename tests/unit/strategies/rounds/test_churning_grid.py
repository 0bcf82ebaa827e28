"""Nodes that vanish and return: how many, how long, what becomes of messages to them."""

from __future__ import annotations

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from support.fedtu_clients import adapter, federation

from strategies import message_keys
from strategies.flower_internals import NODE_UNAVAILABLE, SUPERLINK_NODE_ID
from strategies.rounds.grids import ChurningGrid

CLIENTS = 40


def messages_of(server_round: int, stage: str = "unlearn", nodes=range(1000, 1000 + CLIENTS)) -> list[Message]:
    config = {message_keys.STAGE: stage, message_keys.SERVER_ROUND: server_round}

    def content() -> RecordDict:
        return RecordDict({message_keys.ARRAYS: adapter([0.0] * 12), message_keys.CONFIG: ConfigRecord(config)})

    return [Message(content(), dst_node_id=node, message_type=message_keys.TRAIN) for node in nodes]


def held(grid: ChurningGrid, messages: list[Message]) -> tuple[set[int], set[int]]:
    """Nodes that answered, and those in whose place the SuperLink says that they cannot be reached."""
    ids = grid.push_messages(messages)
    assert [message.metadata.message_id for message in messages] == ids and len(set(ids)) == len(ids)
    by_id = {reply.metadata.reply_to_message_id: reply for reply in grid.pull_messages(ids)}
    assert list(grid.pull_messages(ids)) == [], "each is answered once"
    good, lost = set(), set()
    for message in messages:
        reply = by_id[message.metadata.message_id]
        if reply.has_error():
            assert reply.error.code == NODE_UNAVAILABLE and reply.metadata.src_node_id == SUPERLINK_NODE_ID
        (lost if reply.has_error() else good).add(message.metadata.dst_node_id)
    return good, lost


@pytest.mark.parametrize(("share", "away"), [(0.0, 0), (0.3, 12), (0.49, 20), (0.95, 38)])
def test_the_share_of_the_nodes_is_away_for_a_round(share: float, away: int) -> None:
    grid, seen = ChurningGrid(federation(CLIENTS), share, seed=3), []
    everybody = set(range(1000, 1000 + CLIENTS))
    for server_round in (1, 2, 3):
        good, lost = held(grid, messages_of(server_round))
        assert len(lost) == away and good == everybody - lost == set(grid.get_node_ids())
        assert held(grid, messages_of(server_round)) == (good, lost), "until the next round begins"
        seen.append(frozenset(lost))
    assert len(set(seen)) == (3 if away else 1)
    held(grid, messages_of(3, "retrain"))
    assert (frozenset(everybody - set(grid.get_node_ids())) != seen[-1]) is bool(away), "another stage, other nodes"


def test_who_is_away_follows_from_seed_stage_and_round_alone() -> None:
    one, again, other = (ChurningGrid(federation(CLIENTS), 0.3, seed) for seed in (3, 3, 4))
    held(one, messages_of(1))
    found = [held(grid, messages_of(2)) for grid in (one, again, other)]
    assert found[0] == found[1] != found[2]
    backwards = ChurningGrid(federation(CLIENTS), 0.3, 3)
    assert held(backwards, messages_of(2, nodes=range(999 + CLIENTS, 999, -1))) == found[0]


def test_of_the_messages_to_who_is_away_about_half_arrive_nevertheless() -> None:
    """Of 30 rounds with 20 of 40 nodes away 300 messages are lost on the way there, give or take 2.6 deviations."""
    below = federation(CLIENTS)
    grid = ChurningGrid(below, 0.5, seed=1)
    for server_round in range(30):
        held(grid, messages_of(server_round))
    never = 30 * CLIENTS - below.sent[message_keys.TRAIN]
    assert abs(never - 300) < 2.6 * (600 / 4) ** 0.5
    arrived = {(client, content.config_records["config"]["server-round"]) for _, client, content in below.log}
    assert len(arrived) == below.sent[message_keys.TRAIN], "each arrives once"


def test_a_message_without_a_round_moves_no_time() -> None:
    """As a query of who a node is: who is away stays away."""
    grid = ChurningGrid(federation(CLIENTS), 0.5, seed=1)
    query = Message(RecordDict(), dst_node_id=1000, message_type=message_keys.QUERY)
    assert held(grid, [query]) == ({1000}, set()) and len(grid.get_node_ids()) == CLIENTS
    held(grid, messages_of(1))
    there = grid.get_node_ids()
    held(grid, [Message(RecordDict(), dst_node_id=there[0], message_type=message_keys.QUERY)])
    assert grid.get_node_ids() == there


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_out_of_range(share: float) -> None:
    with pytest.raises(ValueError, match="expected 0 <= share < 1"):
        ChurningGrid(federation(2), share, 0)
