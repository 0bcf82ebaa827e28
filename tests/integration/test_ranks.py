"""Whole runs with clients of several LoRA ranks, and with compressed updates: server and clients in one process."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from support.churn import QUIET
from support.stages import Recorded, execute, new_run

from oblivionis.audits.exchange_replay import replay_exchange
from oblivionis.audits.replay import EQUAL
from oblivionis.client.compression_residuals import Residuals
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.errors import RunError, RunInterrupted
from oblivionis.models.adapters import load_vector
from oblivionis.runs.directory import RunDirectory
from strategies import message_keys

TWO_ASK = (
    "data.partition.scheme=iid",
    "unlearning.requests.policy=all_at_round",
    "stages=[finetune,unlearn]",
    "federation.rounds.unlearn=3",
    *QUIET,
)
PRODUCT = "model.lora.aggregation=product"
UNEVEN = (*TWO_ASK, PRODUCT, "model.lora.ranks=[8,16,32]")
PACKED = (*TWO_ASK, "federation.compression.method=topk_int8", "federation.fraction_train=1.0")


def vectors(run):
    return [run.load_checkpoint(stage).vector for stage in ("finetune", "unlearn")]


def watched(config, run, **options):
    """Run it; (client, type, arrays of the message, arrays of the reply, whether anything is kept back) of each."""
    seen = []

    def watch(client, message, reply):
        if message_keys.ARRAYS in message.content.array_records:
            sent, told = (
                {name: array.shape for name, array in m.content[message_keys.ARRAYS].items()} for m in (message, reply)
            )
            kept = NodeFolder(run.nodes_path / str(client)).residuals_path.exists()
            seen.append((client, message.metadata.message_type, sent, told, kept))
        return reply

    events, _ = execute(config, run, tamper=watch, **options)
    assert not events.left_out
    return seen


def stopped_and_resumed(tmp_path, settings, stop_in):
    config, run = new_run(tmp_path, "stopped", *settings)
    with pytest.raises(RunInterrupted):
        execute(config, run, events=Recorded(threading.Event(), stop_in))
    execute(config, RunDirectory.open(run.path))
    return run


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    config, run = new_run(tmp_path_factory.mktemp("runs"), "uneven", *UNEVEN)
    return run, watched(config, run)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    config, run = new_run(tmp_path_factory.mktemp("runs"), "packed", *PACKED)
    return run, watched(config, run)


def test_a_list_of_equal_ranks_is_one_rank_to_the_last_bit(tmp_path):
    runs = []
    for name, settings in (("one", ()), ("list", ("model.lora.ranks=[32,32]",))):
        config, run = new_run(tmp_path, name, *TWO_ASK, PRODUCT, *settings)
        execute(config, run)
        runs.append(run)
    for one, other in zip(*map(vectors, runs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_every_client_gets_and_sends_factors_of_its_rank(uneven):
    _, seen = uneven
    full = max(shape for _, _, sent, _, _ in seen for shape in sent[message_keys.ADAPTER])
    expected = {0: full // 4, 1: full // 2, 2: full, 3: full // 4}
    assert {kind for _, kind, *_ in seen} == {message_keys.TRAIN, message_keys.UNLEARN}
    assert len({client for client, *_ in seen}) > 2
    for client, _, sent, told, _ in seen:
        assert sent == told == {message_keys.ADAPTER: (expected[client],)}


def test_what_clients_of_low_ranks_unlearned_is_in_the_model_and_can_be_checked(uneven):
    run, seen = uneven
    asked = sorted(client for client, kind, *_ in seen if kind == message_keys.UNLEARN)
    assert any(client % 3 != 2 for client in asked), "some of them have a low rank"
    served = [
        row["id"] for row in map(json.loads, run.ledger_path.read_text().splitlines()) if row.get("event") == "applied"
    ]
    assert len(served) == len(asked)
    findings = replay_exchange(run.path, served[0])
    assert {f.outcome for f in findings} == {EQUAL}, findings


@pytest.mark.parametrize("stop_in", [("finetune", 2), ("unlearn", 2)])
@pytest.mark.parametrize("settings", ["uneven", "packed"])
def test_resume_equals_not_stopping(request, tmp_path, settings, stop_in):
    whole, _ = request.getfixturevalue(settings)
    run = stopped_and_resumed(tmp_path, UNEVEN if settings == "uneven" else PACKED, stop_in)
    for ours, theirs in zip(vectors(run), vectors(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_round_that_is_repeated_goes_on_from_what_was_kept_back_before_it(packed, tmp_path):
    """The run breaks off when three of four clients have trained: what they kept back is a round ahead of the model."""
    whole, _ = packed
    config, run = new_run(tmp_path, "broken", *PACKED)

    def break_off(client, message, reply):
        at = message.content.config_records[message_keys.CONFIG].get(message_keys.SERVER_ROUND)
        if (client, message.metadata.message_type, at) == (3, message_keys.TRAIN, 2):
            raise RunInterrupted("broken off")
        return reply

    with pytest.raises(RunInterrupted):
        execute(config, run, tamper=break_off)
    assert run.checkpoint_rounds("finetune") == [1]
    execute(config, RunDirectory.open(run.path))
    for ours, theirs in zip(vectors(run), vectors(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_second_run_starts_from_the_first_only_with_the_same_ranks_and_compression(uneven, tmp_path):
    run, _ = uneven
    for settings, what in (((*TWO_ASK, PRODUCT), "model"), ((*UNEVEN, *_int8()), "federation.compression")):
        config, other = new_run(tmp_path, what, *settings, f"start_from={run.path}")
        with pytest.raises(RunError, match=what):
            execute(config, other)


def _int8():
    return "federation.compression.method=int8", "federation.compression.error_feedback=false"


def test_updates_are_sent_compressed_and_unlearned_models_whole(packed):
    _, seen = packed
    for _, kind, sent, told, _ in seen:
        if kind == message_keys.UNLEARN:
            assert told == sent
        else:
            assert told.keys() == {"mask", "codes", "scales"}
            assert told["codes"] == (round(0.1 * sent[message_keys.ADAPTER][0]),)


def test_the_rest_of_an_update_is_kept_and_goes_with_the_records(packed):
    """Right after a client forgot nothing is kept back; then it begins anew, from the records that are left."""
    run, seen = packed
    asked = {client for client, kind, *_ in seen if kind == message_keys.UNLEARN}
    assert asked and all(kept == (kind == message_keys.TRAIN) for _, kind, _, _, kept in seen)
    for client in range(4):
        files = list(NodeFolder(run.nodes_path / str(client)).residuals_path.glob("*.safetensors"))
        assert len({load_vector(file)[2]["records"] for file in files}) == 1
        stages = {file.name.split("-")[0] for file in files}
        assert len(stages) == (1 if client in asked else 2), "of finetune nothing is left where records were forgotten"


def test_what_is_unlearned_can_be_compressed_too_and_checked(tmp_path):
    config, run = new_run(
        tmp_path, "all", *TWO_ASK, *_int8(), "federation.compression.unlearning=true", "federation.rounds.unlearn=1"
    )
    seen = watched(config, run)
    assert {tuple(sorted(told)) for _, _, _, told, _ in seen} == {("codes", "scales")}
    assert not any(kept for *_, kept in seen), "without error feedback nothing is kept back"
    rows = map(json.loads, run.ledger_path.read_text().splitlines())
    findings = replay_exchange(run.path, next(row["id"] for row in rows if row.get("event") == "applied"))
    assert {f.outcome for f in findings} == {EQUAL}, findings


@pytest.mark.parametrize("method", ["npo", "federaser"])
def test_nobody_sends_what_was_kept_back_before_somebody_was_served(tmp_path, monkeypatch, method):
    """Round 2 of unlearn begins with an exchange: what anybody kept back in round 1 came of a model that knew the
    records. What is kept back from then on counts, also in a run that is resumed."""
    config, run = new_run(
        tmp_path,
        "barrier",
        *PACKED,
        "federation.rounds.finetune=1",
        "unlearning.requests.round=2",
        f"unlearning={method}",
    )
    counted, before = {}, Residuals.before

    def spied(own, server_round, size):
        found = before(own, server_round, size)
        counted.setdefault(server_round, []).append(found is not None)
        return found

    monkeypatch.setattr(Residuals, "before", spied)
    with pytest.raises(RunInterrupted):
        execute(config, run, events=Recorded(threading.Event(), ("unlearn", 3)))
    execute(config, RunDirectory.open(run.path))
    assert counted.keys() == {1, 2, 3} and len(counted[3]) > 2
    assert not any(counted[2]) and all(counted[3])
