"""Whole runs of exact erasure: the model becomes the retrained one bit for bit, and anybody can compute it again."""

import threading

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from support.stages import Recorded, execute, new_run

from oblivionis.array_files import read_arrays, write_arrays
from oblivionis.audits.exchange_replay import DIFFERS, EQUAL, NOT_TESTABLE, replay_exchange
from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.errors import RunInterrupted
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.runs.updates import open_updates
from strategies import message_keys

EXACT = (
    *("unlearning=exact", "strategy=fedadam", "evaluation.every=0", "federation.clients=3"),
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
    _, _, _, grid = erased
    client, message = next((c, m) for c, m in grid.messages if m.metadata.message_type == message_keys.TRAIN)
    settings = dict(message.content.config_records[message_keys.CONFIG])
    settings |= {message_keys.REPLAY: True, message_keys.SERVER_ROUND: 77}
    content = RecordDict({**message.content.array_records, message_keys.CONFIG: ConfigRecord(settings)})
    asked = Message(content, dst_node_id=message.metadata.dst_node_id, message_type=message_keys.TRAIN)
    reply = app(asked, grid.contexts[message.metadata.dst_node_id])
    assert reply.has_error()
    assert f"client {client} is to hold round 77 of" in reply.error.reason
