"""Whole runs of a federation in shards: who is trained again, what is kept, and what is served."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.nodes import write_nodes
from support.stages import Recorded, execute, new_run

from oblivionis.array_files import read_arrays, write_arrays
from oblivionis.audits.chat import Chat
from oblivionis.audits.exchange_replay import replay_exchange, replay_training
from oblivionis.audits.replay import DIFFERS, EQUAL, NOT_TESTABLE
from oblivionis.client import audit as client_audit
from oblivionis.client.worker import Worker
from oblivionis.config import compose as configuration
from oblivionis.data.records import Corpus
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.node_record_files import read_node
from oblivionis.erasure.verification_rules import ERASED
from oblivionis.errors import ClientError, RunError, RunInterrupted
from oblivionis.measures.assessor import Assessor, evaluate_checkpoint
from oblivionis.measures.audit_numbers import read_audit
from oblivionis.models.shard_merges import assemble_served
from oblivionis.reports.exported_model import ExportError, export
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.runs.updates import open_stores
from strategies import message_keys

SHARDS = 3
SETTINGS = (
    *("unlearning=exact", "strategy=fedadam", "evaluation.every=0", "federation.clients=6", "data.forget_authors=1"),
    *("federation.rounds.finetune=3", "federation.rounds.retrain=3", "federation.rounds.unlearn=2"),
    *("federation.fraction_train=0.7", f"federation.shards={SHARDS}", "federation.shard_placement=by_risk"),
)


def watched(config, run, **options):
    """Run it; the settings of each message of training with its client, and the events."""
    seen = []

    def watch(client, message, reply):
        if message.metadata.message_type == message_keys.TRAIN:
            size = message.content[message_keys.ARRAYS][message_keys.ADAPTER].shape[0]
            seen.append((client, dict(message.content[message_keys.CONFIG]), size))
        return reply

    events, _ = execute(config, run, watch, **options)
    return seen, events


@pytest.fixture(scope="module")
def erased(tmp_path_factory):
    config, run = new_run(tmp_path_factory.mktemp("runs"), "whole", *SETTINGS)
    return config, run, *watched(config, run)


def test_the_model_after_the_exchange_is_the_retrained_one(erased):
    _, run, seen, events = erased
    requests = list(Ledger(run.ledger_path))
    assert requests and all(request.served_round == 1 for request in requests), events.left_out
    retrained = run.load_checkpoint("retrain").vector
    assert {entry["after"] for entry in run.lines("applied")} == {vector_hash(retrained)}
    assert {request.outcome for request in requests} == {ERASED}
    for entry in run.lines("applied"):
        assert entry["parts_after"] == [vector_hash(part) for part in np.split(retrained, SHARDS)]
    sizes = {size for _, _, size in seen}
    assert {SHARDS * size for size in sizes} == {retrained.size}


def test_only_the_shard_of_those_that_ask_is_trained_again(erased):
    config, run, seen, _ = erased
    again = {client for client, settings, _ in seen if message_keys.REPLAY in settings}
    stores = open_stores(config, run.path, "unlearn")
    members = [{client for past in store.rounds() for client in past.clients} for store in stores]
    assert not any(one & other for one, other in ((members[0], members[1]), (members[1], members[2])))
    asking = {request.client for request in Ledger(run.ledger_path)}
    (shard,) = [number for number, own in enumerate(members) if own & again]
    assert again <= members[shard] and asking <= members[shard], "those that ask lie together"
    generations = [sorted(folder.name for folder in store.path.iterdir()) for store in stores]
    assert generations == [["0001"] if number == shard else ["0000"] for number in range(SHARDS)]
    finetuned, final = (run.load_checkpoint(stage) for stage in ("finetune", "retrain"))
    parts = zip(*(np.split(each.vector, SHARDS) for each in (finetuned, final)), strict=True)
    for number, (before, after) in enumerate(parts):
        assert np.array_equal(before, after) is (number != shard)


def test_a_round_is_stored_for_the_shards_that_took_part(erased):
    config, run, _, _ = erased
    for shard, store in enumerate(open_stores(config, run.path, "unlearn")):
        for number, past in enumerate(store.rounds()):
            file = store.path.glob(f"*/{past.stage}/round-{past.round:04d}.safetensors")
            arrays, _ = read_arrays(next(file), "file")
            whole = run.load_checkpoint("finetune").vector.size
            assert arrays["global"].size == whole // SHARDS
            assert past.clients or number == 0, f"shard {shard} stores a round without clients"


def test_anybody_can_hold_the_rounds_of_each_shard_again(erased):
    _, run, _, _ = erased
    found = replay_exchange(run.path, run.lines("applied")[0]["id"])
    assert {finding.outcome for finding in found} == {EQUAL}, [f for f in found if f.outcome != EQUAL]
    for shard in range(SHARDS):
        rounds = [f.what for f in found if f.what.startswith(f"shard {shard}: round ")]
        assert f"shard {shard}: model before any training" in {f.what for f in found} and len(rounds) > 1


def test_a_stored_model_of_a_shard_that_was_changed_is_found(erased):
    config, run, _, _ = erased
    store = open_stores(config, run.path, "unlearn")[1]
    past = [past for past in store.rounds() if past.stored][-1]
    file = next(store.path.glob(f"*/{past.stage}/round-{past.round:04d}.safetensors"))
    kept = file.read_bytes()
    arrays, info = read_arrays(file, "file")
    arrays["global"] = arrays["global"] + np.float32(1e-4)
    write_arrays(file, arrays, info)
    found = replay_exchange(run.path, run.lines("applied")[0]["id"])
    file.write_bytes(kept)
    differing = {finding.what for finding in found if finding.outcome == DIFFERS}
    assert differing and all(what.startswith("shard 1: round ") for what in differing)


@pytest.mark.parametrize("stop_in", [("finetune", 3), ("unlearn", 1), ("unlearn", 2)])
def test_resume_equals_not_stopping(erased, tmp_path, stop_in):
    _, whole, _, _ = erased
    config, run = new_run(tmp_path, "stopped", *SETTINGS)
    with pytest.raises(RunInterrupted):
        execute(config, run, events=Recorded(threading.Event(), stop_in))
    execute(configuration.from_yaml(run.read_config()), RunDirectory.open(run.path))
    _same(run, whole)


def test_resume_within_a_replay_equals_not_stopping(erased, tmp_path):
    _, whole, _, _ = erased
    config, run = new_run(tmp_path, "stopped", *SETTINGS)
    stop = threading.Event()

    def tamper(client, message, reply):
        settings = message.content.config_records.get(message_keys.CONFIG, {})
        if settings.get(message_keys.REPLAY) and settings[message_keys.SERVER_ROUND] == 2:
            stop.set()
        return reply

    with pytest.raises(RunInterrupted):
        execute(config, run, tamper, events=Recorded(stop))
    execute(configuration.from_yaml(run.read_config()), RunDirectory.open(run.path))
    _same(run, whole)


def _same(run, whole):
    one, other = (each.load_checkpoint("unlearn") for each in (run, whole))
    np.testing.assert_array_equal(one.vector, other.vector)
    assert one.strategy_state.keys() == other.strategy_state.keys()
    assert {e["after"] for e in run.lines("applied")} == {e["after"] for e in whole.lines("applied")}
    assert run.stage_summary("unlearn")["metrics"] == whole.stage_summary("unlearn")["metrics"]


@pytest.mark.parametrize("merge", ["mean", "stack", "ensemble"])
def test_each_merge_is_measured_asked_and_exported(erased, tmp_path, merge):
    _, run, _, _ = erased
    override = [f"federation.shard_merge={merge}"]
    _, _, measured = evaluate_checkpoint(run.path, "finetune", override)
    assert measured.report.failed == {} and 0 < measured.metrics["forget_prob"] < 1
    if merge == "mean":
        stored = run.stage_summary("finetune")["metrics"]
        assert measured.metrics["forget_prob"] == stored["forget_prob"]
    chat = Chat(run.path, ["finetune"], overrides=override)
    assert all(chat.ask("Who?").answers.values())


@pytest.mark.parametrize("merge", ["mean", "stack", "ensemble"])
def test_clients_with_records_of_their_own_audit_what_is_served(tmp_path, merge):
    write_nodes(tmp_path / "nodes", 4)
    config, run = new_run(
        *(tmp_path, merge, "unlearning=exact", "evaluation.every=0", "federation.shards=2", "data=node"),
        *(f"data.nodes={tmp_path / 'nodes'}", "unlearning.requests.policy=nodes", f"federation.shard_merge={merge}"),
        *("stages=[finetune,unlearn]", "federation.rounds.unlearn=2", "federation.fraction_train=1"),
    )
    ledger = NodeLedger(tmp_path / "nodes" / "node1")
    ledger.submit(["p1-home"])
    events, _ = execute(config, run)
    (request,) = Ledger(run.ledger_path)
    assert (request.outcome, events.left_out) == (ERASED, [])
    audit, final = read_audit(run.path, request.id), run.load_checkpoint("unlearn").vector
    assert "failed" not in audit and audit["signatures"]["final"]["model"] == vector_hash(final)
    worker = Worker(config)
    worker.hold(1, read_node(tmp_path / "nodes" / "node1"))
    record = tuple(r for r in worker.holding(1).records if r.id == "p1-home")
    corpus = Corpus("node", record, frozenset(["p1-home"]), {"forget": record})
    for moment, stage in (("before", "finetune"), ("final", "unlearn")):
        assessor = Assessor(assemble_served(config), corpus, config, names=())
        known = assessor.knowledge(run.load_checkpoint(stage).vector, ["p1-home"], rouge=False)
        assert audit[moment]["request_prob"] == pytest.approx(known["prob"]["p1-home"], rel=1e-6)
    assert audit["final"]["request_prob"] != audit["before"]["request_prob"]
    with pytest.raises(ClientError, match=rf"client 1 is to audit a model of {final.size // 2} numbers, the run's has"):
        client_audit.audit(worker, 1, np.split(final, 2)[0], {"p1-home"}, (), tmp_path / "nodes" / "node1")
    assert {finding.outcome for finding in replay_exchange(run.path, run.lines("applied")[0]["id"])} == {EQUAL}
    assert [r.state for r in NodeLedger(tmp_path / "nodes" / "node1").requests()] == [ERASED]


def test_an_ensemble_is_not_exported(tmp_path):
    config, run = new_run(tmp_path, "ensemble", *SETTINGS, "federation.shard_merge=ensemble", "stages=[finetune]")
    execute(config, run)
    with pytest.raises(ExportError, match="serves 3 models and the mean of what they say"):
        export(run.path, None, tmp_path / "exported")


def test_a_run_of_other_shards_is_no_start(erased, tmp_path):
    _, source, _, _ = erased
    others = [text for text in SETTINGS if text != "unlearning=exact" and "placement" not in text]
    config, run = new_run(tmp_path, "other", "unlearning=npo", *others, f"start_from={source.path}")
    with pytest.raises(RunError, match=r"other settings: federation\.shard_placement"):
        execute(config, run)


@pytest.mark.parametrize("method", ["npo", "federaser", "rapid_retraining"])
def test_other_methods_unlearn_in_the_shard_of_who_asks(erased, tmp_path, method):
    quick = ["stages=[finetune,unlearn]", "federation.rounds.unlearn=1", "federation.fraction_train=1"]
    settings = [text for text in SETTINGS if text != "unlearning=exact"]
    config, run = new_run(tmp_path, method, f"unlearning={method}", *settings, *quick)
    execute(config, run)
    assert all(request.served_round == 1 for request in Ledger(run.ledger_path))
    (line, *_) = run.lines("applied")
    assert line["before"] != line["after"]
    for found in (replay_exchange(run.path, line["id"]), replay_training(run.path, 0, 1)):
        assert (found[-1].outcome, "only exact erasures are held again" in found[-1].why) == (NOT_TESTABLE, True)
