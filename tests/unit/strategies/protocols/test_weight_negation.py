"""NoT: which numbers are negated, a federation that goes on from there, and what it does not go with."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from support.fedtu_clients import SIZE, adapter, flat, honest, noise

from strategies import message_keys
from strategies.protocols.base import Answer
from strategies.protocols.weight_negation import WeightNegationProtocol, negated
from strategies.rounds.fedtu import FedTU, RequestList, UnlearnRequest
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rules.factory import build


def test_negation_by_hand() -> None:
    arrays = ArrayRecord(
        {"a": Array(np.array([[1.0, -2.0], [3.0, 4.0]])), "b": Array(np.array([5.0, 0.0], dtype=np.float32))}
    )
    where = np.array([True, True, False, False, False, True])
    found = negated(arrays, where)
    assert found["a"].numpy().tolist() == [[-1.0, 2.0], [3.0, 4.0]] and found["b"].numpy().tolist() == [5.0, 0.0]
    assert found["b"].numpy().dtype == np.float32 and arrays["a"].numpy()[0, 0] == 1.0
    again = negated(found, where)
    assert all(np.array_equal(again[name].numpy(), arrays[name].numpy()) for name in arrays)
    with pytest.raises(ValueError, match=r"shape \(6,\), got \(5,\)"):
        negated(arrays, where[:5])
    with pytest.raises(ValueError, match="nothing"):
        WeightNegationProtocol(np.zeros(6, dtype=bool))


def bury(partition: int):
    """As an honest client; a request is buried without a model."""

    def answer(message: Message) -> RecordDict:
        if message.metadata.message_type != message_keys.BURY:
            return honest(partition)(message)
        assert "arrays" not in message.content.array_records
        return RecordDict({"metrics": MetricRecord({"num-examples": 3, "live-records": 1})})

    return answer


def test_a_round_negates_once_and_then_trains_from_there() -> None:
    """Two clients ask: φ ← negated φ, then FedAvg of φ + noise, weighted 1, 2 and 3."""
    grid = MemoryGrid({p: bury(p) for p in range(3)}, keep_log=True)
    where = np.arange(SIZE) % 3 == 0
    start = np.linspace(1, 2, SIZE).astype(np.float32)
    requests = RequestList([(1, UnlearnRequest(f"r{c}", c, (f"x{c}",))) for c in (0, 2)])
    result = FedTU(build("fedavg"), requests=requests, serving=WeightNegationProtocol(where)).start(
        grid, adapter(start), 1
    )
    begun = np.where(where, -start, start).astype(np.float64)
    expected = begun + sum((p + 1) * noise(p, 1).astype(np.float64) for p in range(3)) / 6
    np.testing.assert_allclose(flat(result.arrays), expected, rtol=1e-5)


def test_a_second_negation_too_soon_is_told(caplog: pytest.LogCaptureFixture) -> None:
    serving = WeightNegationProtocol(np.ones(SIZE, dtype=bool))
    answers, model = [Answer(0, None, 1, {})], adapter(np.ones(SIZE))
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.WARNING, logger="flwr"):
        for server_round in (1, 3, 4):
            model = serving.serve(server_round, model, answers, lambda *_: []).arrays
    assert flat(model).tolist() == [-1.0] * SIZE
    assert [r.getMessage() for r in caplog.records] == [
        "NoT: negated again in the round after the last one (3): the weights are nearly as before that"
    ]
