"""Whole runs of exact erasure: the model becomes the retrained one bit for bit, and clients see to it."""

import json
import re
import threading

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from support.inprocess import InProcessGrid
from support.stages import EXACT, Recorded, execute, new_run

from oblivionis import seeds
from oblivionis.audits.exchange_replay import replay_exchange
from oblivionis.audits.replay import EQUAL
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
from oblivionis.server.app import serve
from strategies import message_keys


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
    assert {finding.outcome for finding in replay_exchange(run.path, applied(run)[-1]["id"])} == {EQUAL}
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
