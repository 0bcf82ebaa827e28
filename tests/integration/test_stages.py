"""Whole runs in one process: real server and clients on an in-memory grid, tiny data."""

import threading

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from support.churn import QUIET
from support.stages import Recorded, execute, final_metrics, new_run, tombstones

from oblivionis.erasure.ledger import Ledger
from oblivionis.errors import RunError, RunFailed, RunInterrupted
from oblivionis.measures.assessor import Assessor, assemble_for
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.reports.run_summary import comparison, stage_metrics
from strategies import message_keys


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config, run = new_run(
        tmp_path_factory.mktemp("runs"), "whole", "federation.rounds.unlearn=4", "evaluation.base=true"
    )
    events, grid = execute(config, run)
    return config, run, events, grid


def test_a_run_serves_every_holder_once_and_buries_its_records(finished):
    _, run, events, _ = finished
    requests = list(Ledger(run.ledger_path))
    holders = sorted(r.client for r in requests)
    assert holders == sorted(set(holders)), "one request per client"
    assert all(r.state in ("served", "verified") for r in requests)
    asked = {i for r in requests for i in r.record_ids}
    assert len(asked) == 4, "2 forget authors x 2 questions"
    assert tombstones(run) == asked
    assert [clients for _, clients in events.unlearned] == [(r.client,) for r in sorted(requests, key=lambda r: r.id)]
    assert not events.left_out


def test_the_base_model_is_measured_as_nobody_trained_it(finished):
    config, run, _, _ = finished
    assembled = assemble_for(run, config)
    again = Assessor(assembled, corpus_of(config), config).measure(assembled.flat.numpy(), full=True)
    assert run.stage_summary("base")["metrics"] == pytest.approx(again.metrics, rel=1e-5, nan_ok=True)
    metrics = stage_metrics(run)
    assert list(metrics) == ["base", "finetune", "unlearn", "retrain"] and metrics["base"] != metrics["finetune"]
    heads = comparison(metrics).csv().splitlines()[0].split(",")
    assert heads[2:4] == ["base", "finetuned"]


def test_nobody_asks_after_the_last_planned_round(tmp_path):
    config, run = new_run(tmp_path, "short", *QUIET, "federation.rounds.unlearn=1", "stages=[finetune, unlearn]")
    execute(config, run)
    assert [r.round for r in Ledger(run.ledger_path)] == [1]
    assert run.stage_summary("unlearn")["rounds"] == 1


def test_only_asking_clients_are_addressed_by_fedtu(finished):
    _, run, _, grid = finished
    unlearn = [client for client, kind in grid.sent if kind == message_keys.UNLEARN]
    assert sorted(unlearn) == sorted(r.client for r in Ledger(run.ledger_path))


def test_each_node_is_asked_for_its_partition_once_per_run(finished):
    _, _, _, grid = finished
    assert sorted(client for client, kind in grid.sent if kind == message_keys.QUERY) == [0, 1, 2, 3]


def test_finetune_and_retrain_sample_the_same_clients(finished):
    _, _, events, _ = finished
    by_stage = {s: [c for stage, c in events.trained if stage == s] for s in ("finetune", "retrain")}
    assert by_stage["finetune"] == by_stage["retrain"] and len(by_stage["finetune"]) == 2


def test_retrain_differs_from_finetune_and_unlearn_starts_from_finetune(finished):
    _, run, _, _ = finished
    finetuned = run.load_checkpoint("finetune").vector
    assert not np.array_equal(finetuned, run.load_checkpoint("retrain").vector)
    before, after = (run.load_checkpoint(s).vector for s in ("finetune", "unlearn"))
    moved, size = np.linalg.norm(after - before), np.linalg.norm(before)
    assert 0 < moved < size, "unlearning moves away from the finetuned model, not from nothing"


def test_forget_quality_needs_and_uses_the_oracle(finished):
    _, run, _, _ = finished
    metrics = final_metrics(run)
    assert "forget_quality" not in metrics["finetune"], "the oracle does not exist yet when finetune ends"
    assert 0 <= metrics["unlearn"]["forget_quality"] <= 1


def test_resume_after_losing_the_newest_checkpoint_repeats_the_round(finished, tmp_path):
    """As after a kill between the FedTU exchange and the checkpoint: the client has buried its records already."""
    _, whole, _, _ = finished
    config, run = new_run(tmp_path, "torn", "federation.rounds.unlearn=4", "federation.keep_checkpoints=9")
    with pytest.raises(RunInterrupted):
        execute(config, run, events=Recorded(threading.Event(), ("unlearn", 4)))
    (run.path / "checkpoints/unlearn/round-0003.safetensors").write_bytes(b"torn")
    execute(config, run)
    assert final_metrics(run) == final_metrics(whole)
    assert {r.id: r.served_round for r in Ledger(run.ledger_path)} == {
        r.id: r.served_round for r in Ledger(whole.ledger_path)
    }


def nan_once(client_to_break):
    state = {"broken": False}

    def tamper(client, message, reply):
        if client == client_to_break and message.metadata.message_type == message_keys.UNLEARN and not state["broken"]:
            state["broken"] = True
            array = reply.content.array_records[message_keys.ARRAYS][message_keys.ADAPTER].numpy().copy()
            array[3] = np.nan
            content = RecordDict(
                {
                    message_keys.ARRAYS: ArrayRecord({message_keys.ADAPTER: Array(array)}),
                    message_keys.METRICS: MetricRecord(dict(next(iter(reply.content.metric_records.values())))),
                }
            )
            return Message(content, reply_to=message)
        return reply

    return tamper


def test_a_request_whose_reply_is_nan_stays_pending_and_is_served_later(finished, tmp_path):
    _, whole, _, _ = finished
    first = min(Ledger(whole.ledger_path), key=lambda r: r.id)
    config, run = new_run(tmp_path, "nan", *QUIET, "federation.rounds.unlearn=4")
    events, _ = execute(config, run, tamper=nan_once(first.client))
    assert [(s, c) for s, c, _ in events.left_out] == [("unlearn", first.client)]
    request = Ledger(run.ledger_path).get(first.id)
    assert request.attempts == 1 and request.served_round == 2 and request.state in ("served", "verified")
    assert np.isfinite(run.load_checkpoint("unlearn").vector).all()


def test_a_round_without_any_answer_changes_nothing(tmp_path):
    settings = (*QUIET, "stages=[finetune]", "federation.keep_checkpoints=9", "federation.timeout=1")
    config, run = new_run(tmp_path, "silent", *settings)

    def tamper(client, message, reply):
        is_train = message.metadata.message_type == message_keys.TRAIN
        config_record = message.content.config_records.get(message_keys.CONFIG, {})
        if is_train and config_record[message_keys.SERVER_ROUND] == 2:
            return None if client % 2 else Message(Error(code=2, reason="out of memory"), reply_to=message)
        return reply

    events, _ = execute(config, run, tamper=tamper)
    assert {c for _, c, _ in events.left_out} == {c for _, clients in events.trained[1:2] for c in clients}
    np.testing.assert_array_equal(run.load_checkpoint("finetune", 1).vector, run.load_checkpoint("finetune", 2).vector)


def test_strict_stops_at_the_first_failed_client(tmp_path):
    config, run = new_run(tmp_path, "strict", *QUIET, "strict=true")

    def tamper(client, message, reply):
        failing = message.metadata.message_type == message_keys.TRAIN
        return Message(Error(code=2, reason="disk full"), reply_to=message) if failing else reply

    with pytest.raises(RunFailed, match="disk full"):
        execute(config, run, tamper=tamper)


def test_a_client_with_another_base_model_refuses(tmp_path, monkeypatch):
    config, run = new_run(tmp_path, "foreign", *QUIET, "stages=[finetune]", "federation.rounds.finetune=1")
    monkeypatch.setattr("oblivionis.server.run_context.fingerprint_model", lambda *_: "f" * 64)
    events = Recorded()
    with pytest.raises(RunFailed, match=r"nobody trained, all 2 replies were left out; .* another base model"):
        execute(config, run, events=events)
    assert len(events.left_out) == 2
    assert all("another base model" in reason for _, _, reason in events.left_out)


def test_start_from_shares_finetune_and_retrain(finished, tmp_path):
    _, whole, _, _ = finished
    config, run = new_run(tmp_path, "second", "federation.rounds.unlearn=4", f"start_from={whole.path}")
    _, grid = execute(config, run)
    assert final_metrics(run) == final_metrics(whole)
    assert sum(kind == message_keys.TRAIN for _, kind in grid.sent) == 8, "four rounds of two clients, unlearn only"


def test_unlearning_goes_on_with_the_moments_of_finetune(tmp_path):
    """Both begin with the same model and the same answers: what the momentum adds is all that is between them."""
    common = ("strategy=fedavgm", "federation.rounds.finetune=2", "federation.rounds.unlearn=1", *QUIET)
    _, whole = made = new_run(tmp_path, "whole", "stages=[finetune]", *common)
    execute(*made)
    vectors = {}
    for mode in ("keep", "reset"):
        config, run = new_run(
            tmp_path,
            mode,
            "stages=[unlearn]",
            "unlearning.requests.policy=none",
            f"strategy.server_state_from_finetune={mode}",
            f"start_from={whole.path}",
            *common,
        )
        execute(config, run)
        vectors[mode] = run.load_checkpoint("unlearn").vector
    (momentum,) = whole.load_checkpoint("finetune").strategy_state.values()
    assert np.abs(momentum).max() > 0
    np.testing.assert_allclose(vectors["keep"] - vectors["reset"], 0.9 * momentum.ravel(), rtol=1e-3, atol=1e-6)


def test_start_from_refuses_other_settings(finished, tmp_path):
    _, whole, _, _ = finished
    config, run = new_run(tmp_path, "other", f"start_from={whole.path}", "training.learning_rate=0.5")
    with pytest.raises(RunError, match="training"):
        execute(config, run)


class StoppedAfterTwo(Recorded):
    """Of four clients, each by itself."""

    def round_finished(self, round, seconds):
        if round == 2:
            self.stop.set()


def test_local_trains_each_client_alone_and_can_be_continued(tmp_path):
    config, run = new_run(tmp_path, "local", "stages=[local]", "federation.rounds.local=1", *QUIET)
    execute(config, run)
    summary = run.stage_summary("local")
    assert summary["clients"] == 4
    rows = [r["metrics"]["retain_prob"] for r in run.metrics() if r["stage"] == "local" and r["evaluator"] == "tofu"]
    assert summary["metrics"]["retain_prob"] == pytest.approx(np.mean(rows))
    assert not run.nodes_path.exists(), "local tombstones lie apart from those of the federation"
    config, stopped = new_run(tmp_path, "stopped", "stages=[local]", "federation.rounds.local=1", *QUIET)
    with pytest.raises(RunInterrupted):
        execute(config, stopped, events=StoppedAfterTwo(threading.Event()))
    _, grid = execute(config, stopped)
    assert {client for client, kind in grid.sent if kind == message_keys.TRAIN} == {2, 3}
    assert stopped.stage_summary("local")["metrics"] == summary["metrics"]
