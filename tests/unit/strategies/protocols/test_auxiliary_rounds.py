"""Who trains beside the rounds, how many, and what becomes of those that do not answer."""

from __future__ import annotations

import random

import pytest
from flwr.app import Message, RecordDict
from support.fedtu_clients import adapter, content, flat

from strategies import message_keys
from strategies.flower_internals import AggregationError
from strategies.protocols.auxiliary_rounds import AuxiliaryRounds
from strategies.protocols.base import Answer
from strategies.replies import ReplyCheck
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rules.factory import build


def beside(clients=range(8), per_round=3, inner="fedavg", seed=5, **settings):
    return AuxiliaryRounds("method", build(inner, **settings), lambda: list(clients), 2, per_round, seed)


class Training:
    """Clients that answer with their number; those of `lost` do not."""

    def __init__(self, lost=()):
        self.lost, self.asked, self.settings = set(lost), [], []

    def __call__(self, clients, model, settings):
        self.asked.append(list(clients))
        self.settings.append(dict(settings))
        grid = MemoryGrid({c: lambda m, c=c: content([float(c)], 2) for c in clients})
        content_of = RecordDict({"arrays": model})
        messages = [Message(content_of, dst_node_id=1000 + c, message_type=message_keys.TRAIN) for c in clients]
        replies = grid.send_and_receive(messages)
        return [
            ReplyCheck(c, None, "no reply") if c in self.lost else ReplyCheck(c, reply)
            for c, reply in zip(clients, replies, strict=True)
        ]


def test_who_tells_that_nothing_is_left_does_not_train():
    """Who tells nothing of it may."""
    told = [
        Answer(1, None, 1, {message_keys.LIVE_RECORDS: 0}),
        Answer(2, None, 1, {message_keys.LIVE_RECORDS: 7}),
        Answer(3, None, 1, {}),
    ]
    assert beside([4, 3, 2, 1]).able(told) == [2, 3, 4]


@pytest.mark.parametrize(
    ("per_round", "inner", "settings", "count"),
    [(3, "fedavg", {}, 3), (20, "fedavg", {}, 8), (1, "krum", {"num_malicious_nodes": 2}, 7)],
)
def test_as_many_are_drawn_as_may_and_as_the_aggregator_needs(per_round, inner, settings, count):
    """Krum with two liars takes seven answers."""
    train, rounds = Training(), beside(per_round=per_round, inner=inner, **settings)
    for number in (1, 2, 1):
        updates = rounds.train(train, "stage", number, range(8), adapter([0.0]), {"more": 1})
        assert [update.partition for update in updates] == train.asked[-1] == sorted(set(train.asked[-1]))
        assert len(updates) == count and [flat(u.arrays).tolist() for u in updates] == [[u.partition] for u in updates]
    first, second, again = train.asked
    assert first == again and (first != second or count > 3)
    assert train.settings[1] == {message_keys.SERVER_ROUND: 2, message_keys.STAGE: "stage", "more": 1}


def test_who_does_not_answer_is_left_out():
    train = Training(lost=[0, 1, 2])
    (update,) = beside(range(4), 4).train(train, "stage", 1, range(4), adapter([0.0]), {})
    assert update.partition == 3
    with pytest.raises(AggregationError, match=r"no client trained in its round 1"):
        beside(range(3), 4).train(train, "stage", 1, range(3), adapter([0.0]), {})
    with pytest.raises(AggregationError, match=r"no client trained in its round 1"):
        beside().train(train, "stage", 1, [], adapter([0.0]), {})
    with pytest.raises(AggregationError, match=r"6 clients trained in its round 1, and Krum needs 7"):
        beside(per_round=9, inner="krum", num_malicious_nodes=2).train(
            Training(lost=[0, 1]), "stage", 1, range(8), adapter([0.0]), {}
        )


def test_fedprox_tells_its_mu():
    train = Training()
    beside(inner="fedprox", proximal_mu=0.25).train(train, "stage", 1, range(8), adapter([0.0]), {})
    assert train.settings[0][message_keys.PROXIMAL_MU] == 0.25


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0)])
def test_numbers_below_one_are_refused(numbers):
    with pytest.raises(ValueError, match=r"expected rounds >= 1 and per_round >= 1"):
        AuxiliaryRounds("method", build("fedavg"), list, *numbers, 0)


def test_who_trains_is_drawn_by_seed_exchange_and_round_and_settings_are_those_that_are_asked_for():
    train = Training()
    for seed, stage, number in ((5, "a/1", 1), (6, "a/1", 1), (5, "a/2", 1), (5, "a/1", 2)):
        settings = {message_keys.STAGE: "own", message_keys.EPOCHS: 4}
        beside(seed=seed).train(train, stage, number, range(8), adapter([0.0]), settings)
        assert train.asked[-1] == sorted(random.Random(f"{seed}/{stage}/{number}").sample(range(8), 3))
        assert train.settings[-1] == {
            message_keys.SERVER_ROUND: number,
            message_keys.STAGE: "own",
            message_keys.EPOCHS: 4,
        }
    assert len({tuple(asked) for asked in train.asked}) == 4
