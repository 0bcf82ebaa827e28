"""Whole runs in one process in the other ways to train: all weights, bfloat16, checkpointing; and seeds of clients."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.inprocess import InProcessGrid

from evaluation.engine import forward
from oblivionis import seeds
from oblivionis.audits.loaded_model import find_subject
from oblivionis.client import worker
from oblivionis.client.app import app
from oblivionis.client.worker import Worker
from oblivionis.config import compose as configuration
from oblivionis.errors import RunFailed, RunInterrupted
from oblivionis.measures.assessor import evaluate_checkpoint
from oblivionis.models import loading, lora
from oblivionis.models.assembly import assemble
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events
from oblivionis.server.app import serve

FEW = ["evaluation.every=0", "evaluation.at_start=false", "evaluation.leakage.full_samples=0", "strict=true"]


class StopIn(Events):
    """Sets the stop flag when that round of the stage unlearn starts."""

    def __init__(self, round: int) -> None:
        self.stop, self._round, self._stage = threading.Event(), round, ""

    def stage_started(self, stage: str, done: int, total: int) -> None:
        self._stage = stage

    def round_started(self, round: int) -> None:
        if (self._stage, round) == ("unlearn", self._round):
            self.stop.set()


def new(folder: Path, name: str, *overrides: str) -> RunDirectory:
    config = configuration.compose("smoke", [*FEW, f"output={folder}", f"name={name}", *overrides])
    run = RunDirectory.create(Path(config.output), config.name)
    run.write_config(configuration.to_yaml(config))
    return run


def execute(run: RunDirectory, events: Events | None = None) -> RunDirectory:
    config = configuration.from_yaml(run.read_config())
    stop = getattr(events, "stop", None) or threading.Event()
    serve(config, InProcessGrid(app, config.federation.clients), run, events or Events(), stop)
    return run


def final(run: RunDirectory, stage: str = "unlearn") -> dict[str, Any]:
    summary: Any = run.stage_summary(stage)
    return summary["metrics"]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return execute(new(tmp_path_factory.mktemp("runs"), "full", "model.mode=full"))


def test_full_mode_trains_every_weight_once(full: RunDirectory) -> None:
    base, _ = loading.load_base("embedded")
    start = torch.cat([p.detach().reshape(-1) for p in base.parameters()]).numpy()
    trained, forgot = (full.load_checkpoint(stage).vector for stage in ("finetune", "unlearn"))
    assert trained.size == start.size == lora.count(base).total, "a tied weight travels once"
    assembled = assemble(configuration.from_yaml(full.read_config()).model, 0)
    np.testing.assert_array_equal(np.sort(assembled.flat.numpy()), np.sort(start))
    assert np.mean(trained != assembled.flat.numpy()) > 0.9
    assert 0 < np.linalg.norm(forgot - trained) < np.linalg.norm(trained)


def test_full_mode_forgets(full: RunDirectory) -> None:
    assert final(full)["forget_prob"] < final(full, "finetune")["forget_prob"]


def test_full_mode_can_be_evaluated_and_audited(full: RunDirectory) -> None:
    again = evaluate_checkpoint(full.path, "unlearn", [])[2].metrics
    assert again["forget_prob"] == pytest.approx(final(full)["forget_prob"], abs=1e-6)
    subject = find_subject(str(full.path), None, [])
    expected = full.load_checkpoint("unlearn").vector
    values = torch.cat([p.detach().reshape(-1) for p in subject.model.parameters()]).numpy()
    np.testing.assert_array_equal(np.sort(values), np.sort(expected))


def test_full_mode_resumes_to_the_same_numbers(full: RunDirectory, tmp_path: Path) -> None:
    run = new(tmp_path, "stopped", "model.mode=full")
    with pytest.raises(RunInterrupted):
        execute(run, StopIn(2))
    assert run.stage_summary("unlearn") is None
    execute(run)
    np.testing.assert_array_equal(run.load_checkpoint("unlearn").vector, full.load_checkpoint("unlearn").vector)
    assert final(run) == final(full)


def test_a_stage_in_which_nobody_trained_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("no numbers today")

    monkeypatch.setattr(Worker, "finetune", fails)
    run = new(tmp_path, "nobody", "stages=[finetune]", "strict=false")
    with pytest.raises(RunFailed, match=r"stage finetune: nobody trained, all \d+ replies .*no numbers today"):
        execute(run)
    assert run.stage_summary("finetune") is None


def test_bfloat16_on_the_cpu_runs_to_the_end(tmp_path: Path) -> None:
    runs = {
        dtype: execute(new(tmp_path, dtype, f"model.dtype={dtype}", "stages=[finetune, unlearn]"))
        for dtype in ("bfloat16", "float32")
    }
    half, whole = runs["bfloat16"], runs["float32"]
    assert half.load_checkpoint("unlearn").vector.dtype == np.float32
    for stage in ("finetune", "unlearn"):
        a, b = final(half, stage), final(whole, stage)
        for name in ("forget_prob", "retain_prob"):
            assert a[name] == pytest.approx(b[name], abs=0.1)
    again = evaluate_checkpoint(half.path, "unlearn", [])[2].metrics
    assert again["forget_prob"] == pytest.approx(final(half)["forget_prob"], abs=1e-6)


def test_checkpointing_leaves_the_results_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: set[tuple[str, bool]] = set()
    resolve = forward.resolve_mode

    def seen(model: Any, *args: Any, **kwargs: Any) -> str:
        found = resolve(model, *args, **kwargs)
        modes.add((found, model.training))
        return found

    runs = []
    for on in ("false", "true"):
        with monkeypatch.context() as patch:
            patch.setattr(forward, "resolve_mode", seen if on == "true" else resolve)
            options = [f"training.gradient_checkpointing={on}", "stages=[finetune, unlearn]"]
            runs.append(execute(new(tmp_path, on, *options)))
    assert ("packed", True) in modes and ("fused", True) not in modes and ("fused", False) in modes
    plain, checkpointed = (run.load_checkpoint("unlearn").vector for run in runs)
    np.testing.assert_allclose(checkpointed, plain, rtol=0, atol=5e-3)
    assert final(runs[1])["retain_prob"] == pytest.approx(final(runs[0])["retain_prob"], abs=5e-3)


def test_the_settings_of_a_configuration_reach_the_client() -> None:
    keys = {
        "learning_rate": 3e-4,
        "weight_decay": 0.2,
        "batch_size": 3,
        "gradient_accumulation": 2,
        "warmup_ratio": 0.25,
        "warmup_epochs": 0.0,
        "schedule": "cosine",
        "max_grad_norm": 0.7,
        "gradient_checkpointing": True,
    }
    overrides = [f"training.{name}={str(value).lower()}" for name, value in keys.items()]
    settings = Worker(configuration.compose("smoke", overrides)).settings(epochs=4)
    assert {name: getattr(settings, name) for name in keys} == keys and settings.epochs == 4


def test_the_settings_of_an_unlearning_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"epochs": 3, "learning_rate": 3e-4, "weight_decay": 0.2, "batch_size": 3, "max_grad_norm": 0.7}
    overrides = [f"unlearning.{name}={value}" for name, value in keys.items()]
    client = Worker(configuration.compose("smoke", [*overrides, "unlearning.beta_1=0.5"]))
    given: list[Any] = []
    monkeypatch.setattr(worker, "unlearn", lambda *args, **_: given.append(args[6]))
    ids = [client.holding(0).records[0].id]
    client.forget(0, client.flat.numpy(), record_ids=ids, tombstones=ids, proximal_mu=0.0, seed=1)
    assert {name: getattr(given[0], name) for name in keys} == keys and given[0].betas == (0.5, 0.999)


def test_client_seeds_follow_from_run_seed_stage_client_and_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: dict[str, list[tuple[int, int]]] = {"finetune": [], "forget": []}

    def recorded(name: str) -> None:
        original = getattr(worker.Worker, name)

        def method(self: Worker, client: int, vector: np.ndarray, *, seed: int, **rest: Any) -> Any:
            used[name].append((client, seed))
            return original(self, client, vector, seed=seed, **rest)

        monkeypatch.setattr(worker.Worker, name, method)

    for name in used:
        recorded(name)
    execute(new(tmp_path, "seeds", "seed=5"))
    expected = {(s, c, r): seeds.derive(5, s, c, r) for s in ("train", "unlearn") for c in (0, 1) for r in (1, 2)}
    assert len(set(expected.values())) == 8
    trained = used["finetune"]
    once = sorted((c, expected["train", c, r]) for c in (0, 1) for r in (1, 2))
    assert sorted(trained[:4]) == once, "finetune"
    assert sorted(trained[4:8]) == once, "retrain, the oracle, uses the same"
    unlearn = {(c, s) for c, s in [*trained[8:], *used["forget"]]}
    assert unlearn and unlearn <= {(c, expected["unlearn", c, r]) for c in (0, 1) for r in (1, 2)}
