"""Whole runs of FedEraser, PGA, NoT, FUSED and rapid retraining in one process, as `test_stages` for other methods."""

import json
import shutil
import threading

import numpy as np
import pytest
from support.churn import QUIET
from support.stages import WHOLE_MODEL, Recorded, execute, final_metrics, new_run, tombstones

from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.errors import RunError, RunInterrupted
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.updates import open_updates
from strategies import message_keys

ROUNDS = ("federation.rounds.finetune=3", "federation.rounds.unlearn=3", *QUIET)
ERASER = (*ROUNDS, "unlearning=federaser", "unlearning.updates.every=1", "strategy=fedavgm")


@pytest.fixture(scope="module")
def erased(tmp_path_factory):
    config, run = new_run(tmp_path_factory.mktemp("runs"), "whole", *ERASER)
    events, grid = execute(config, run)
    return config, run, events, grid


def history(config, run):
    return open_updates(config, run.path, "unlearn")


def test_federaser_serves_the_requests_without_any_unlearning_on_clients(erased):
    _, run, events, grid = erased
    requests = list(Ledger(run.ledger_path))
    assert len(requests) == 2 and all(r.state in ("served", "verified") for r in requests)
    kinds = {kind for _, kind in grid.sent}
    assert kinds == {message_keys.QUERY, message_keys.BURY, message_keys.TRAIN}
    assert sorted(c for c, kind in grid.sent if kind == message_keys.BURY) == sorted(r.client for r in requests)
    assert tombstones(run) == {i for r in requests for i in r.record_ids}
    assert not events.left_out
    before, after = (run.load_checkpoint(stage).vector for stage in ("finetune", "unlearn"))
    assert not np.array_equal(before, after)


def test_no_update_of_an_erased_client_from_before_its_request_is_left(erased):
    config, run, _, _ = erased
    for request in Ledger(run.ledger_path):
        for past in history(config, run).rounds():
            if past.stage == "finetune" or past.round < request.served_round:
                stored = history(config, run).read(past) if past.stored else None
                assert request.client not in past.clients
                assert stored is None or request.client not in [u.partition for u in stored.clients]
    assert len(list((run.path / "updates").iterdir())) == 1, "earlier generations are deleted"


@pytest.mark.parametrize("reached", [("calibrate/1/finetune", 2), ("calibrate/2/finetune", 3), ("unlearn", 2)])
def test_resume_within_an_erasure_equals_not_stopping(erased, tmp_path, reached):
    _, whole, _, _ = erased
    config, run = new_run(tmp_path, "stopped", *ERASER)
    stop = threading.Event()

    def tamper(client, message, reply):
        settings = message.content.config_records.get(message_keys.CONFIG, {})
        if (settings.get(message_keys.STAGE), settings.get(message_keys.SERVER_ROUND)) == reached:
            stop.set()
        return reply

    with pytest.raises(RunInterrupted):
        execute(config, run, tamper, events=Recorded(stop))
    execute(configuration.from_yaml(run.read_config()), RunDirectory.open(run.path))
    assert final_metrics(run) == final_metrics(whole)
    np.testing.assert_array_equal(run.load_checkpoint("unlearn").vector, whole.load_checkpoint("unlearn").vector)
    ours, theirs = history(config, run), history(config, whole)
    assert ours.rounds() == theirs.rounds()
    for past in filter(lambda past: past.stored, ours.rounds()):
        for a, b in zip(ours.read(past).clients, theirs.read(past).clients, strict=True):
            assert a.partition == b.partition and a.arrays["adapter"].data == b.arrays["adapter"].data


def test_finetune_with_its_updates_is_reused(erased, tmp_path):
    _, whole, _, _ = erased
    config, run = new_run(tmp_path, "base", *ERASER, "stages=[finetune,retrain]")
    execute(config, run)
    config, second = new_run(tmp_path, "second", *ERASER, f"start_from={run.path}")
    execute(config, second)
    assert final_metrics(second) == final_metrics(whole)
    np.testing.assert_array_equal(second.load_checkpoint("unlearn").vector, whole.load_checkpoint("unlearn").vector)
    config, third = new_run(tmp_path, "third", *ROUNDS, "strategy=fedavgm", "unlearning=pga", f"start_from={run.path}")
    execute(config, third)
    assert all(r.state in ("served", "verified") for r in Ledger(third.ledger_path))


def test_reusing_a_run_without_updates_fails_before_any_work(erased, tmp_path):
    _, whole, _, _ = erased
    config, run = new_run(tmp_path, "late", *ERASER, f"start_from={whole.path}")
    with pytest.raises(RunError, match=r"any round of finetune.*stages=\[finetune,retrain\].*unlearning=federaser"):
        execute(config, run)
    assert not (run.path / "stages").exists() and not (run.path / "checkpoints").exists()


def test_a_run_whose_updates_are_gone_does_not_serve_falsely(tmp_path):
    config, run = new_run(tmp_path, "gone", *ERASER, "stages=[finetune,unlearn]", "federation.rounds.unlearn=1")
    execute(config, run)
    for folder in ("updates", "checkpoints/unlearn"):
        shutil.rmtree(run.path / folder)
    (run.path / "stages/unlearn.json").unlink()
    run.ledger_path.unlink()
    with pytest.raises(RunError, match="does not hold the clients' updates of any round of finetune"):
        execute(config, run)


def test_a_window_that_is_too_short_leaves_the_request_pending_with_the_reason(tmp_path):
    config, run = new_run(
        tmp_path, "short", *ERASER, "stages=[finetune,unlearn]", "unlearning.updates.keep=1",
        "federation.fraction_train=1.0", "unlearning.requests.extra_rounds=0",
    )  # fmt: skip
    events, _ = execute(config, run)
    assert {r.state for r in Ledger(run.ledger_path)} == {"pending"}
    assert all("round 1 of finetune" in reason for _, _, reason in events.left_out) and events.left_out
    assert len(list((run.path / "updates").rglob("*.safetensors"))) == 1
    assert any("still pending" in warning for warning in events.warnings)


def test_pga_serves_the_requests_and_keeps_as_many_rounds_as_checkpoints(tmp_path):
    settings = ("unlearning=pga", "federation.keep_checkpoints=2", "stages=[finetune,unlearn]")
    config, run = new_run(tmp_path, "pga", *ROUNDS, *settings)
    references = {}

    def tamper(client, message, reply):
        if message.metadata.message_type == message_keys.UNLEARN:
            records = message.content.array_records
            round = message.content.config_records[message_keys.CONFIG][message_keys.SERVER_ROUND]
            references[round] = [
                records[k][message_keys.ADAPTER].numpy() for k in (message_keys.REFERENCE, message_keys.ARRAYS)
            ]
        return reply

    execute(config, run, tamper)
    assert all(r.state in ("served", "verified") for r in Ledger(run.ledger_path))
    assert sorted(references) == [1, 2]
    for reference, sent in references.values():
        assert reference.shape == sent.shape and not np.array_equal(reference, sent)
    files = sorted(p.name for p in (run.path / "updates/0000/unlearn").iterdir())
    assert files == ["round-0002.safetensors", "round-0003.safetensors"]
    assert not list((run.path / "updates/0000/finetune").iterdir())
    for event in map(json.loads, run.ledger_path.open()):
        if event["event"] == "served":
            assert event["told"]["forget-nll-after"] > event["told"]["forget-nll-before"]


def test_not_negates_on_the_server_and_the_clients_train_on(tmp_path):
    settings = ("unlearning=weight_negation", "evaluation.after_unlearn=true", "stages=[finetune,unlearn]")
    config, run = new_run(tmp_path, "not", "federation.rounds.unlearn=2", "evaluation.every=0", *settings)
    sent = {}

    def tamper(client, message, reply):
        if message.metadata.message_type == message_keys.TRAIN:
            settings = message.content.config_records[message_keys.CONFIG]
            key = settings[message_keys.STAGE], settings[message_keys.SERVER_ROUND]
            sent[key] = message.content.array_records[message_keys.ARRAYS][message_keys.ADAPTER].numpy()
        return reply

    _, grid = execute(config, run, tamper)
    requests = list(Ledger(run.ledger_path))
    assert requests and all(r.state in ("served", "verified") and r.served_round == 1 for r in requests)
    assert {kind for _, kind in grid.sent} == {message_keys.QUERY, message_keys.BURY, message_keys.TRAIN}
    finetuned, first = run.load_checkpoint("finetune").vector, sent["unlearn", 1]
    changed = finetuned != first
    assert changed.any() and not changed.all() and np.array_equal(first[changed], -finetuned[changed])
    assert not np.array_equal(run.load_checkpoint("unlearn").vector, first)


def beside(method, tmp_path):
    """A method that trains beside the rounds, whole and stopped: what was sent, the last message and its client."""
    settings = (f"unlearning={method}", "unlearning.params.rounds=2", "stages=[finetune,unlearn]")
    short = (WHOLE_MODEL, "federation.rounds.unlearn=1", "evaluation.every=0", *settings)
    sent, last, stop = {}, {}, threading.Event()

    def tamper(client, message, reply):
        if message.metadata.message_type == message_keys.TRAIN:
            settings = message.content.config_records[message_keys.CONFIG]
            key = settings[message_keys.STAGE], settings[message_keys.SERVER_ROUND]
            sent[key] = message.content.array_records[message_keys.ARRAYS][message_keys.ADAPTER].numpy()
            if "/" in key[0] and key[1] == 2:
                last["message"] = message
                stop.set()
        return reply

    config, run = new_run(tmp_path, "whole", *short)
    _, grid = execute(config, run, tamper)
    context = grid.contexts[last["message"].metadata.dst_node_id]
    requests = list(Ledger(run.ledger_path))
    assert requests and all(r.state in ("served", "verified") and r.served_round == 1 for r in requests)
    assert {kind for _, kind in grid.sent} == {message_keys.QUERY, message_keys.BURY, message_keys.TRAIN}
    served = [event for event in map(json.loads, run.ledger_path.open()) if event["event"] == "served"]
    assert served and all(event["rebuilt-rounds"] == 2 for event in served)

    stop.clear()
    config, stopped = new_run(tmp_path, "stopped", *short)
    with pytest.raises(RunInterrupted):
        execute(config, stopped, tamper, events=Recorded(stop))
    execute(configuration.from_yaml(stopped.read_config()), RunDirectory.open(stopped.path))
    np.testing.assert_array_equal(*(r.load_checkpoint("unlearn").vector for r in (stopped, run)))
    return run, sent, last["message"], context


def test_rapid_retraining_starts_from_the_beginning_and_goes_on_after_a_stop(tmp_path):
    _, sent, _, _ = beside("rapid_retraining", tmp_path)
    assert np.array_equal(sent["retraining/1", 1], sent["train", 1])
    assert not np.array_equal(sent["retraining/1", 2], sent["train", 1])
    assert not np.array_equal(sent["unlearn", 1], sent["retraining/1", 2])


def test_fused_changes_its_adapters_alone_and_goes_on_after_a_stop(tmp_path):
    run, sent, message, context = beside("fused", tmp_path)
    finetuned = run.load_checkpoint("finetune").vector
    for round in (0, 1):
        assert np.array_equal(sent["overwriting/1", round], finetuned)
    first, second = (sent[key] != finetuned for key in (("overwriting/1", 2), ("unlearn", 1)))
    assert first.any() and not (first & ~second).any(), "the same places in both rounds"
    assert 0 < second.mean() <= 0.1
    assert (run.load_checkpoint("unlearn").vector != finetuned).mean() > 0.5, "FedFT then trains all"

    config = message.content.config_records[message_keys.CONFIG]
    for bits in (config[message_keys.MOVING][:-1], config[message_keys.MOVING] + b"\0", "all"):
        config[message_keys.MOVING] = bits
        reply = app(message=message, context=context)
        assert reply.has_error() and "was not sent a bit for each of" in reply.error.reason
