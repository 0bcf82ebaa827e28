"""The replay of exact erasures by whole runs: anybody with the clients' folders can compute them again."""

import threading

import numpy as np
import pytest
from flwr.app import Error, Message
from support.stages import EXACT, Recorded, execute, new_run

from oblivionis.array_files import read_arrays, write_arrays
from oblivionis.audits.exchange_replay import replay_exchange, replay_training
from oblivionis.audits.replay import DIFFERS, EQUAL
from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.verification_rules import NOT_TESTABLE
from oblivionis.errors import RunInterrupted
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.updates import open_updates
from strategies import message_keys


@pytest.fixture(scope="module")
def erased(tmp_path_factory):
    """A finished run: its configuration and its folder."""
    config, run = new_run(tmp_path_factory.mktemp("runs"), "whole", *EXACT, "stages=[finetune,unlearn]")
    execute(config, run)
    return config, run


def applied(run):
    return run.lines("applied")


def test_anybody_can_hold_the_rounds_again(erased):
    _, run = erased
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
    config, run = erased
    store = open_updates(config, run.path, "unlearn")
    file = next(store.path.glob("*/finetune/round-0003.safetensors"))
    kept = file.read_bytes()
    arrays, info = read_arrays(file, "file")
    arrays["global"] = arrays["global"] + np.float32(1e-4)
    write_arrays(file, arrays, info)
    found = {finding.what: finding.outcome for finding in replay_exchange(run.path, applied(run)[0]["id"])}
    file.write_bytes(kept)
    assert {what: outcome for what, outcome in found.items() if outcome != EQUAL} == {"round 3 of finetune": DIFFERS}


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


def test_a_single_training_of_an_exact_run_is_not_said_to_have_had_no_such_client(erased):
    _, run = erased
    client = open_updates(configuration.from_yaml(run.read_config()), run.path, "finetune").rounds()[0].clients[0]
    last = replay_training(run.path, client, 1, stage="finetune")[-1]
    assert (last.outcome, "stores models only" in last.why) == (NOT_TESTABLE, True)


@pytest.mark.parametrize("stage", ["finetune", "unlearn"])
def test_rounds_of_another_run_are_audited_there(erased, monkeypatch, stage):
    _, run = erased
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
    config, run = erased
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
