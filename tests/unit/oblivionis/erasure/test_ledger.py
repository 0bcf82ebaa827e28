"""The ledger's states and the policies that create requests."""

import dataclasses
import json
from collections import Counter

import pytest

from oblivionis.erasure.ledger import AllAtRound, Ledger, NoRequests, RandomClientPerRound, as_text
from oblivionis.erasure.request import Request, RequestError
from oblivionis.erasure.verification_rules import Judgement

HOLDINGS = {0: ["a", "b"], 3: ["c"], 7: []}


def request(name="r1", client=3, round=1):
    return Request(name, client, ("x", "y"), round, "art. 17")


def test_submitting_twice_changes_nothing(tmp_path):
    ledger = Ledger(tmp_path / "requests.jsonl")
    assert ledger.submit(request())
    assert not ledger.submit(Request("r1", 9, ("z",), 4))
    assert ledger.get("r1").client == 3
    assert len((tmp_path / "requests.jsonl").read_text().splitlines()) == 1


def test_states_survive_reopening(tmp_path):
    path = tmp_path / "requests.jsonl"
    ledger = Ledger(path)
    for name in ("r1", "r2", "r3", "r4"):
        ledger.submit(request(name))
    ledger.failed("r1", 1, "NaN in adapter")
    ledger.failed("r1", 2, "no answer")
    ledger.served("r2", 2, num_examples=2)
    ledger.served("r3", 2)
    ledger.verified("r3", 2, Judgement("verified", "", 0.1), 0.5)
    ledger.rejected("r4", 1, "unknown record")
    again = Ledger(path)
    assert {r.id: r.state for r in again} == {"r1": "pending", "r2": "served", "r3": "verified", "r4": "rejected"}
    assert again.get("r1").attempts == 2
    assert [r.id for r in again.pending(9)] == ["r1"]
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(e["time"] > 1.6e9 and e["client"] == 3 for e in events)
    assert events[0]["count"] == 2 and events[0]["record_ids"] == ["x", "y"]


def test_a_request_waits_for_its_round(tmp_path):
    ledger = Ledger(tmp_path / "r.jsonl")
    ledger.submit(request(round=4))
    assert ledger.pending(3) == []
    assert [r.id for r in ledger.pending(4)] == ["r1"]


def test_a_check_that_fails_leaves_the_request_served(tmp_path):
    ledger = Ledger(tmp_path / "r.jsonl")
    ledger.submit(request())
    ledger.served("r1", 1)
    ledger.verified("r1", 1, Judgement("not testable", "too short", 0.9, {"x": "not testable"}), 0.5)
    found = Ledger(tmp_path / "r.jsonl").get("r1")
    assert (found.state, found.outcome, found.why, found.rouge) == ("served", "not testable", "too short", 0.9)
    line = json.loads((tmp_path / "r.jsonl").read_text().splitlines()[-1])
    assert (line["event"], line["limit"], line["records"]) == ("verification_failed", 0.5, {"not testable": 1})


def test_a_ledger_of_an_earlier_version_says_not_verified(tmp_path):
    ledger = Ledger(tmp_path / "r.jsonl")
    ledger.submit(request())
    ledger.served("r1", 1)
    known = {"id": "r1", "client": 3, "scope": "records", "time": 0.0, "round": 1}
    ledger.note("verification_failed", **known, rouge=0.9, limit=0.5)
    assert Ledger(tmp_path / "r.jsonl").get("r1").outcome == "not verified"


def test_roll_back_returns_only_what_was_served_later(tmp_path):
    path = tmp_path / "r.jsonl"
    ledger = Ledger(path)
    for name, served in (("early", 2), ("late", 5)):
        ledger.submit(request(name))
        ledger.served(name, served)
    before = path.read_text()
    assert ledger.roll_back(3) == ["late"]
    assert path.read_text().startswith(before), "the ledger is only ever appended to"
    again = Ledger(path)
    assert again.get("late").state == "pending" and again.get("early").state == "served"


def test_a_line_torn_by_a_crash_is_ignored_and_the_next_one_is_whole(tmp_path):
    path = tmp_path / "r.jsonl"
    Ledger(path).submit(request("r1"))
    with open(path, "a") as handle:
        handle.write('{"event": "submitted", "id": "r2", "cli')
    ledger = Ledger(path)
    assert [r.id for r in ledger] == ["r1"]
    ledger.served("r1", 1)
    assert Ledger(path).get("r1").state == "served"


def test_an_event_for_an_unknown_request_is_an_error(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"event": "served", "id": "ghost", "client": 0, "time": 0, "round": 1}\n')
    with pytest.raises(RequestError, match="ghost"):
        Ledger(path)


def test_random_client_is_seeded_and_uniform_over_holders():
    picks = [RandomClientPerRound(seed).due(1, HOLDINGS)[0] for seed in range(400)]
    again = [RandomClientPerRound(seed).due(1, HOLDINGS)[0] for seed in range(400)]
    assert picks == again
    counts = Counter(r.client for r in picks)
    assert set(counts) == {0, 3}
    assert abs(counts[0] - 200) < 4 * 10, "4 standard deviations of Binomial(400, 1/2)"
    assert all(r.record_ids == tuple(HOLDINGS[r.client]) for r in picks)
    assert RandomClientPerRound(0).due(1, {7: []}) == []


def test_all_at_round():
    assert AllAtRound(2).due(1, HOLDINGS) == []
    assert [r.client for r in AllAtRound(2).due(2, HOLDINGS)] == [0, 3]
    assert [r.client for r in AllAtRound(2, (3, 7)).due(2, HOLDINGS)] == [3]
    assert NoRequests().due(1, HOLDINGS) == []


def test_who_leaves_asks_for_everything_in_the_same_round_as_who_asks_for_its_share():
    everything = {0: ["a", "b", "x"], 3: ["c", "y"], 7: ["z"]}
    for seed in range(20):
        (share,) = RandomClientPerRound(seed).due(1, HOLDINGS)
        (leave,) = RandomClientPerRound(seed, everything).due(1, HOLDINGS)
        assert (leave.id, leave.client, leave.scope) == (share.id, share.client, "client")
        assert leave.record_ids == tuple(everything[share.client])
    assert [r.client for r in AllAtRound(2, None, everything).due(2, HOLDINGS)] == [0, 3], "who holds forget records"
    assert [(r.client, r.record_ids) for r in AllAtRound(2, (7,), everything).due(2, HOLDINGS)] == [(7, ("z",))]


def test_scope_subject_and_counts_survive_reopening(tmp_path):
    path = tmp_path / "r.jsonl"
    ledger = Ledger(path)
    about = Request("s-2", 2, ("a", "b"), 1, "by letter", scope="subject", subject="Mara Voss", group="s", already=1)
    leave = Request("l-0", 0, ("c",), 1, scope="client")
    covered = Request("s-5", 5, (), 1, scope="subject", subject="Mara Voss", group="s", already=2)
    for one in (about, leave, covered):
        assert ledger.submit(one)
    ledger.failed("l-0", 1, "no retain records")
    ledger.served("s-2", 1)
    ledger.verified("s-2", 1, Judgement("not verified", "", 0.75), 0.5)
    again = Ledger(path)
    assert again.get("s-2") == dataclasses.replace(
        about, state="served", served_round=1, rouge=0.75, judged="not verified"
    )
    assert again.get("l-0") == dataclasses.replace(leave, attempts=1, failure="no retain records")
    assert again.get("s-5") == dataclasses.replace(covered, state="covered")
    assert [r.id for r in again.pending(9)] == ["l-0"], "what is covered is never served"
    assert again.of_client(2) == [again.get("s-2")] and again.of_client(9) == []
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [e["scope"] for e in events] == ["subject", "client", "subject", "client", "subject", "subject"]
    assert [e.get("subject") for e in events if e["id"] != "l-0"] == ["Mara Voss"] * 4
    assert (events[2]["count"], events[2]["already"], events[2]["group"]) == (0, 2, "s")


def test_a_ledger_without_scopes_can_be_read(tmp_path):
    """As written before there were any."""
    path = tmp_path / "r.jsonl"
    path.write_text(
        '{"event": "submitted", "id": "r", "client": 4, "time": 1.0, "round": 2, "record_ids": ["a"], "count": 1, '
        '"reason": "its share"}\n'
        '{"event": "failed", "id": "r", "client": 4, "time": 2.0, "round": 2, "reason": "no answer", "attempts": 1}\n'
        '{"event": "served", "id": "r", "client": 4, "time": 3.0, "round": 3, "count": 1}\n'
    )
    expected = Request("r", 4, ("a",), 2, "its share", "served", 1, 3, failure="no answer")
    assert list(Ledger(path)) == [expected] and expected.scope == "records"


def test_requests_in_words():
    requests = [
        Request("b", 5, ("a", "b"), 1),
        Request("a", 3, ("c",), 1, scope="client"),
        Request("s-1", 1, ("d",), 1, scope="subject", subject="Mara\nVoss", group="s"),
        Request("s-4", 4, ("e", "f"), 1, scope="subject", subject="Mara\nVoss", group="s"),
        Request("t-3", 3, ("g",), 1, scope="subject", subject="Ivo Lind", group="t"),
    ]
    assert as_text(requests) == (
        "client 3 leaves with 1 record; clients 1, 4 forget Mara Voss (3 records); client 3 forgets Ivo Lind (1 record)"
        "; client 5 asks to forget 2 records"
    )
    assert as_text(requests[:1]) == "client 5 asks to forget 2 records" and as_text([]) == ""
