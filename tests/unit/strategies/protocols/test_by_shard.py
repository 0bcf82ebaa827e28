"""Shards are federations of their own: each gives bit for bit what its clients give without the others."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import MetricRecord, RecordDict
from support.erasing import SETTINGS
from support.fedtu_clients import SIZE, Recorder, adapter, content, flat, honest

from strategies import message_keys, protocols
from strategies.protocols.base import Answer, ByUnlearning, ProtocolContext, Served
from strategies.protocols.by_shard import ByShard
from strategies.protocols.update_history import MemoryHistory
from strategies.rounds.fedtu import FedTU, Options, RequestList, UnlearnRequest
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rounds.nodes import NodeMap
from strategies.rounds.update_bounds import Bounds
from strategies.rules.factory import build
from strategies.rules.shard_rules import ShardRules
from strategies.shards import Shards

SHARDS = Shards((1, 0, 2, 1, 0, 2, 2, 1))
START = np.linspace(-1, 1, SIZE).astype(np.float32)
PARAMS = {
    "npo": {},
    "exact": {},
    "federaser": {"calibration_ratio": 0.5},
    "fedosd": {"epochs": 1, "recovery": 2},
    "rapid_retraining": {"rounds": 2},
    "weight_negation": {"layers": 1},
    "fused": {"rounds": 2, "layers": 1, "share": 0.5},
}
STAGES = {"finetune": "train", "unlearn": "unlearn"}


def client(partition):
    """As an honest one; it buries what it is asked to, and holds a round again as it held it."""
    answer = honest(partition)

    def reply(message):
        if message.metadata.message_type == message_keys.BURY:
            return RecordDict({"metrics": MetricRecord({"num-examples": 1, "live-records": 2})})
        found = answer(message)
        if message.metadata.message_type == message_keys.UNLEARN:
            return content(flat(found["arrays"]), examples=1, **{"train-steps": 1})
        return found

    return reply


def federation(clients, method, aggregator, shards):
    """Three rounds of training, then two with demands of clients 1 and 2 (of two shards); models and moments."""
    nodes, grid = NodeMap(), MemoryGrid({c: client(c) for c in clients}, keep_log=True)
    histories = [MemoryHistory(models_only=method == "exact") for _ in range(shards.count if shards else 1)]
    due = [(1, UnlearnRequest("r1", 1, ("a",))), (2, UnlearnRequest("r2", 2, ("b",)))]
    requests = RequestList([item for item in due if item[1].node in clients])
    model, told = np.tile(START, len(histories)), Recorder()
    for stage, rounds in (("finetune", 3), ("unlearn", 2)):
        rules = [build(aggregator, **SETTINGS[aggregator]) for _ in histories]
        parts = []
        for shard, (rule, history) in enumerate(zip(rules, histories, strict=True)):
            history.stage = stage
            own = [c for c in clients if shards is None or shards.of_client[c] == shard]
            context = ProtocolContext(
                inner=rule,
                history=history,
                able=lambda own=own: own,
                per_round=2,
                local_epochs=2,
                seed=3,
                initial=lambda: adapter(START),
                layer_of=lambda: np.arange(SIZE) // 4,
                first_layers=lambda layers: np.arange(SIZE) < 4 * layers,
                labels=STAGES,
            )
            served = protocols.build(method, context, **PARAMS[method])
            parts.append(served if stage == "unlearn" else ByUnlearning(history=history))
        inner, serving, bounds, fitting = rules[0], parts[0], Bounds(max_weight_share=0.4, max_update_norm=1.5), None
        if shards is not None:
            inner, serving = ShardRules(rules, shards, nodes.partition), ByShard(shards, parts, histories)
            bounds, fitting = bounds.by_shard(shards), shards
        options = Options(stage=STAGES[stage], bounds=bounds, fitting=fitting)
        due_now = requests if stage == "unlearn" else None
        fedtu = FedTU(inner, requests=due_now, serving=serving, listener=told, nodes=nodes, options=options)
        model = flat(fedtu.start(grid, adapter(model), rounds).arrays)
    return model, fedtu.state_dict(), histories, requests, grid


@pytest.mark.parametrize("aggregator", ["fedavg", "fedadam", "fedmedian"])
@pytest.mark.parametrize("method", sorted(PARAMS))
def test_a_shard_is_a_federation_of_its_own(method, aggregator):
    model, state, histories, requests, _ = federation(range(8), method, aggregator, SHARDS)
    assert requests.served_in == {"r1": 1, "r2": 2}, requests.reasons
    for shard, found in enumerate(np.split(model, 3)):
        own = [c for c in range(8) if SHARDS.of_client[c] == shard]
        alone, its_state, (its_history,), _, _ = federation(own, method, aggregator, None)
        np.testing.assert_array_equal(found, alone)
        assert histories[shard].rounds() == its_history.rounds()
        for name, values in its_state.items():
            kind = "serving/" if name.startswith("serving/") else ""
            sharded = f"{kind}shard-{shard}/{name.removeprefix(kind)}"
            np.testing.assert_array_equal(state[sharded], values)
    assert not np.array_equal(model[:SIZE], model[SIZE : 2 * SIZE])


def test_a_client_gets_and_sends_as_many_numbers_as_a_shard_has():
    grid = federation(range(8), "exact", "fedavg", SHARDS)[-1]
    sent = [record["arrays"]["adapter"].shape for kind, _, record in grid.log if kind == message_keys.TRAIN]
    assert set(sent) == {(SIZE,)} and len(sent) > 40


def test_only_the_shard_of_the_client_that_asks_is_trained_again():
    *_, histories, _, grid = federation(range(8), "exact", "fedadam", SHARDS)
    again = {
        partition for kind, partition, record in grid.log if kind == message_keys.TRAIN and "replay" in record["config"]
    }
    assert again == {c for c in range(8) if SHARDS.of_client[c] in (0, 2)}
    assert [[past.replayed for past in history.rounds()] for history in histories] == [
        [1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0],
        [2, 2, 2, 2, 0],
    ]


def test_a_shard_that_cannot_be_served_keeps_no_other_waiting():
    rules = [build("fedavg") for _ in range(3)]
    parts = [ByUnlearning() for _ in rules]

    class Refusing(ByUnlearning):
        def serve(self, server_round, arrays, answers, train):
            return Served.nobody(arrays, answers, "it is gone")

    parts[2] = Refusing()
    answers = [Answer(client, adapter(START * 2), 1, {}) for client in (1, 2, 4)]
    served = ByShard(SHARDS, parts).serve(1, adapter(np.tile(START, 3)), answers, lambda *_: [])
    assert set(served.info) == {1, 4} and served.refused == {2: "it is gone"}
    np.testing.assert_array_equal(flat(served.arrays), np.concatenate([START * 2, START, START]))


def test_a_state_of_other_shards_is_refused():
    rules = ShardRules([build("fedadam") for _ in range(3)], SHARDS, lambda node: node)
    with pytest.raises(ValueError, match=r"shard-3/m/adapter is the state of none of 3 shards"):
        rules.load_state_dict({"shard-3/m/adapter": np.zeros(2)})
    with pytest.raises(ValueError, match="2 aggregators for 3 shards"):
        ShardRules([build("fedavg")] * 2, SHARDS, lambda node: node)
