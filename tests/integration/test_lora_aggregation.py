"""Whole runs with `model.lora.aggregation` product and freeze_a: real server and clients in one process."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.churn import QUIET
from support.stages import Recorded, execute, final_metrics, new_run

from oblivionis import seeds
from oblivionis.audits.loaded_model import find_subject
from oblivionis.client.worker import resident
from oblivionis.errors import RunError, RunFailed, RunInterrupted
from oblivionis.measures.assessor import evaluate_checkpoint
from oblivionis.models import adapters, lora
from oblivionis.models.assembly import assemble
from oblivionis.runs.directory import RunDirectory
from strategies import message_keys
from strategies.rules.lora_product import ProductMean

STAGES = ("finetune", "retrain", "unlearn")


def two_ask(mode: str) -> tuple[str, ...]:
    """Two clients forget in one round, so that FedTU has models to merge."""
    return (
        f"model.lora.aggregation={mode}",
        "strategy=fedadam",
        "data.partition.scheme=iid",
        "unlearning.requests.policy=all_at_round",
        *QUIET,
    )


@pytest.fixture(scope="module", params=["product", "freeze_a"])
def finished(request, tmp_path_factory):
    config, run = new_run(tmp_path_factory.mktemp("runs"), request.param, *two_ask(request.param))
    sent = []

    def watch(client, message, reply):
        if message_keys.ARRAYS in message.content.array_records:
            sizes = [m.content[message_keys.ARRAYS][message_keys.ADAPTER].shape for m in (message, reply)]
            sent.append((message.metadata.message_type, *sizes))
        return reply

    events, _ = execute(config, run, tamper=watch)
    assert not events.left_out
    return request.param, config, run, sent, events


def test_the_run_serves_its_requests_and_moves(finished):
    _, _, run, _, events = finished
    assert len(events.unlearned) == 1 and len(events.unlearned[0][1]) > 1, "several clients forgot at once"
    finetuned, unlearned = (run.load_checkpoint(s).vector for s in ("finetune", "unlearn"))
    assert np.linalg.norm(unlearned - finetuned) > 0


def test_only_b_travels_when_a_is_frozen(finished):
    mode, config, _, sent, _ = finished
    model = assemble(config.model, 0).model
    sizes = {part: sum(p.numel() for n, p in model.named_parameters() if part in n) for part in ("lora_A", "lora_B")}
    expected = sizes["lora_B"] if mode == "freeze_a" else sizes["lora_A"] + sizes["lora_B"]
    assert {shape for _, *shapes in sent for shape in shapes} == {(expected,)}
    assert {kind for kind, *_ in sent} == {message_keys.TRAIN, message_keys.UNLEARN}


def test_the_frozen_a_is_the_same_on_both_sides_and_never_moves(finished):
    mode, config, _, _, _ = finished
    fresh = lora.frozen_lora(assemble(config.model, seeds.derive(config.seed, "adapter")).model)
    worker = resident(config).assembled
    trained = lora.frozen_lora(worker.model)
    assert fresh.keys() == trained.keys() and all(np.array_equal(fresh[n], trained[n]) for n in fresh)
    assert len(fresh) == (len(worker.flat.names) if mode == "freeze_a" else 0)
    assert all("lora_A" in name for name in fresh)


@pytest.mark.parametrize("stop_in", [("finetune", 2), ("unlearn", 2)])
def test_resume_equals_not_stopping(finished, tmp_path, stop_in):
    mode, _, whole, _, _ = finished
    config, run = new_run(tmp_path, "stopped", *two_ask(mode))
    with pytest.raises(RunInterrupted):
        execute(config, run, events=Recorded(threading.Event(), stop_in))
    execute(config, RunDirectory.open(run.path))
    assert final_metrics(run) == final_metrics(whole)
    for stage in STAGES:
        ours, theirs = run.load_checkpoint(stage), whole.load_checkpoint(stage)
        np.testing.assert_array_equal(ours.vector, theirs.vector)
        assert ours.strategy_state.keys() == theirs.strategy_state.keys() == {"m/adapter", "v/adapter"}


def test_a_second_run_starts_from_the_first(finished, tmp_path):
    mode, _, whole, _, _ = finished
    config, run = new_run(tmp_path, "second", *two_ask(mode), f"start_from={whole.path}")
    execute(config, run)
    assert final_metrics(run) == final_metrics(whole)
    other, refused = new_run(tmp_path, "other", f"start_from={whole.path}", *two_ask(mode)[1:])
    with pytest.raises(RunError, match="model"):
        execute(other, refused)


def test_a_checkpoint_is_evaluated_audited_and_exported_as_it_was_trained(finished, tmp_path):
    _, config, run, _, _ = finished
    _, checkpoint, measured = evaluate_checkpoint(run.path, "unlearn", [])
    metrics = measured.metrics
    stored = run.stage_summary("unlearn")["metrics"]
    assert {k: metrics[k] for k in ("forget_rouge", "retain_prob")} == {
        k: stored[k] for k in ("forget_rouge", "retain_prob")
    }
    model = find_subject(str(run.path), "unlearn", []).model
    server = assemble(config.model, seeds.derive(config.seed, "adapter"))
    server.flat.load(checkpoint.vector)
    theirs = {n: p.detach().numpy() for n, p in server.model.named_parameters() if "lora_" in n}
    ours = {n: p.detach().numpy() for n, p in model.named_parameters() if "lora_" in n}
    assert ours.keys() == theirs.keys() and all(np.array_equal(ours[n], theirs[n]) for n in ours)
    frozen = lora.frozen_lora(server.model)
    peft_config = server.model.peft_config["default"]
    adapters.to_peft(tmp_path, checkpoint.vector, server.flat.manifest, peft_config, frozen=frozen)
    assert len(load_file(tmp_path / "adapter_model.safetensors")) == len(ours)


def test_another_seed_than_the_runs_is_refused_where_it_would_change_a(finished):
    mode, _, run, _, _ = finished
    if mode == "freeze_a":
        with pytest.raises(RunError, match="trained other parameters"):
            evaluate_checkpoint(run.path, "unlearn", ["seed=5"])
        with pytest.raises(RunError, match="trained other parameters"):
            find_subject(str(run.path), "unlearn", ["seed=5"])
    else:
        evaluate_checkpoint(run.path, "unlearn", ["seed=5"])
    with pytest.raises(RunError, match="trained other parameters"):
        evaluate_checkpoint(run.path, "unlearn", ["model.lora.rank=4"])


def test_a_client_with_another_frozen_a_refuses(tmp_path, monkeypatch):
    config, run = new_run(
        tmp_path, "foreign", "stages=[finetune]", "federation.rounds.finetune=1", "model.lora.aggregation=freeze_a"
    )
    monkeypatch.setattr("oblivionis.client.worker.current", None)
    monkeypatch.setattr("oblivionis.client.worker.assemble", lambda settings, seed: assemble(settings, seed + 1))
    with pytest.raises(RunFailed, match=r"nobody trained, all 2 replies .* would train other parameters"):
        execute(config, run)


def test_the_server_averages_products_in_both_exchanges(tmp_path, monkeypatch):
    """The mean is called with the models of the two forgetting clients, and with those of each training round."""
    calls = []
    plain = ProductMean.__call__

    def recorded(self, rows, weights):
        calls.append((len(rows), sum(weights)))
        return plain(self, rows, weights)

    monkeypatch.setattr(ProductMean, "__call__", recorded)
    config, run = new_run(tmp_path, "calls", *two_ask("product"), "stages=[finetune, unlearn]")
    events, _ = execute(config, run)
    expected = [len(clients) for _, clients in (*events.trained, *events.unlearned)]
    assert sorted(n for n, _ in calls) == sorted(expected)
    assert all(total == pytest.approx(1) for _, total in calls)
