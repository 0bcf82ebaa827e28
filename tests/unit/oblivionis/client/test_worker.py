"""What a client hands on from the configuration to its unlearning."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from clients.entropy import Entropy
from evaluation.engine.sequences import TokenSequence
from oblivionis.client import worker as worker_module
from oblivionis.client.worker import Worker
from oblivionis.config import compose as configuration
from oblivionis.errors import ClientError
from oblivionis.models.random_model import expected_distance


@pytest.fixture(scope="module")
def worker() -> Worker:
    overrides = ["unlearning=pga", "unlearning.epochs=3", "unlearning.learning_rate=1e-2"]
    return Worker(configuration.compose("smoke", overrides))


@pytest.fixture(scope="module")
def reference(worker: Worker) -> np.ndarray:
    return worker.assembled.flat.numpy()


def forget(worker: Worker, reference: np.ndarray | None, **changes):
    worker.config = configuration.compose("smoke", ["unlearning=pga", *(f"{k}={v}" for k, v in changes.items())])
    vector = np.full(worker.flat.size, 9.0, np.float32)
    ids = [record.id for record in worker.holding(0).records][:2]
    return worker.forget(0, vector, record_ids=ids, tombstones=ids, proximal_mu=0.0, seed=1, reference=reference)


def test_a_client_starts_from_the_model_of_the_others(worker: Worker, reference: np.ndarray) -> None:
    unchanged, report = forget(worker, reference, **{"unlearning.forget_nll_limit": 1e-6})
    assert report.stopped and report.steps == 0
    assert unchanged.tobytes() == reference.tobytes(), "not the global model, which is far away here"
    with pytest.raises(ClientError, match="other clients"):
        forget(worker, None)


def test_a_client_stays_within_the_configured_radius_or_a_third_of_the_distance_to_random(
    worker: Worker, reference: np.ndarray
) -> None:
    fast = {"unlearning.learning_rate": 0.1, "unlearning.epochs": 8, "unlearning.forget_nll_limit": 1e9}
    found, _ = forget(worker, reference, **fast, **{"unlearning.params.radius": 0.25})
    assert np.linalg.norm(found - reference) == pytest.approx(0.25, rel=1e-4)
    third = expected_distance(reference, worker.flat.manifest, "lora", 0.02) / 3
    found, _ = forget(worker, reference, **fast, **{"unlearning.params.radius": "null"})
    assert np.linalg.norm(found - reference) == pytest.approx(third, rel=1e-4)


def test_ascent_stops_at_chance_level(worker: Worker, reference: np.ndarray) -> None:
    """Without a configured limit: ln V, the loss of a model that knows nothing."""
    options = {"unlearning.learning_rate": 0.02, "unlearning.epochs": 50, "unlearning.forget_nll_limit": "null"}
    _, report = forget(worker, reference, **options)
    assert report.stopped and report.last_forget_nll <= math.log(len(worker.assembled.tokenizer))


def test_the_worker_unlearns_with_the_configured_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    original = worker_module.unlearn
    monkeypatch.setattr(
        worker_module, "unlearn", lambda *a, **k: (given.append(k["options"].entropy), original(*a, **k))[1]
    )
    client = Worker(configuration.compose("smoke", ["unlearning=npo_entropy", "unlearning.entropy.forget=0.5"]))
    record = client.holding(0).records[0].id
    _, report = client.forget(0, client.flat.numpy(), record_ids=[record], tombstones=[], proximal_mu=0.0, seed=1)
    assert given == [Entropy(0.5, -0.125)] and report.first_forget_entropy > 0


@pytest.mark.parametrize(("asked", "anchored"), [(3, False), (4, True), (6, True)])
@pytest.mark.slow
def test_who_gives_up_more_than_it_keeps_is_held_by_the_references_too(
    monkeypatch: pytest.MonkeyPatch, asked: int, anchored: bool
) -> None:
    """And by what the base model writes, once for each client, of six records; not with a method without a target."""
    given: list[Any] = []
    original = worker_module.unlearn
    received: list[bytes] = []
    drawn: list[int] = []

    def recorded(*a: Any, **k: Any) -> Any:
        given.append((a[3], k["options"].held, k["options"].held_to_base))
        return original(*a, **k)

    def written(assembled: Any, count: int, seed: int) -> list[TokenSequence]:
        received.append(assembled.flat.numpy().tobytes())
        drawn.append(seed)
        return [TokenSequence((1, 2), (3, 4))]

    monkeypatch.setattr(worker_module, "unlearn", recorded)
    monkeypatch.setattr(worker_module, "base_dialogues", written)
    client = Worker(configuration.compose("smoke", ["unlearning=calibrated", "unlearning.tolerance=1e-6"]))
    holding, base = client.holding(0), client.flat.numpy()
    assert len(holding.records) == 6
    ids = [record.id for record in holding.records][:asked]
    vector = base + np.float32(1e-3)
    for _ in range(2):
        client.forget(0, vector, record_ids=ids, tombstones=ids, proximal_mu=0.0, seed=1)
    kept, held = holding.select(set(ids)), [*client.references(), TokenSequence((1, 2), (3, 4))]
    assert given == [([*kept, *held], len(held), 1) if anchored else (kept, 0, 0)] * 2
    assert received == ([base.tobytes()] if anchored else [])
    others = [record.id for record in client.holding(1).records]
    client.forget(1, vector, record_ids=others, tombstones=others, proximal_mu=0.0, seed=1)
    assert len(set(drawn)) == len(drawn) == 1 + anchored
    client.config = configuration.compose("smoke", ["unlearning=calibrated", "unlearning.tolerance=100"])
    client.forget(0, vector, record_ids=ids, tombstones=ids, proximal_mu=0.0, seed=1)
    assert given[-1] == (kept, 0, 0), "what is at its target is held by nothing"
    client.config = configuration.compose("smoke", ["unlearning=npo"])
    client.forget(0, client.flat.numpy(), record_ids=ids, tombstones=ids, proximal_mu=0.0, seed=1)
    assert given[-1] == (kept, 0, 0)
