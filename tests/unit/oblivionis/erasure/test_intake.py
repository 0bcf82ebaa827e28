"""How requests of nodes are taken up: in time that grows with their number, so many a round, and none of them lost."""

import json
import stat
import time

import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from oblivionis.chain import GENESIS, check_chain
from oblivionis.client.node_policy import Policy
from oblivionis.client.node_policy_guard import Guard, Refused
from oblivionis.data.errors import DataError
from oblivionis.data.own_records import read_training
from oblivionis.erasure import node_request_sources, query_schema
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_ledger import EXCHANGED, NodeLedger
from oblivionis.erasure.node_request_sources import NodeRequests, answer_query
from oblivionis.erasure.query_schema import (
    MOST_REQUESTS,
    Answer,
    Reported,
    WireError,
    as_many_as_fit,
    outcome_of,
    read_answer,
    read_question,
    write_answer,
)
from oblivionis.erasure.remote_record_holders import RemoteHoldings
from oblivionis.erasure.schedule import read_schedule
from oblivionis.erasure.unlearn_messages import Demand
from oblivionis.erasure.verification_rules import Thresholds
from oblivionis.naming import LONGEST_ID
from strategies import message_keys
from strategies.rounds.nodes import NodeMap


class Nodes:
    """Clients that tell what `told` has for them."""

    def __init__(self, told):
        self.told = told

    def ask(self, grid, settings):
        for client in self.told:
            settings(client)
        return {
            c: RecordDict({message_keys.REQUESTS: write_answer(Answer(t, GENESIS, ()))}) for c, t in self.told.items()
        }


def source(tmp_path, told, most=100, **more):
    warnings = []
    ledger = Ledger(tmp_path / "requests.jsonl")
    nodes = Nodes({client: tuple(requests) for client, requests in told.items()})
    live = {"live": lambda client: 10**6, "warn": warnings.append, "most": most, "last_round": 9, **more}
    return (
        NodeRequests(ledger, Thresholds(0.5, 1.0, 0.5), run="run", nodes=nodes, grid=None, settings={}, **live),
        ledger,
        warnings,
    )


def many(requests, records, client=0):
    return [
        Reported(f"r{n:05d}", "records", tuple(f"{client}-{n}-{i}" for i in range(records))) for n in range(requests)
    ]


def test_what_is_beyond_the_limit_waits_its_turn_and_is_told_of(tmp_path):
    requests, ledger, warnings = source(tmp_path, {0: many(25, 1), 1: many(3, 1, client=1)}, most=10)
    served = []
    for server_round in (1, 2, 3, 4):
        due = requests.pending(server_round)
        assert max(sum(r.node == client for r in due) for client in (0, 1)) <= 10
        served.append(len(due))
        for request in due:
            requests.served(request, server_round, {})
    assert served == [13, 10, 5, 0], "the other client loses nothing by it"
    assert warnings[0] == (
        "client 0 made 25 requests at once: 10 are taken up, 15 wait (unlearning.requests.max_per_round)"
    )
    notes = [(e["round"], e["client"], e["count"]) for e in check_chain(ledger.path).entries if e["event"] == "waiting"]
    assert notes == [(1, 0, 15), (2, 0, 5)] and check_chain(ledger.path).faults == ()
    assert len({r.told for r in ledger if r.client == 0}) == 25


QUERY = {
    message_keys.LEDGER: GENESIS,
    message_keys.LEDGER_HEAD: GENESIS,
    message_keys.RUN: "run",
    message_keys.OUTCOMES: [],
}


def asked(folder, held=None):
    """What a node with that folder answers to a query, as the server reads it."""
    found = answer_query({**QUERY, message_keys.SERVER_ROUND: 1}, 0, folder, held=held)
    assert found is not None
    return read_answer(found).requests


def lines(requests, **more):
    return [
        {"event": "submitted", "scope": "records", "id": r.id, "record_ids": list(r.record_ids), "time": 1.0, **more}
        for r in requests
    ]


@pytest.mark.slow
def test_a_node_with_more_requests_than_an_answer_holds_tells_the_first_of_them(tmp_path):
    """Those that the server has served come last."""
    made = many(MOST_REQUESTS + 2, 1)
    done = {"kind": message_keys.UNLEARN, "run": "run", "round": 1, "client": 0, "requests": [made[0].id]}
    served = {"event": "served", "id": made[0].id, "run": "run", "round": 1, "line": "0" * 64}
    NodeLedger(tmp_path).extend(lambda _: [*lines(made), {"event": EXCHANGED, **done}, served])
    assert [r.state for r in NodeLedger(tmp_path).requests()[:2]] == ["served", "open"]
    assert asked(tmp_path) == tuple(made[1 : MOST_REQUESTS + 1])


def test_requests_that_name_more_records_than_an_answer_holds_leave_room_for_others(monkeypatch):
    monkeypatch.setattr(query_schema, "MOST_RECORDS", 5)
    sizes = [3, 3, 2, 1, 0]
    told = [Reported(f"r{n}", "records", tuple(f"{n}-{i}" for i in range(size))) for n, size in enumerate(sizes)]
    assert [r.id for r in as_many_as_fit(told)] == ["r0", "r2", "r4"]


def test_requests_that_name_ever_more_records_fill_no_disk(tmp_path, monkeypatch):
    """Ten in a run here: named for the first time or not, in one round or in each."""
    monkeypatch.setattr(query_schema, "MOST_RECORDS", 10)
    monkeypatch.setattr(node_request_sources, "MOST_RECORDS", 10)
    requests, ledger, warnings = source(tmp_path, {0: many(3, 4)}, last_round=9)
    requests.pending(1)
    requests.nodes.told[0] = [Reported(f"again-{n}", "records", ("0-0-0",)) for n in range(5)]
    requests.pending(2)
    assert [r.told for r in ledger] == ["r00000", "r00001", "again-0", "again-1"]
    told = "client 0 made 3 requests at once: 2 are taken up, 1 wait (for at most 10 records of one client in a run)"
    assert warnings == [told, told.replace("made 3", "made 5").replace("1 wait", "3 wait")]
    assert check_chain(ledger.path).faults == ()


def test_who_confirms_nothing_is_told_no_more_than_a_question_holds(tmp_path, monkeypatch):
    requests, ledger, _ = source(tmp_path, {0: many(25, 1)}, most=100)
    for request in requests.pending(1):
        requests.served(request, 1, {})
    assert len(ledger.unacknowledged(0)) == 25
    monkeypatch.setattr(node_request_sources, "MOST_LINES", 10)
    told = [json.loads(text)["id"] for text in requests.question(0, 2)[message_keys.OUTCOMES]]
    assert told == [f"r{n:05d}" for n in range(10)], "the oldest"


def test_a_request_for_a_record_that_is_gone_is_not_told_until_it_is_back(tmp_path):
    """One that stays keeps no other waiting, and its node's ledger says once what is wrong; who leaves is told."""
    ledger = NodeLedger(tmp_path)
    ledger.submit(["a", "b"], identifier="gone")
    ledger.submit(["c"], identifier="fine")
    ledger.submit(["d"], scope="client", identifier="leaves")
    for _ in range(2):
        assert [r.id for r in asked(tmp_path, held={"a", "c"})] == ["fine", "leaves"]
    assert [e["reason"] for e in ledger.lines("failed")] == ["this client does not hold record 'b' any more"]
    (gone, *_) = ledger.requests()
    assert (gone.state, gone.note) == ("open", "attempt failed: this client does not hold record 'b' any more")
    assert [r.id for r in asked(tmp_path, held={"a", "b", "c", "d"})] == ["gone", "fine", "leaves"]
    assert [r.id for r in asked(tmp_path)] == ["gone", "fine", "leaves"], "records that the server deals out"


@pytest.mark.parametrize("per_round", [None, 2])
def test_what_a_node_does_not_tell_any_more_is_not_asked_of_it(tmp_path, per_round):
    """A message asks for all or for nothing: one request that cannot be served would keep the others waiting."""
    first, second, third = many(3, 1)
    requests, ledger, _ = source(tmp_path, {0: [first, second], 1: many(1, 1, client=1)}, per_round=per_round, again=3)
    assert {r.request_id for r in requests.pending(1)} >= {first.id}
    requests.nodes.told[0] = (second, third)
    due = [r.request_id for r in requests.pending(2)]
    assert first.id not in due and second.id in due
    requests.served(next(r for r in requests.pending(2) if r.request_id == second.id), 2, {})
    assert [r.request_id for r in requests.again(3)] == [second.id]
    requests.nodes.told[0] = (third,)
    requests.pending(3)
    assert requests.again(3) == [] and ledger.get(first.id).state == "pending"
    requests.nodes.told[0] = (first, third)
    assert first.id in [r.request_id for r in requests.pending(4)]
    del requests.nodes.told[0]
    assert first.id in [r.request_id for r in requests.pending(5)], "who is not heard is asked, and fails"


def test_a_record_whose_id_is_too_long_for_an_answer_is_none(tmp_path):
    """It would keep all requests of its node from being read."""
    path, problems = tmp_path / "records.jsonl", []
    rows = [{"id": "x" * length, "question": f"q{length}", "answer": "a"} for length in (LONGEST_ID, LONGEST_ID + 1)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    records, _ = read_training([path], problems)
    assert [len(r.id) for r in records] == [LONGEST_ID]
    assert problems == ["records.jsonl:2: id must have at most 512 characters, found 513"]


def test_what_failed_does_not_starve_or_exceed(tmp_path):
    requests, _, _ = source(tmp_path, {0: many(25, 1)}, most=10)
    for server_round in (1, 2):
        due = requests.pending(server_round)
        assert len(due) == 10
        for request in due:
            requests.failed(request, server_round, "no")


def test_the_time_of_an_intake_grows_with_its_size_and_no_faster(tmp_path):
    def seconds(number, folder):
        folder.mkdir()
        requests, _, _ = source(folder, {0: many(number, 500)}, most=10**6)
        began = time.process_time()
        assert len(requests.pending(1)) == number
        requests.live(0)
        return time.process_time() - began

    seconds(20, tmp_path / "warm")
    short, long = seconds(40, tmp_path / "short"), seconds(320, tmp_path / "long")
    assert long < 8 * short * 2.5 + 0.2, (short, long)


def test_no_choice_of_ids_stops_an_intake(tmp_path):
    """Another client has taken every name that this client's request could get, up to a hundred."""
    names = ["x", "x-client-0001", *(f"x-client-0001-{n}" for n in range(2, 120))]
    hostile = [Reported(name, "records", (f"h{n}",)) for n, name in enumerate(names)]
    requests, ledger, _ = source(tmp_path, {0: hostile, 1: [Reported("x", "records", ("mine",))]}, most=1000)
    assert len(requests.pending(1)) == len(names) + 1
    (mine,) = ledger.of_client(1)
    assert (mine.id, mine.told, mine.record_ids) == ("x-client-0001-120", "x", ("mine",))


def test_a_schedule_of_many_records_is_read_in_time(tmp_path):
    ids = [f"r{i}" for i in range(20_000)]
    path = tmp_path / "requests.jsonl"
    path.write_text(json.dumps({"round": 1, "client": 0, "record_ids": ids}) + "\n")
    began = time.process_time()
    (request,) = read_schedule(path, RemoteHoldings(2)).requests
    assert len(request.record_ids) == len(ids) and time.process_time() - began < 2


UNFIT = ["a\x1b[2J", "a\nb", "a\x9bm", "a\ud800", "a\u202eb", "a\x00"]


@pytest.mark.parametrize("name", UNFIT)
def test_record_ids_that_a_terminal_obeys_are_refused_on_the_wire(name):
    record = write_answer(Answer((Reported("x", "records", ("good", name)),), GENESIS, ()))
    with pytest.raises(WireError, match=r"request x names a record with the character U\+") as error:
        read_answer(record)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("name", UNFIT)
def test_and_in_files_with_file_and_line(tmp_path, name):
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({"id": "good", "question": "q", "answer": "a"}) + "\n")
    with path.open("a") as file:
        file.write(json.dumps({"id": name, "question": "q?", "answer": "b"}) + "\n")
    problems = []
    read_training([path], problems)
    (problem,) = problems
    assert problem.startswith("records.jsonl:2: ") and ("found U+" in problem or "lone surrogate" in problem)
    assert problem.isprintable() and issubclass(DataError, ValueError)


def test_what_a_server_tells_a_node_is_plain_text_there():
    entry = {"event": "failed", "round": 1, "reason": "\x1b]0;x\x07\x1b[31mno\u202e" + "y" * 5000}
    told = outcome_of(entry, "x", "0" * 64)
    assert told["reason"].startswith("no") and told["reason"].isprintable() and len(told["reason"]) == 1000
    hostile = {**told, "reason": "\x1b[2Jno\x9b31m"}
    config = ConfigRecord(
        {
            message_keys.RUN: "run\x1b[2J",
            message_keys.LEDGER: "0" * 64,
            message_keys.LEDGER_HEAD: "0" * 64,
            message_keys.SERVER_ROUND: 1,
            message_keys.OUTCOMES: [json.dumps(hostile)],
        }
    )
    question = read_question(config)
    assert question.run == "run" and question.outcomes[0]["reason"] == "no"


@pytest.mark.parametrize("before", [None, 0o644])
def test_a_node_s_ledger_is_its_owner_s_alone(tmp_path, before):
    ledger = NodeLedger(tmp_path)
    if before is not None:
        ledger.path.touch(mode=before)
        ledger.path.chmod(before)
    ledger.submit(["r1"], reason="a letter")
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("told", [10**18, -1, 2**60, [5], 5.0])
def test_counts_that_make_no_sense_are_none(tmp_path, told):
    nodes = NodeMap()
    nodes.answers[0] = RecordDict({message_keys.METRICS: MetricRecord({message_keys.NUM_RECORDS: told})})
    assert RemoteHoldings(2, nodes).count(0) == 0


def test_a_server_is_told_of_the_records_that_earlier_requests_name_and_asks_for_none_twice(tmp_path):
    """From the ledger of a node to the server's: a certificate is about every record of a demand."""
    node = NodeLedger(tmp_path / "node")
    node.submit(["a", "b"], identifier="zz", reason="by letter")
    node.submit(["b", "c"], scope="subject", subject="Mara Voss", identifier="art17", reason="by letter")
    told = asked(node.node_dir)
    assert [(t.id, t.record_ids) for t in told] == [("zz", ("a", "b")), ("art17", ("c", "b"))]
    requests, ledger, _ = source(tmp_path, {0: told})
    assert {r.request_id: r.record_ids for r in requests.pending(1)} == {"zz": ("a", "b"), "art17": ("c",)}
    again = Ledger(ledger.path).get("art17")
    assert (again.covered, again.already, again.record_ids) == (("b",), 1, ("c",))
    assert Ledger(ledger.path).get("zz").covered == ()
    assert check_chain(ledger.path).faults == ()
    guard = Guard(Policy(), node.node_dir, 0, message_keys.UNLEARN)
    guard.check_demands([Demand("art17", "subject", ("c", "b"))])
    with pytest.raises(Refused, match="does not ask for record"):
        guard.check_demands([Demand("art17", "subject", ("a",))])
