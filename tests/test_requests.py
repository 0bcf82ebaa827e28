"""The ledger's states and the policies that create requests."""

import json
from collections import Counter

import pytest

from oblivionis.requests import (
    AllAtRound,
    Ledger,
    NoRequests,
    RandomClientPerRound,
    Request,
    RequestError,
    read_schedule,
)

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
    ledger.verified("r3", 2, True, rouge=0.1)
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
    ledger.verified("r1", 1, False, rouge=0.9)
    assert Ledger(tmp_path / "r.jsonl").get("r1").state == "served"


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


def test_schedule_reports_every_bad_line(tmp_path):
    path = tmp_path / "schedule.jsonl"
    path.write_text(
        "\n".join(
            [
                '{"client": 0, "round": 1, "record_ids": ["a"], "id": "mine", "reason": "moved away"}',
                "{not json",
                '{"client": 5, "round": 1, "record_ids": ["a"]}',
                '{"client": 0, "round": 0, "record_ids": ["a"]}',
                '{"client": 0, "round": 1, "record_ids": ["zz"]}',
                '{"client": 0, "record_ids": ["a"]}',
            ]
        )
    )
    with pytest.raises(RequestError) as caught:
        read_schedule(path, {0: ["a", "b"]})
    text = str(caught.value)
    for line, part in ((2, "not JSON"), (3, "client 5"), (4, "round 0"), (5, "'zz'"), (6, "missing round")):
        assert f":{line}: " in text and part in text
    path.write_text(path.read_text().splitlines()[0])
    schedule = read_schedule(path, {0: ["a", "b"]})
    assert schedule.due(1, {}) == [Request("mine", 0, ("a",), 1, "moved away")]
    assert schedule.due(2, {}) == []
