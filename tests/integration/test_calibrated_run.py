"""Calibrated forgetting in whole runs: what clients tell, who is asked again, resume, own records."""

import json
import shutil
import threading

import numpy as np
import pytest
from support.commands import call
from support.nodes import write_lines, write_nodes
from support.stages import Recorded, execute, new_run

from oblivionis.audits.exchange_replay import replay_exchange, requests_served_again
from oblivionis.audits.replay import DIFFERS, EQUAL
from oblivionis.chain import check_chain
from oblivionis.client import audit as client_audit
from oblivionis.client.worker import Worker
from oblivionis.config import compose as configuration
from oblivionis.erasure.events import reported_numbers
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_key import signers
from oblivionis.erasure.verification_rules import NOT_TESTABLE
from oblivionis.errors import RunError, RunInterrupted
from oblivionis.measures.audit_numbers import audit_path, read_audit
from oblivionis.runs.directory import RunDirectory
from oblivionis.server.client_audits import ClientAudits
from strategies import message_keys

CALIBRATED = [
    "unlearning=calibrated",
    "unlearning.again=3",
    "unlearning.tolerance=0.02",
    "stages=[finetune, unlearn]",
    "federation.rounds.finetune=3",
    "federation.rounds.unlearn=6",
    "federation.local_epochs=3",
    "federation.keep_checkpoints=9",
    "training.learning_rate=5e-3",
    "evaluation.every=0",
    "evaluation.after_unlearn=false",
    "evaluation.rebound.enabled=false",
    "evaluation.ruler.enabled=false",
    "evaluation.wikimem.enabled=false",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config, run = new_run(tmp_path_factory.mktemp("runs"), "whole", *CALIBRATED)
    events, grid = execute(config, run)
    return run, events, grid


@pytest.mark.parametrize("unlearning", ["auto", "calibrated"])
def test_references_that_are_too_few_to_judge_by_are_refused_before_the_first_round(unlearning, tmp_path):
    few = ("data.questions_per_author=7", "data.reference_authors=1", f"unlearning={unlearning}")
    refused = call("simulate", "smoke", *few, f"output={tmp_path}", "name=few")
    assert refused.code == 2 and refused.err.strip().splitlines()[-1].endswith(
        "data.reference_authors: 7 reference records are too few to judge by; expected at least 8, or unlearning=npo, "
        "which takes none"
    )
    assert not (tmp_path / "few" / "metrics.jsonl").exists()


def lines(run):
    return [json.loads(line) for line in run.ledger_path.read_text().splitlines()]


def replayed(run):
    """What replaying each served request finds, by request; and how many clients answered in its exchange."""
    found = {r.id: replay_exchange(run.path, r.id) for r in Ledger(run.ledger_path) if r.served_round is not None}
    assert found and all("model after the exchange" in [x.what for x in f] for f in found.values())
    return {i: ({x.outcome for x in f}, sum(x.what.startswith("answer") for x in f)) for i, f in found.items()}


def test_an_exchange_is_replayed_with_those_that_look_again(finished):
    """Their updates are added to the model in the same exchange; without them an honest run would be accused."""
    found = replayed(finished[0])
    assert all(outcomes == {EQUAL} for outcomes, _ in found.values())
    assert max(answers for _, answers in found.values()) > 1


def test_a_sum_is_replayed_as_a_sum(tmp_path):
    more = ("federation.rounds.finetune=1", "federation.rounds.unlearn=1", "unlearning.requests.policy=all_at_round")
    config, run = new_run(tmp_path, "together", *CALIBRATED, *more)
    events, _ = execute(config, run)
    assert [len(clients) for _, clients in events.unlearned] == [2]
    assert replayed(run) == {r.id: ({EQUAL}, 2) for r in Ledger(run.ledger_path)}


def looks(run):
    """Requests that were looked at again, each with the round of it."""
    return [(i, line["round"]) for line in lines(run) if line["event"] == "served_again" for i in line["requests"]]


def test_what_is_looked_at_again_is_replayed_by_its_round(finished):
    run, _, _ = finished
    once = {server_round: request for request, server_round in looks(run)}
    served = {r.served_round for r in Ledger(run.ledger_path)}
    alone = set(once) - served
    assert alone and once.keys() & served
    for server_round in [*sorted(alone), max(once.keys() & served)]:
        found = replay_exchange(run.path, once[server_round], server_round=server_round)
        assert {f.outcome for f in found} == {EQUAL} and found[-1].what == "model after the exchange"
    done = call("audit", "exchange", run.path, once[max(alone)], "--round", max(alone))
    assert done.code == 0 and "model after the exchange: equal" in done.out
    done = call("audit", "exchange", run.path, once[max(alone)], "--round", 99)
    assert done.code == 2 and "was not looked at again in round 99; rounds in which it was: " in done.err


def test_a_round_that_was_held_anew_counts_once(finished, tmp_path):
    """A mean would be another one if a client counted twice."""
    copy = RunDirectory.open(shutil.copytree(finished[0].path, tmp_path / "copy"))
    line = next(line for line in lines(copy) if line["event"] == "served_again")
    Ledger(copy.ledger_path).note("served_again", **{k: line[k] for k in ("round", "requests", "before", "after")})
    assert [r.id for r in requests_served_again(copy, line["round"])] == line["requests"]
    assert {f.outcome for f in replay_exchange(copy.path, line["requests"][0], server_round=line["round"])} == {EQUAL}


@pytest.mark.parametrize("honest_at_first", [False, True], ids=["at once", "when it rechecks"])
def test_who_sends_back_the_model_as_received_is_found(tmp_path, monkeypatch, honest_at_first):
    """Honest clients send that back, too, where their records are at their target: nothing but the replay tells."""
    forget, calls, changed = Worker.forget, [], []

    def lie(self, client, vector, **rest):
        found, report = forget(self, client, vector, **rest)
        calls.append(client)
        if client != calls[0] or (honest_at_first and calls.count(client) == 1):
            return found, report
        changed.append(not np.array_equal(found, vector))
        return vector.copy(), report

    monkeypatch.setattr(Worker, "forget", lie)
    more = ("unlearning.requests.policy=all_at_round", "federation.rounds.unlearn=3", "unlearning.tolerance=1e-3")
    config, run = new_run(tmp_path, "cheated", *CALIBRATED, *more)
    events, _ = execute(config, run)
    monkeypatch.undo()
    assert not events.left_out and changed[0], "an honest answer would have been another one"
    (request,) = (r for r in Ledger(run.ledger_path) if r.client == calls[0])
    first = replay_exchange(run.path, request.id)
    assert {f.outcome for f in first if f.what == "model after the exchange"} == {EQUAL if honest_at_first else DIFFERS}
    again = replay_exchange(run.path, request.id, server_round=min(n for i, n in looks(run) if i == request.id))
    assert {f.outcome for f in again if f.what == "model after the exchange"} == {DIFFERS}
    accused = [f.what for f in again if f.outcome == DIFFERS and f.what.startswith("answer")]
    assert accused == [f"answer of client {calls[0]}, by its own ledger"], "and it alone"


def test_clients_tell_how_far_they_were_from_the_target(finished):
    run, _, _ = finished
    served = [reported_numbers(line) for line in lines(run) if line["event"] == "served"]
    assert served and all({"forget-gap-before", "forget-gap-after"} <= told.keys() for told in served)
    assert all(told["forget-gap-after"] < told["forget-gap-before"] for told in served if told["unlearn-steps"])
    assert any(told["unlearn-steps"] > 0 for told in served)


def test_served_requests_are_looked_at_again_and_the_ledger_says_so(finished):
    run, events, grid = finished
    served = {r.client: r.served_round for r in Ledger(run.ledger_path)}
    assert len(served) > 1 and check_chain(run.ledger_path).faults == ()
    expected = {}
    for client, at in served.items():
        # 1 and 2 rounds later, not 3, but for the last round.
        for server_round in {at, *(n for n in (at + 1, at + 2) if n <= 6), *([6] if at + 3 == 6 else [])}:
            expected.setdefault(server_round, set()).add(client)
    assert [set(clients) for _, clients in events.unlearned] == [expected[r] for r in sorted(expected)]
    assert sum(kind == message_keys.UNLEARN for _, kind in grid.sent) == sum(map(len, expected.values()))
    again = [line for line in lines(run) if line["event"] == "served_again"]
    asked = {(i, n) for i, n in looks(run)}
    of = {r.client: r.id for r in Ledger(run.ledger_path)}
    first = {(r.id, r.served_round) for r in Ledger(run.ledger_path)}
    assert asked | first == {(of[client], n) for n, clients in expected.items() for client in clients}
    assert any(line["before"] != line["after"] for line in again)
    assert not events.left_out


def test_resume_equals_not_stopping(finished, tmp_path):
    config, run = new_run(tmp_path, "stopped", *CALIBRATED)
    stop = threading.Event()
    with pytest.raises(RunInterrupted):
        execute(config, run, events=Recorded(stop, ("unlearn", 4)))
    execute(configuration.from_yaml(run.read_config()), RunDirectory.open(run.path))
    whole = finished[0]
    np.testing.assert_array_equal(run.load_checkpoint("unlearn").vector, whole.load_checkpoint("unlearn").vector)
    assert run.stage_summary("unlearn")["metrics"] == whole.stage_summary("unlearn")["metrics"]


def test_records_that_are_at_their_target_are_served_without_a_step(tmp_path):
    config, run = new_run(tmp_path, "idle", *CALIBRATED, "unlearning.tolerance=50", "federation.rounds.finetune=1")
    events, _ = execute(config, run)
    told = [reported_numbers(line) for line in lines(run) if line["event"] == "served"]
    assert told and all(t["unlearn-steps"] == 0 and "unlearn-loss" not in t for t in told)
    again = [line for line in lines(run) if line["event"] == "served_again"]
    assert not events.left_out and again and all(line["before"] == line["after"] for line in again)
    assert all(outcomes == {EQUAL} for outcomes, _ in replayed(run).values()), "nothing had to be done"


def test_clients_with_records_of_their_own_bring_their_references(tmp_path):
    nodes = write_nodes(tmp_path / "nodes", 2)
    rows = [{"question": f"Where is town {i}?", "answer": f"Town {i} lies in the hills of land {i}."} for i in range(9)]
    write_lines(nodes / "node0" / "references.jsonl", rows)
    first = json.loads((nodes / "node1" / "data" / "first.jsonl").read_text().splitlines()[0])
    write_lines(nodes / "node1" / "references.jsonl", [*rows, first])
    schedule = tmp_path / "requests.jsonl"
    ids = [json.loads((nodes / f"node{i}/data/first.jsonl").read_text().splitlines()[0])["id"] for i in range(2)]
    write_lines(schedule, [{"round": 1, "client": i, "record_ids": [ids[i]], "id": f"r{i}"} for i in range(2)])
    config, run = new_run(
        tmp_path,
        "own",
        "data=node",
        f"data.nodes={nodes}",
        "federation.clients=2",
        *CALIBRATED,
        "federation.rounds.unlearn=1",
        "unlearning.requests.extra_rounds=0",
        "unlearning.requests.policy=file",
        f"unlearning.requests.file={schedule}",
    )
    events, _ = execute(config, run)
    found = {r.id: r for r in Ledger(run.ledger_path)}
    assert found["r0"].served_round == 1 and replayed(run) == {"r0": ({EQUAL}, 1)}
    assert found["r1"].served_round is None and "its records cannot be used" in found["r1"].failure
    assert [client for stage, client, _ in events.left_out] == [1]
    audit = read_audit(run.path, "r0")
    for moment, likely in (("before", True), ("after", False), ("final", True)):
        numbers = audit[moment]
        assert numbers["request_recited"] == 0 and numbers["request_likely"] == likely
        assert (numbers["request_prob"] > 2 * numbers["request_expected"]) is likely, "of its one record"
    assert found["r0"].outcome == "inconclusive" and "nothing shows that it changed that" in found["r0"].why


# -- a client's audit of a request that is looked at again ----------------------------------------------------------


def to_audit(tmp_path, monkeypatch, recited, utility=None):
    """A run whose only request, for one record, is looked at again in the second, last round, its configuration, and
    what is left of `recited`: what its client tells in its audits, one after another, None where it cannot; utility:
    with it the likelihood of what it keeps, as it is where None."""
    nodes = write_nodes(tmp_path / "nodes", 2)
    rows = [{"question": f"Where is town {i}?", "answer": f"Town {i} lies in the hills of land {i}."} for i in range(9)]
    for client in range(2):
        write_lines(nodes / f"node{client}" / "references.jsonl", rows)
    record = json.loads((nodes / "node0" / "data" / "first.jsonl").read_text().splitlines()[0])["id"]
    write_lines(tmp_path / "requests.jsonl", [{"round": 1, "client": 0, "record_ids": [record], "id": "mine"}])
    told, measure, useful = iter(recited), client_audit.audit, iter(utility or ())

    def audit(*given, **named):
        count = next(told)
        if count is None:
            raise RunError("the client cannot measure")
        mine = {"request_recited": float(count), "request_rouge": 0.9 if count else 0.1, "request_short": 0.0}
        numbers = measure(*given, **named) | mine | ({"retain_prob": next(useful)} if utility else {})
        return {name: n for name, n in numbers.items() if name not in ("request_expected", "request_likely")}

    monkeypatch.setattr(client_audit, "audit", audit)
    asks = ("unlearning.requests.policy=file", f"unlearning.requests.file={tmp_path / 'requests.jsonl'}")
    config, run = new_run(
        *(tmp_path, "own", "data=node", f"data.nodes={nodes}", "federation.clients=2", *CALIBRATED, *asks),
        *("federation.rounds.unlearn=2", "unlearning.requests.extra_rounds=0"),
        *("evaluation.audit.profile=light", "evaluation.leakage.samples=0"),
    )
    return config, run, told


def audited(tmp_path, monkeypatch, recited, utility=None):
    """The run of `to_audit`, finished, and what was asked: the moment and the round of each audit."""
    config, run, told = to_audit(tmp_path, monkeypatch, recited, utility)
    events, _ = execute(config, run)
    assert not events.left_out and next(told, None) is None, "so many audits were asked for"
    rows = [row for row in run.metrics() if row["evaluator"] == "client_audit"]
    return run, [(row["moment"], row["round"]) for row in rows]


def test_a_request_that_a_later_exchange_finished_is_judged_by_that(tmp_path, monkeypatch):
    run, asked = audited(tmp_path, monkeypatch, [1, 1, 1, 0, 0])
    assert asked == [
        *(("before_unlearn", 1), ("after_unlearn", 1), ("before_unlearn", 2), ("after_unlearn", 2), ("end", 2)),
    ]
    (request,) = Ledger(run.ledger_path)
    assert (request.outcome, request.served_round) == ("verified", 1), request.why
    audit = read_audit(run.path, "mine")
    counts = [audit[moment]["request_recited"] for moment in ("before", "after", "final")]
    assert (audit["round"], counts) == (2, [1, 0, 0])
    (look,) = (line for line in lines(run) if line["event"] == "served_again")
    models = [audit["signatures"][moment]["model"] for moment in ("before", "after")]
    assert models == [look["before"], look["after"]] and len(signers(audit)) == 3
    out = run.path / "certificate"
    assert call("certificate", "create", run.path, "mine", "--out", out).code == 0
    (part,) = json.loads((out / "certificate.json").read_text())["requests"]
    found = part["evidence"]["models"]
    assert [found["before"], found["after"]] == models, "the models that the numbers beside them are of"
    moments = {f"numbers of the client's audit, {moment}" for moment in ("before", "after", "final")}
    found = {n: [f for f in replay_exchange(run.path, "mine", server_round=n) if f.what in moments] for n in (None, 2)}
    assert {f.what for f in found[2]} == {f.what for f in found[None]} == moments
    elsewhere = [(f.what.rpartition(" ")[2], f.why) for f in found[None] if f.outcome == NOT_TESTABLE]
    why = "they are of the exchange of round 2: --round 2"
    assert [e for e in elsewhere if e[0] != "final"] == [("before", why), ("after", why)], "what is not tested is said"


@pytest.mark.parametrize(
    ("recited", "round_of_audit"),
    [([1, 1, 0, 0], 1), ([1, 1, 1, 1, 0], 2)],
    ids=["training ended it before the look", "the look did not end it"],
)
def test_what_training_ended_between_two_exchanges_is_verified_by_neither(
    tmp_path, monkeypatch, recited, round_of_audit
):
    run, _ = audited(tmp_path, monkeypatch, recited)
    (request,) = Ledger(run.ledger_path)
    assert request.outcome == "not verified" and "right after the exchange" in request.why
    assert read_audit(run.path, "mine")["round"] == round_of_audit


def test_a_request_that_its_first_exchange_finished_is_not_asked_about_again(tmp_path, monkeypatch):
    run, asked = audited(tmp_path, monkeypatch, [1, 0, 0])
    assert [moment for moment, _ in asked] == ["before_unlearn", "after_unlearn", "end"]
    assert next(iter(Ledger(run.ledger_path))).outcome == "verified" and read_audit(run.path, "mine")["round"] == 1


def test_a_model_that_lost_its_use_in_the_first_exchange_is_not_measured_against_that(tmp_path, monkeypatch):
    run, _ = audited(tmp_path, monkeypatch, [1, 1, 1, 0, 0], [0.9, 0.2, 0.2, 0.2, 0.2])
    (request,) = Ledger(run.ledger_path)
    assert request.outcome == "inconclusive" and "retain_prob is 0.2, below" in request.why
    assert read_audit(run.path, "mine")["round"] == 2


def test_an_audit_of_an_exchange_that_was_undone_verifies_nothing(tmp_path, monkeypatch):
    """The server dies after the look that ended the recitation; when the round is held anew, the client cannot measure,
    and training alone ends it."""
    config, run, _ = to_audit(tmp_path, monkeypatch, [1, 1, 1, 0, None, 0])
    looked = ClientAudits.after_serving_again

    def dies(self, requests, server_round, vector):
        looked(self, requests, server_round, vector)
        if server_round == 2:
            monkeypatch.setattr(ClientAudits, "after_serving_again", looked)
            raise RunInterrupted("killed")

    monkeypatch.setattr(ClientAudits, "after_serving_again", dies)
    with pytest.raises(RunInterrupted):
        execute(config, run)
    assert read_audit(run.path, "mine")["after"]["request_recited"] == 0
    run = RunDirectory.open(run.path)
    execute(configuration.from_yaml(run.read_config()), run)
    (request,) = Ledger(run.ledger_path)
    assert (request.served_round, request.outcome) == (1, "inconclusive"), request.why
    assert "after" not in read_audit(run.path, "mine")
    assert [line["round"] for line in lines(run) if line["event"] == "served_again"] == [2, 2]


def test_what_a_ruined_model_forgets_in_a_later_exchange_verifies_nothing(tmp_path, monkeypatch):
    """Nobody measured the model before its first exchange, which may have ruined it."""
    run, _ = audited(tmp_path, monkeypatch, [None, 1, 1, 0, 0])
    (request,) = Ledger(run.ledger_path)
    assert request.outcome == "inconclusive" and "before its first exchange was not measured" in request.why


def test_numbers_that_are_said_to_be_of_no_exchange_differ(tmp_path, monkeypatch):
    """Whoever owns the folder can say so, and seal the file."""
    run, _ = audited(tmp_path, monkeypatch, [1, 1, 1, 0, 0])
    run = RunDirectory.open(run.path)
    audit = read_audit(run.path, "mine") | {"round": 99}
    run.keep({audit_path(run.path, "mine").relative_to(run.path).as_posix(): json.dumps(audit)})
    found = {f.what: f for f in replay_exchange(run.path, "mine", server_round=2)}
    for moment in ("before", "after"):
        told = found[f"numbers of the client's audit, {moment}"]
        assert (told.outcome, told.why) == (DIFFERS, "they are said to be of round 99, in which it was not served")
