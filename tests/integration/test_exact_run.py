"""Whole runs of exact erasure: the model becomes the retrained one bit for bit, and anybody can compute it again."""

import json
import re
import threading

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from support.churn import QUIET
from support.inprocess import InProcessGrid
from support.stages import Recorded, execute, new_run

from oblivionis import seeds
from oblivionis.array_files import read_arrays, write_arrays
from oblivionis.audits.exchange_replay import DIFFERS, EQUAL, NOT_TESTABLE, replay_exchange, replay_training
from oblivionis.client.app import app
from oblivionis.client.worker import Worker
from oblivionis.config import compose as configuration
from oblivionis.data.corpora import load_corpus, load_partition
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.node_record_files import FACTS_FILE
from oblivionis.errors import RunError, RunInterrupted
from oblivionis.models.assembly import assemble
from oblivionis.naming import simulated_folder
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.runs.updates import open_updates
from oblivionis.server.app import serve
from strategies import message_keys

EXACT = (
    *("unlearning=exact", "strategy=fedadam", *QUIET, "federation.clients=3"),
    *("federation.rounds.finetune=3", "federation.rounds.retrain=3", "federation.rounds.unlearn=2"),
    "federation.fraction_train=0.7",
)


@pytest.fixture(scope="module")
def erased(tmp_path_factory):
    config, run = new_run(tmp_path_factory.mktemp("runs"), "whole", *EXACT)
    messages = []

    def keep(client, message, reply):
        messages.append((client, message))
        return reply

    events, grid = execute(config, run, keep)
    grid.messages = messages
    return config, run, events, grid


def untrained(config):
    return assemble(config.model, seeds.derive(config.seed, "adapter")).flat.numpy()


def applied(run):
    return run.lines("applied")


def test_the_model_after_the_exchange_is_the_retrained_one(erased):
    _, run, events, grid = erased
    assert all(request.served_round == 1 for request in Ledger(run.ledger_path))
    retrained = vector_hash(run.load_checkpoint("retrain").vector)
    assert {entry["after"] for entry in applied(run)} == {retrained}
    assert {entry["before"] for entry in applied(run)} == {vector_hash(run.load_checkpoint("finetune").vector)}
    assert message_keys.UNLEARN not in {kind for _, kind in grid.sent}
    assert not events.left_out


def test_anybody_can_hold_the_rounds_again(erased):
    _, run, _, _ = erased
    findings = replay_exchange(run.path, applied(run)[0]["id"])
    assert {finding.outcome for finding in findings} == {EQUAL}
    rounds = [
        f"round {number} of {stage}"
        for stage, last in (("finetune", 3), ("unlearn", 2))
        for number in range(1, last + 1)
    ]
    assert [finding.what for finding in findings if finding.what.startswith("round ")] == rounds
    some = replay_exchange(run.path, applied(run)[0]["id"], pieces=2)
    assert len([finding for finding in some if finding.what.startswith("round ")]) == 2


def test_a_round_that_was_not_held_without_the_records_is_found(erased):
    """The stored rounds of the finetuned model, which knows the records, in place of those of the exchange."""
    config, run, _, _ = erased
    store = open_updates(config, run.path, "unlearn")
    file = next(store.path.glob("*/finetune/round-0003.safetensors"))
    kept = file.read_bytes()
    arrays, info = read_arrays(file, "file")
    arrays["global"] = arrays["global"] + np.float32(1e-4)
    write_arrays(file, arrays, info)
    found = {finding.what: finding.outcome for finding in replay_exchange(run.path, applied(run)[0]["id"])}
    file.write_bytes(kept)
    assert found["round 2 of finetune"] == DIFFERS
    assert found["round 3 of finetune"] == NOT_TESTABLE, "no client's ledger has a line about that model"


def outcomes(run, **settings):
    """What a replay of the newest exchange comes to, without what is equal."""
    findings = replay_exchange(run.path, applied(run)[-1]["id"], **settings)
    return {finding.what: (finding.outcome, finding.why) for finding in findings if finding.outcome != EQUAL}


def test_bounds_hold_in_a_replay_and_the_model_between_stored_rounds_is_compared(tmp_path):
    """A weight is cut in every round, and the round of the exchange itself is not stored."""
    config, run = new_run(
        *(tmp_path, "bounded", *EXACT, "federation.fraction_train=1", "federation.max_weight_share=0.34"),
        *("unlearning.updates.every=2", "unlearning.requests.round=2"),
    )
    events, _ = execute(config, run)
    cut = [row["cut"] for row in run.metrics() if row.get("cut")]
    assert {entry["what"] for entries in cut for entry in entries} == {"weight"}
    assert all(request.served_round == 2 for request in Ledger(run.ledger_path)), events.left_out
    assert outcomes(run) == {}
    after = [f for f in replay_exchange(run.path, applied(run)[0]["id"]) if f.what.startswith("model after")]
    assert [finding.outcome for finding in after] == [EQUAL]
    few = [outcomes(run, pieces=1) for _ in range(8)]
    assert all(set(found) <= {"model after the exchange of round 2"} for found in few)


def test_a_replay_that_failed_leaves_nothing_that_an_audit_trips_over(tmp_path):
    """The second exchange fails half way: its clients' ledgers have lines about it, and the lineage has none."""
    each = ("unlearning.requests.policy=random_client_per_round", "unlearning.requests.extra_rounds=0")
    config, run = new_run(tmp_path, "failing", *EXACT, "strategy=fedavg", "federation.fraction_train=1", *each)

    def fail(client, message, reply):
        settings = message.content.config_records.get(message_keys.CONFIG, {})
        late = settings.get(message_keys.REPLAY) == 2 and settings[message_keys.SERVER_ROUND] == 3
        return Message(Error(code=1, reason="gone"), reply_to=message) if late and client == 0 else reply

    execute(config, run, fail)
    served = [request.served_round for request in Ledger(run.ledger_path)]
    assert sorted(served, key=str) == [1, None]
    assert outcomes(run) == {}


def test_an_applied_line_of_a_request_that_was_rolled_back_is_not_looked_at(tmp_path):
    each = ("unlearning.requests.policy=random_client_per_round", "unlearning.requests.extra_rounds=0")
    config, run = new_run(tmp_path, "resumed", *EXACT, "strategy=fedavg", "federation.fraction_train=1", *each)
    stop = threading.Event()

    def tamper(client, message, reply):
        settings = message.content.config_records.get(message_keys.CONFIG, {})
        own = message.metadata.message_type == message_keys.TRAIN and message_keys.REPLAY not in settings
        if own and (settings[message_keys.STAGE], settings[message_keys.SERVER_ROUND]) == ("unlearn", 2):
            stop.set()
        return reply

    def fail(client, message, reply):
        settings = message.content.config_records.get(message_keys.CONFIG, {})
        again = settings.get(message_keys.REPLAY)
        return Message(Error(code=1, reason="gone"), reply_to=message) if again else reply

    with pytest.raises(RunInterrupted):
        execute(config, run, tamper, events=Recorded(stop))
    assert {entry["round"] for entry in applied(run)} == {1, 2}
    execute(configuration.from_yaml(run.read_config()), RunDirectory.open(run.path), fail)
    (first,) = [request.id for request in Ledger(run.ledger_path) if request.served_round]
    assert {finding.outcome for finding in replay_exchange(run.path, first)} == {EQUAL}


def test_what_clients_withhold_by_themselves_is_in_no_round_that_is_held_again(tmp_path):
    """A request on a client's own machine, of which this server's exchange names nothing, asks for a record."""
    config, run = new_run(tmp_path, "withholding", *EXACT)
    live, ids = [], load_partition(load_corpus(config.data), config).ids

    def tamper(client, message, reply):
        settings = message.content.config_records.get(message_keys.CONFIG, {})
        if message.metadata.message_type == message_keys.BURY and not live:
            other = min(set(range(3)) - {client})
            left = [i for i in ids[client] if i not in settings["record-ids"]]
            NodeLedger(run.nodes_path / str(client)).submit(left[:1])
            NodeLedger(run.nodes_path / str(other)).submit(ids[other][-1:])
            reply = app(message, grid.contexts[message.metadata.dst_node_id])
            live.append((reply.content["metrics"]["live-records"], len(left) - 1))
        return reply

    grid = InProcessGrid(app, config.federation.clients, tamper)
    events = Recorded()
    serve(config, grid, run, events, threading.Event())
    assert live and all(said == left for said, left in live)
    assert all(request.served_round == 1 for request in Ledger(run.ledger_path)), events.left_out
    assert outcomes(run) == {}
    assert {e["after"] for e in applied(run)} != {vector_hash(run.load_checkpoint("retrain").vector)}


def test_a_round_in_which_no_drawn_client_has_a_record_left_is_told_so(tmp_path):
    leave = ("unlearning.requests.scope=client", "unlearning.requests.clients=[0,1,2]")
    config, run = new_run(tmp_path, "empty", *EXACT, "stages=[finetune,unlearn]", *leave)
    events, _ = execute(config, run)
    assert "round 2: nobody trained, none of those drawn has a record left" in events.warnings
    assert {entry["after"] for entry in applied(run)} == {vector_hash(untrained(config))}


def on_nodes(tmp_path, name, tamper):
    """Who trained in each round of unlearn where the clients hold the records themselves."""
    for client in range(4):
        folder = simulated_folder(f"{tmp_path / name}-nodes", client) / "data"
        folder.mkdir(parents=True)
        rows = [
            {"id": f"{client}-{i}", "question": f"Who is {client}-{i}?", "answer": f"Number {7 * client + i}."}
            for i in range(2 + client)
        ]
        (folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config, run = new_run(
        *(tmp_path, name, *EXACT, "federation.clients=4", "federation.fraction_train=0.5", "data=node"),
        *(f"data.nodes={tmp_path / name}-nodes", "stages=[finetune,unlearn]", "federation.rounds.unlearn=4"),
        "unlearning.requests.policy=nodes",
    )
    events, _ = execute(config, run, tamper)
    return [set(clients) for stage, clients in events.trained if stage == "unlearn"]


def test_who_is_drawn_goes_by_the_records_that_clients_had_at_first(tmp_path):
    asked = []

    def emptied(client, message, reply):
        if message.metadata.message_type == message_keys.QUERY and client == 1:
            asked.append(client)
            for record in reply.content.metric_records.values():
                if message_keys.LIVE_RECORDS in record and len(asked) > 1:
                    record[message_keys.NUM_RECORDS] = record[message_keys.LIVE_RECORDS] = 0
        return reply

    whole = on_nodes(tmp_path, "whole", None)
    assert any(1 in clients for clients in whole)
    left = on_nodes(tmp_path, "emptied", emptied)
    assert [clients for clients in left if clients] == [c for clients in whole if (c := clients - {1})]


def test_other_methods_do_not_start_from_the_models_of_an_exact_run(tmp_path):
    config, source = new_run(tmp_path, "models", *EXACT, "stages=[finetune]")
    execute(config, source)
    settings = [text for text in EXACT if text != "unlearning=exact"]
    config, run = new_run(tmp_path, "eraser", "unlearning=federaser", *settings, f"start_from={source.path}")
    with pytest.raises(RunError, match=r"does not hold the clients' updates of finetune \(it holds models only\)"):
        execute(config, run)


def test_a_single_training_of_an_exact_run_is_not_said_to_have_had_no_such_client(erased):
    _, run, _, _ = erased
    client = open_updates(configuration.from_yaml(run.read_config()), run.path, "finetune").rounds()[0].clients[0]
    last = replay_training(run.path, client, 1, stage="finetune")[-1]
    assert (last.outcome, "stores models only" in last.why) == (NOT_TESTABLE, True)


@pytest.mark.parametrize("stage", ["finetune", "unlearn"])
def test_rounds_of_another_run_are_audited_there(erased, monkeypatch, stage):
    _, run, _, _ = erased
    summary = RunDirectory.stage_summary

    def reused(self, name):
        found = summary(self, name)
        return {**found, "reused_from": "runs/other"} if found and name == stage else found

    monkeypatch.setattr(RunDirectory, "stage_summary", reused)
    last = replay_exchange(run.path, applied(run)[0]["id"])[-1]
    assert (last.outcome, last.why) == (
        NOT_TESTABLE,
        f"the stage {stage} is that of the run runs/other: audit it there",
    )


def test_a_state_that_the_aggregator_does_not_have_is_a_difference(erased):
    config, run, _, _ = erased
    file = next(open_updates(config, run.path, "unlearn").path.glob("*/finetune/round-0002.safetensors"))
    kept = file.read_bytes()
    arrays, info = read_arrays(file, "file")
    write_arrays(file, {**arrays, "state/another": np.zeros(3, np.float32)}, info)
    found = outcomes(run)
    file.write_bytes(kept)
    assert {what: outcome for what, (outcome, _) in found.items()} == {
        "round 1 of finetune": DIFFERS,
        "round 2 of finetune": DIFFERS,
    }


@pytest.mark.parametrize("reached", [("train", 2), ("unlearn", 1)])
def test_resume_within_a_replay_equals_not_stopping(erased, tmp_path, reached):
    _, whole, _, _ = erased
    config, run = new_run(tmp_path, "stopped", *EXACT)
    stop = threading.Event()

    def tamper(client, message, reply):
        settings = message.content.config_records.get(message_keys.CONFIG, {})
        again = settings.get(message_keys.REPLAY) or reached[0] == "unlearn"
        if again and (settings.get(message_keys.STAGE), settings.get(message_keys.SERVER_ROUND)) == reached:
            stop.set()
        return reply

    with pytest.raises(RunInterrupted):
        execute(config, run, tamper, events=Recorded(stop))
    execute(configuration.from_yaml(run.read_config()), RunDirectory.open(run.path))
    np.testing.assert_array_equal(run.load_checkpoint("unlearn").vector, whole.load_checkpoint("unlearn").vector)
    assert {entry["after"] for entry in applied(run)} == {entry["after"] for entry in applied(whole)}


def test_a_client_holds_no_round_again_in_which_it_took_no_part(erased):
    client, _, ask = replaying(erased)
    for changed in ({message_keys.SERVER_ROUND: 77}, {message_keys.RUN: "another"}, {"replayed-before": 9}):
        reply = ask(**changed)
        assert reply.has_error()
        assert re.search(rf"client {client} is to hold round \d+ of train again, and its ledger", reply.error.reason)


def replaying(erased):
    """A client that asked for nothing, its folder, and how to have it hold its first round of finetune again."""
    _, run, _, grid = erased
    asked = {request.client for request in Ledger(run.ledger_path)}
    trained = [(c, m) for c, m in grid.messages if m.metadata.message_type == message_keys.TRAIN]
    client, message = next((c, m) for c, m in trained if c not in asked)

    def ask(**changed):
        settings = dict(message.content.config_records[message_keys.CONFIG])
        settings |= {message_keys.REPLAY: 1, message_keys.REPLAYED_BEFORE: 0, **changed}
        content = RecordDict({**message.content.array_records, message_keys.CONFIG: ConfigRecord(settings)})
        again = Message(content, dst_node_id=message.metadata.dst_node_id, message_type=message_keys.TRAIN)
        return app(again, grid.contexts[message.metadata.dst_node_id])

    return client, run.nodes_path / str(client), ask


def test_a_client_with_other_records_holds_no_round_again(erased):
    client, folder, ask = replaying(erased)
    assert not ask().has_error()
    (folder / FACTS_FILE).write_text("{}")
    reply = ask()
    (folder / FACTS_FILE).unlink()
    assert reply.has_error()
    assert f"client {client} holds other records than in round" in reply.error.reason


def test_a_client_whose_training_comes_out_otherwise_says_so(erased, monkeypatch):
    client, _, ask = replaying(erased)
    finetune = Worker.finetune

    def otherwise(self, *args, **settings):
        vector, report = finetune(self, *args, **settings)
        return vector + np.float32(1e-3), report

    monkeypatch.setattr(Worker, "finetune", otherwise)
    reply = ask()
    assert reply.has_error()
    assert f"client {client} does not give what it gave in round" in reply.error.reason
