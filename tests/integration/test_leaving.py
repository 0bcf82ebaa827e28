"""Whole runs in which clients leave and subjects are forgotten: real server and clients on an in-memory grid."""

import dataclasses
import json
import random
import threading

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from support.churn import QUIET
from support.stages import Recorded, execute, new_run

from clients import losses
from oblivionis import seeds
from oblivionis.client import worker
from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.data.corpora import load_corpus, load_partition
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.verification_evidence import RequestRecords
from oblivionis.erasure.verification_records import judgement_of, records_of
from oblivionis.erasure.verification_rules import Thresholds
from oblivionis.errors import RunInterrupted
from oblivionis.measures.assessor import Assessor
from oblivionis.models.assembly import assemble
from oblivionis.runs.directory import RunDirectory
from strategies import message_keys

ALL = ("federation.fraction_train=1.0", "federation.rounds.finetune=1", "federation.keep_checkpoints=9", *QUIET)
BY_FILE = ("stages=[unlearn]", "unlearning.requests.policy=file", "federation.rounds.unlearn=4")


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory):
    """A run with nothing but a finetuned model, and its records by client."""
    config, run = new_run(tmp_path_factory.mktemp("runs"), "finetuned", *ALL, "stages=[finetune]")
    execute(config, run)
    corpus = load_corpus(config.data)
    return config, run, corpus, load_partition(corpus, config)


def unlearning(finetuned, folder, name, lines, *overrides):
    """A new run of the stage unlearn alone, by a schedule."""
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = [*ALL, *BY_FILE, f"start_from={finetuned[1].path}", f"unlearning.requests.file={file}", *overrides]
    return new_run(folder, name, *settings)


class Wire:
    """Keeps what goes between server and clients: (kind, round, client, message, reply)."""

    def __init__(self):
        self.seen = []

    def __call__(self, client, message, reply):
        kind = message.metadata.message_type
        if kind != message_keys.QUERY:
            config = message.content.config_records[message_keys.CONFIG]
            self.seen.append((kind, int(config[message_keys.SERVER_ROUND]), client, message, reply))
        return reply

    def clients(self, kind):
        """The clients addressed in each round."""
        found = {}
        for seen, round, client, _, _ in self.seen:
            if seen == kind:
                found.setdefault(round, set()).add(client)
        return found


def adapter(message):
    return message.content.array_records[message_keys.ARRAYS][message_keys.ADAPTER].numpy()


def schedule(finetuned):
    """Round 1: a subject whom several clients know and two records of client 0; round 2: client 2 leaves."""
    _, _, corpus, partition = finetuned
    spread = {}
    for record in corpus.train:
        spread.setdefault(record.subject, {}).setdefault(partition.holder[record.id], []).append(record.id)
    name, held = next(
        (s, held)
        for s, held in spread.items()
        if len(held) == 2 and corpus.forget_ids.isdisjoint(i for ids in held.values() for i in ids)
    )
    others = [i for i in partition.ids[0] if i not in held.get(0, ())][:2]
    lines = [
        {"round": 1, "subject": name.upper(), "id": "art17"},
        {"round": 1, "client": 0, "record_ids": others},
        {"round": 2, "client": 2, "scope": "client", "id": "leave"},
        {"round": 3, "client": 2, "scope": "client", "id": "leave-again"},
    ]
    return lines, held, others


@pytest.fixture(scope="module")
def left(finetuned, tmp_path_factory):
    lines, _, _ = schedule(finetuned)
    config, run = unlearning(finetuned, tmp_path_factory.mktemp("left"), "left", lines)
    wire = Wire()
    events, _ = execute(config, run, tamper=wire)
    return config, run, wire, events


def test_who_left_is_never_addressed_again(left):
    _, run, wire, events = left
    assert wire.clients(message_keys.TRAIN) == {1: {0, 1, 2, 3}, 2: {0, 1, 3}, 3: {0, 1, 3}, 4: {0, 1, 3}}
    assert wire.clients(message_keys.UNLEARN)[2] == {2} and 3 not in wire.clients(message_keys.UNLEARN)
    assert not events.left_out and not events.warnings[1:], "but for the missing retrained model"
    states = {r.id: r.state for r in Ledger(run.ledger_path)}
    assert states.pop("leave-again") == "covered"
    assert set(states.values()) <= {"served", "verified"}


def test_who_left_has_buried_everything_and_is_marked(finetuned, left):
    _, run, _, _ = left
    _, held, others = schedule(finetuned)
    partition = finetuned[3]
    node = NodeFolder(run.nodes_path / "2")
    assert node.tombstones() == set(partition.ids[2]) and node.left_by() == "leave"
    for client in (0, 1, 3):
        node = NodeFolder(run.nodes_path / str(client))
        assert node.left_by() is None
        assert node.tombstones() == set(held.get(client, ())) | set(others if client == 0 else ())


def test_a_left_client_refuses_to_train_in_another_process_and_run(left):
    """All that a later message meets is the node's folder."""
    _, _, wire, _ = left
    message = next(m for kind, _, client, m, _ in wire.seen if kind == message_keys.TRAIN and client == 2)
    context = _context(2)
    reply = app(message=message, context=context)
    assert reply.has_error()
    assert reply.error.reason == "client 2 has left the federation by request 'leave' and trains no more"


def _context(client):
    from support.inprocess import InProcessGrid

    return next(c for c in InProcessGrid(app, 4).contexts.values() if c.node_config["partition-id"] == client)


def test_a_client_decides_itself_what_all_is(finetuned, left, tmp_path):
    """The server of a deployment knows no record: the message names none."""
    partition = finetuned[3]
    _, _, wire, _ = left
    received = next(m for kind, _, client, m, _ in wire.seen if kind == message_keys.UNLEARN and client == 2)
    config = ConfigRecord({**received.content.config_records[message_keys.CONFIG], "nodes-dir": str(tmp_path)})
    config[message_keys.REQUEST_IDS], config[message_keys.SCOPES] = ["bye"], [message_keys.SCOPE_CLIENT]
    config[message_keys.RECORD_IDS], config[message_keys.RECORD_COUNTS] = [], [0]
    arrays = ArrayRecord({message_keys.ADAPTER: Array(adapter(received))})
    content = RecordDict({message_keys.ARRAYS: arrays, message_keys.CONFIG: config})
    message = Message(content, dst_node_id=received.metadata.dst_node_id, message_type=message_keys.UNLEARN)
    message.metadata.__dict__["_message_id"] = "made"
    reply = app(message=message, context=_context(2))
    assert next(iter(reply.content.metric_records.values()))["num-examples"] == len(partition.ids[2])
    assert NodeFolder(tmp_path / "2").tombstones() == set(partition.ids[2])


def test_the_share_of_a_subject_weighs_by_records(finetuned, left):
    """What the clients train on next is φ + Σ w_u (φ_u − φ), w_u by the records that each was asked to forget."""
    _, held, _ = schedule(finetuned)
    counts = {client: len(ids) + 2 * (client == 0) for client, ids in {0: [], **held}.items()}
    _, _, wire, _ = left
    exchange = {c: (m, r) for kind, round, c, m, r in wire.seen if kind == message_keys.UNLEARN and round == 1}
    assert set(exchange) == set(counts) and len(counts) >= 2
    sent = adapter(next(iter(exchange.values()))[0]).astype(np.float64)
    total = sum(counts.values())
    expected = sent + sum(counts[c] / total * (adapter(r).astype(np.float64) - sent) for c, (_, r) in exchange.items())
    trained = next(adapter(m) for kind, round, _, m, _ in wire.seen if kind == message_keys.TRAIN and round == 1)
    np.testing.assert_allclose(trained, expected, rtol=1e-6, atol=1e-7)
    assert len(set(counts.values())) > 1, "or else the weights would not show"


def finish(config, run):
    wire = Wire()
    execute(configuration.from_yaml(run.read_config()), RunDirectory.open(run.path), tamper=wire)
    return wire


def assert_same_end(run, whole):
    np.testing.assert_array_equal(run.load_checkpoint("unlearn").vector, whole.load_checkpoint("unlearn").vector)
    assert run.stage_summary("unlearn")["metrics"] == whole.stage_summary("unlearn")["metrics"]
    ours, theirs = ({r.id: r for r in Ledger(r.ledger_path)} for r in (run, whole))
    assert ours == theirs


@pytest.mark.parametrize("round", [2, 3])
def test_resume_after_a_stop_equals_not_stopping(finetuned, left, tmp_path, round):
    config, run = unlearning(finetuned, tmp_path, "stopped", schedule(finetuned)[0])
    with pytest.raises(RunInterrupted):
        execute(config, run, events=Recorded(threading.Event(), ("unlearn", round)))
    wire = finish(config, run)
    assert wire.clients(message_keys.TRAIN) == {r: {0, 1, 2, 3} if r == 1 else {0, 1, 3} for r in range(round, 5)}
    assert_same_end(run, left[1])


def test_the_exchange_of_a_leaving_client_is_repeated_after_a_lost_checkpoint(finetuned, left, tmp_path):
    """As after a kill between the exchange and the checkpoint: the node has left, the server does not know it."""
    config, run = unlearning(finetuned, tmp_path, "torn", schedule(finetuned)[0])
    with pytest.raises(RunInterrupted):
        execute(config, run, events=Recorded(threading.Event(), ("unlearn", 3)))
    (run.path / "checkpoints/unlearn/round-0002.safetensors").write_bytes(b"torn")
    wire = finish(config, run)
    assert wire.clients(message_keys.UNLEARN) == {2: {2}}
    assert wire.clients(message_keys.TRAIN) == {round: {0, 1, 3} for round in (2, 3, 4)}
    assert_same_end(run, left[1])
    events = [json.loads(line) for line in run.ledger_path.read_text().splitlines()]
    assert [e["scope"] for e in events if e["event"] == "rolled_back"] == ["client"]


def test_every_served_request_is_verified_by_what_the_final_model_answers(finetuned, left):
    config, run, _, _ = left
    corpus = finetuned[2]
    assembled = assemble(config.model, seeds.derive(config.seed, "adapter"))
    whole = dataclasses.replace(config.evaluation.full, questions_per_set=None)
    config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, full=whole))
    assessor = Assessor(assembled, corpus, config)
    vector = run.load_checkpoint("unlearn").vector
    forget = sorted(corpus.forget_ids)
    assert assessor.recalls(vector, forget) == assessor.recalls_in(assessor.measure(vector, full=True).log)
    requests = [r for r in Ledger(run.ledger_path) if r.state != "covered"]
    assert any(i not in corpus.forget_ids for r in requests for i in r.record_ids)
    for request in requests:
        alone = [assessor.recalls(vector, [i])[i] for i in request.record_ids]
        assert request.rouge == pytest.approx(np.mean(alone))
        of = records_of(judgement_of(run, request.id))
        assert {i: e.final for i, e in of.items()} == pytest.approx(dict(zip(request.record_ids, alone, strict=True)))
        found = RequestRecords(of, inconclusive_reason=judgement_of(run, request.id)["doubt"])
        assert request.outcome == Thresholds.of(config.unlearning.requests).judge(found).outcome


def test_a_method_that_needs_retain_records_leaves_the_request_pending(finetuned, tmp_path, monkeypatch):
    npo = losses.get("npo")
    needy = dataclasses.replace(npo, required=(*npo.required, *npo.optional), optional=())
    monkeypatch.setattr(losses, "get", lambda name: needy)
    lines = [{"round": 1, "client": 2, "scope": "client", "id": "leave"}, {"round": 1, "client": 0, "record_ids": []}]
    lines[1]["record_ids"] = [finetuned[3].ids[0][0]]
    overrides = ("federation.rounds.unlearn=2", "unlearning.requests.extra_rounds=0")
    config, run = unlearning(finetuned, tmp_path, "needy", lines, *overrides)
    wire = Wire()
    events, _ = execute(config, run, tamper=wire)
    reason = "error 1001: unlearning.method npo needs retain records, and client 2 has none left; choose another method"
    assert events.left_out == [("unlearn", 2, reason)] * 2
    asked, served = sorted(Ledger(run.ledger_path), key=lambda r: r.id, reverse=True)
    assert (asked.id, asked.state, asked.attempts, asked.failure) == ("leave", "pending", 2, reason)
    assert served.state in ("served", "verified"), "the other client's request does not wait for it"
    assert events.warnings[-1] == f"1 deletion requests are still pending: leave ({reason})"
    assert wire.clients(message_keys.TRAIN) == {1: {0, 1, 3}, 2: {0, 1, 3}}, "who asks to leave contributes no more"


@pytest.mark.parametrize(("leaving", "least"), [([0, 1, 2, 3], 1), ([1], 4)])
def test_rounds_go_on_when_too_few_clients_are_left(finetuned, tmp_path, leaving, least):
    settings = [*ALL, "stages=[unlearn]", f"start_from={finetuned[1].path}", "federation.rounds.unlearn=2"]
    policy = ["policy=all_at_round", "round=2", "scope=client", f"clients={leaving}"]
    more = [*(f"unlearning.requests.{p}" for p in policy), f"federation.min_clients={least}"]
    config, run = new_run(tmp_path, "few", *settings[:2], *settings[2:], *more)
    if least != 1:
        config.start_from = None
        finetune = finetuned[1]
        run.save_checkpoint(finetune.load_checkpoint("finetune"), keep=1)
        run.finish_stage("finetune", finetune.stage_summary("finetune"), finetune.evaluation_log("finetune"))
    wire = Wire()
    events, _ = execute(config, run, tamper=wire)
    assert set(wire.clients(message_keys.TRAIN)) == {1} and wire.clients(message_keys.UNLEARN) == {2: set(leaving)}
    assert f"round 2: nobody trained, fewer than {least} clients are left that may" in events.warnings
    assert run.stage_summary("unlearn")["rounds"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_no_buried_record_is_ever_trained_on(finetuned, tmp_path, monkeypatch, seed):
    """Random schedules of all three kinds, with a stop and a resume, watched at the door of the training loops."""
    rng = random.Random(seed)
    config, _, corpus, partition = finetuned
    lines = []
    for round in (1, 2, 3):
        for _ in range(rng.randint(0, 2)):
            client, kind = rng.randrange(4), rng.random()
            if kind < 0.3:
                lines.append({"round": round, "client": client, "scope": "client"})
            elif kind < 0.6:
                lines.append({"round": round, "subject": rng.choice(corpus.train).subject})
            else:
                held = partition.ids[client]
                lines.append({"round": round, "client": client, "record_ids": rng.sample(held, rng.randint(1, 3))})
    lines.append({"round": 2, "client": 3, "scope": "client"})
    config, run = unlearning(finetuned, tmp_path, "random", lines, "federation.rounds.unlearn=3")
    watched = {"train": 0, "unlearn": 0}

    def ids_of(sequences):
        resident = worker.current
        known = {}
        for client in range(4):
            holding = resident.holding(client)
            known.update({s: r.id for r, s in zip(holding.records, holding.sequences, strict=True)})
        assert len(known) == len(corpus.train)
        return {known[s] for s in sequences}

    def buried():
        return {i for node in run.nodes_path.glob("*") for i in NodeFolder(node).tombstones()}

    def train(model, flat, sequences, *args, **kwargs):
        watched["train"] += 1
        assert ids_of(sequences).isdisjoint(buried())
        return real_train(model, flat, sequences, *args, **kwargs)

    def unlearn(model, flat, forget, retain, *args, **kwargs):
        watched["unlearn"] += 1
        assert ids_of(forget) <= buried() and ids_of(retain).isdisjoint(buried())
        return real_unlearn(model, flat, forget, retain, *args, **kwargs)

    real_train, real_unlearn = worker.train, worker.unlearn
    monkeypatch.setattr(worker, "train", train)
    monkeypatch.setattr(worker, "unlearn", unlearn)
    events = Recorded(threading.Event(), ("unlearn", rng.choice((2, 3))))
    with pytest.raises(RunInterrupted):
        execute(config, run, events=events)
    wire = Wire()
    later, _ = execute(config, run, tamper=wire)
    assert not events.left_out and not later.left_out, "a failed assertion above comes back as an error reply"
    assert watched["unlearn"] >= 1
    requests = list(Ledger(run.ledger_path))
    assert all(r.state in ("served", "verified", "covered") for r in requests)
    asked = [i for r in requests for i in r.record_ids]
    assert len(asked) == len(set(asked)) and buried() == set(asked)
    for request in requests:
        if request.scope == "client":
            trained = {
                round for round, clients in wire.clients(message_keys.TRAIN).items() if request.client in clients
            }
            assert all(round < request.round for round in trained)
