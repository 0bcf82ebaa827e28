"""Requests in batches: who comes when, against looking at every request; and what nobody has asked for yet."""

import json
import random

import pytest

from oblivionis.data.subjects import Subjects
from oblivionis.erasure.ledger import AllAtRound, Ledger, NoRequests, Schedule
from oblivionis.erasure.record_holders import Holdings, SimulatedRequests
from oblivionis.erasure.request import PENDING, REJECTED, Request
from oblivionis.erasure.unrequested_records import OpenRecords
from oblivionis.erasure.verification_rules import Thresholds

HELD = {client: tuple(f"{client}-{n}" for n in range(3)) for client in range(6)}


def requests_of(count, *, rounds=3):
    rng = random.Random(count)
    return [Request(f"r{rng.randrange(1000):03d}-{n}", n % 4, (f"x{n}",), 1 + n % rounds) for n in range(count)]


def numbers(path):
    """By request its number in start-time fair queueing, from the lines of the file alone."""
    found, last, highest = {}, {}, 0
    for line in map(json.loads, path.read_text().splitlines()):
        name, client = line["id"], line["client"]
        if line["event"] == "submitted":
            found[name] = last[client] = max(highest, last[client] + 1) if client in last else highest
        elif line["event"] in ("served", "failed"):
            highest = max(highest, found[name])
            found[name] = highest + 1 if line["event"] == "failed" else found[name]
    return found


def brute(ledger, server_round, most, most_of_client=None):
    """By the definition: sort all, count per client, cut."""
    due = [r for r in ledger if r.state == PENDING and r.round <= server_round]
    taken, of_client, number = [], {}, numbers(ledger.path)
    for request in sorted(due, key=lambda r: (number[r.id], r.attempts, r.round, r.id)):
        of_client[request.client] = of_client.get(request.client, 0) + 1
        if most_of_client is None or of_client[request.client] <= most_of_client:
            taken.append(request)
    return sorted(taken[:most], key=lambda r: r.id)


@pytest.mark.parametrize("most_of_client", [None, 1, 2])
def test_batches_are_those_of_the_definition_whatever_happens(tmp_path, most_of_client):
    """Random events, with a look after each, also by a ledger that is read from the file anew."""
    rng, path = random.Random(7), tmp_path / "requests.jsonl"
    ledger = Ledger(path)
    first, *later = [requests_of(30)[:20], *([r] for r in requests_of(30)[20:])]
    ledger.submit(*first)
    for step in range(60):
        waiting = [r for r in ledger if r.state == PENDING]
        event = rng.choice(("served", "failed", "failed", "rejected", "back"))
        if step % 6 == 5:
            (new,) = later[step // 6]
            ledger.submit(new)
        elif event == "back":
            ledger.roll_back(rng.randrange(4))
        elif waiting:
            request, server_round = rng.choice(waiting), rng.randrange(1, 6)
            if event == "served":
                ledger.served(request.id, server_round)
            elif event == "failed":
                ledger.failed(request.id, server_round, "away")
            elif step % 7 == 0:
                ledger.rejected(request.id, server_round, "unknown")
        for one in (ledger, Ledger(path)) if step % 10 == 0 else (ledger,):
            for server_round, most in ((1, 3), (2, 5), (9, 2), (9, 9), (9, 50)):
                expected = brute(one, server_round, most, most_of_client)
                assert one.first_pending(server_round, most, most_of_client) == expected
                assert one.first_pending(server_round, most, most_of_client) == expected, "looking changes nothing"
            assert [r.id for r in one.pending(2)] == sorted(r.id for r in one if r.state == PENDING and r.round <= 2)
            for n in range(7):
                assert one.served_in(n) == [r for r in one if r.served_round == n]


def source(path, policy, per_round=None, again=0, held=HELD):
    holdings = Holdings(held, held, Subjects(()))
    return SimulatedRequests(policy, Ledger(path), holdings, Thresholds(0.5, 1.0, 0.5), 9, again, per_round)


def test_without_a_limit_all_are_due_as_ever(tmp_path):
    requests = source(tmp_path / "requests.jsonl", AllAtRound(1))
    assert [r.node for r in requests.pending(1)] == [0, 1, 2, 3, 4, 5]
    assert requests.asked(1) == requests.waiting(1)


def test_an_exchange_is_about_its_batch_also_where_clients_alone_are_limited(tmp_path):
    """`due` with so many of one client (policy nodes): the others are not asked, and cost no ε in this round."""
    requests = source(tmp_path / "requests.jsonl", NoRequests())
    requests.ledger.submit(*(Request(f"r{n}", n % 2, (f"x{n}",), 1) for n in range(6)))
    assert [r.id for r in requests.due(1, 2)] == ["r0", "r1", "r2", "r3"]
    assert [r.id for r in requests.asked(1)] == ["r0", "r1", "r2", "r3"]
    assert len(requests.waiting(1)) == len(requests.asked(2)) == 6


@pytest.mark.parametrize("per_round", [1, 5])
def test_a_client_with_many_requests_keeps_nobody_waiting(tmp_path, per_round):
    """A hundred of client 0, then one of client 1: served in the next round, not after those."""
    requests = source(tmp_path / "requests.jsonl", NoRequests(), per_round=per_round)
    requests.ledger.submit(*(Request(f"a{n:03d}", 0, (f"x{n}",), 1) for n in range(100)))
    served = []
    for server_round in (1, 2):
        served.append([r.request_id for r in requests.pending(server_round)])
        for request in requests.pending(server_round):
            requests.served(request, server_round, {})
        requests.ledger.submit(Request("b", 1, ("y",), server_round + 1))
    assert served[0] == [f"a{n:03d}" for n in range(per_round)]
    assert served[1] == [*(f"a{n:03d}" for n in range(per_round, 2 * per_round - 1)), "b"]


def test_a_client_that_never_answers_keeps_nobody_waiting(tmp_path):
    """Two a round of six; clients 0 and 1 always fail: the others are served in the rounds right after."""
    requests = source(tmp_path / "requests.jsonl", AllAtRound(1), per_round=2)
    batches = []
    for server_round in range(1, 5):
        batch = requests.pending(server_round)
        batches.append([r.node for r in batch])
        assert [r.client for r in requests.asked(server_round)] == batches[-1]
        for request in batch:
            if request.node < 2:
                requests.failed(request, server_round, "no reply")
            else:
                requests.served(request, server_round, {})
        assert [r.client for r in requests.served_in(server_round)] == [n for n in batches[-1] if n > 1]
    assert batches == [[0, 1], [2, 3], [4, 5], [0, 1]]


@pytest.mark.parametrize("per_round", [1, 2, 5])
@pytest.mark.parametrize("flood", [1, 2, 100])
def test_one_whose_attempt_failed_does_not_wait_for_those_that_another_client_makes_anew(tmp_path, per_round, flood):
    """Client 0 makes as many requests in every round; client 1 is away in three rounds."""
    requests = source(tmp_path / "requests.jsonl", NoRequests(), per_round=per_round)
    away, served = 3, []
    for server_round in range(1, 20):
        made = [Request(f"a{server_round}-{n}", 0, (f"x{server_round}-{n}",), server_round) for n in range(flood)]
        requests.ledger.submit(*made, *([Request("mine", 1, ("y",), 1)] if server_round == 1 else ()))
        for request in requests.pending(server_round):
            if request.node == 1 and away:
                requests.failed(request, server_round, "away")
                away -= 1
            else:
                requests.served(request, server_round, {})
                served += [server_round] if request.node == 1 else []
    assert not away and served and served[0] <= 8


def test_requests_that_ask_for_nothing_more_cost_their_client_no_turn(tmp_path):
    requests = source(tmp_path / "requests.jsonl", NoRequests(), per_round=1)
    requests.ledger.submit(*(Request(f"c{n}", 0, (), 1) for n in range(50)))
    requests.ledger.submit(*(Request(name, client, (name,), 1) for name, client in (("a", 1), ("b", 1), ("mine", 0))))
    assert [r.request_id for r in requests.pending(1)] == ["a"]
    requests.served(requests.pending(1)[0], 1, {})
    assert [r.request_id for r in requests.pending(2)] == ["mine"]


def test_a_resumed_run_goes_on_with_the_same_batches(tmp_path):
    """Rounds 2 and 3 are rolled back and repeated from the file: the same requests as the first time."""
    path, first = tmp_path / "requests.jsonl", []
    requests = source(path, AllAtRound(1), per_round=2)
    for server_round in (1, 2, 3):
        first.append(requests.pending(server_round))
        for request in first[-1]:
            requests.served(request, server_round, {})
    later = source(path, AllAtRound(1), per_round=2)
    later.roll_back(1)
    for server_round in (2, 3):
        batch = later.pending(server_round)
        assert batch == first[server_round - 1]
        for request in batch:
            later.served(request, server_round, {})
    assert later.pending(4) == []


def test_what_is_served_again_is_what_the_last_rounds_served(tmp_path):
    requests = source(tmp_path / "requests.jsonl", AllAtRound(1), per_round=2, again=2)
    for server_round in (1, 2, 3):
        for request in requests.pending(server_round):
            requests.served(request, server_round, {})
    assert [r.node for r in requests.again(3)] == [2, 3, 0, 1], "those served last come first"
    assert [r.node for r in requests.again(4)] == [4, 5, 2, 3]
    assert [r.node for r in requests.again(1)] == []


def test_in_the_last_planned_round_all_that_the_configuration_reaches_is_served_again(tmp_path):
    """Client k is served in round k + 1; the ninth round is the last that is planned."""
    requests = source(tmp_path / "requests.jsonl", AllAtRound(1), per_round=1, again=7)
    for server_round in range(1, 7):
        for request in requests.pending(server_round):
            requests.served(request, server_round, {})
    assert [r.node for r in requests.again(8)] == [5, 3], "1, 2 and 4 rounds ago"
    assert [r.node for r in requests.again(9)] == [5, 4, 3, 2, 1], "1 to 7 rounds ago"
    assert [r.node for r in requests.again(10)] == [5], "1, 2 and 4 rounds ago, in a round that was added"


def test_open_records_are_those_that_no_earlier_request_names(tmp_path):
    """Against looking at all requests, over random schedules; also when a round comes again or one is rejected."""
    for seed in range(5):
        rng = random.Random(seed)
        ledger = Ledger(tmp_path / f"{seed}.jsonl")
        records = OpenRecords(ledger, HELD)
        for step in range(12):
            server_round = rng.choice((step, step, max(0, step - 2)))
            client = rng.randrange(6)
            ids = tuple(rng.sample(HELD[client], rng.randrange(3)))
            asked, open_ = records.before(server_round)
            named = {i for r in ledger if r.round < server_round and r.state != REJECTED for i in r.record_ids}
            assert set(asked) == named
            assert {c: list(ids) for c, ids in open_.items()} == {
                c: [i for i in ids if i not in named] for c, ids in HELD.items()
            }
            ledger.submit(Request(f"s{step}", client, ids, server_round))
            if step % 5 == 4 and (waiting := ledger.pending(99)):
                ledger.rejected(rng.choice(waiting).id, server_round, "unknown")


def test_a_schedule_gives_each_round_its_own_in_their_order():
    requests = tuple(requests_of(20))
    schedule = Schedule(requests)
    for n in range(5):
        assert schedule.due(n, {}) == [r for r in requests if r.round == n]
    assert schedule == Schedule(requests) != Schedule(requests[1:])


def test_what_no_request_names_is_left_of_the_forget_split(tmp_path):
    """By hand: one client names all it holds, one a part; a rejected request names nothing, a pending one counts."""
    held = {client: HELD[client] for client in range(4)}
    requests = source(tmp_path / "requests.jsonl", NoRequests(), held=held)
    assert requests.unrequested(3) == {client: list(ids) for client, ids in held.items()}
    ledger = requests.ledger
    ledger.submit(Request("whole", 0, HELD[0], 1), Request("part", 1, HELD[1][:1], 2), Request("bad", 2, HELD[2], 1))
    ledger.served("whole", 1)
    ledger.rejected("bad", 1, "unknown")
    assert requests.unrequested(3) == {1: list(HELD[1][1:]), 2: list(HELD[2]), 3: list(HELD[3])}
    assert requests.unrequested(1) == {1: list(HELD[1]), 2: list(HELD[2]), 3: list(HELD[3])}
