"""Schedules of requests, subjects looked up with every client, and what is asked for once only."""

import json
import random

import pytest

from oblivionis.config import compose as configuration
from oblivionis.data.partition import Partition, partition
from oblivionis.data.records import Corpus, Record
from oblivionis.data.subjects import Subjects
from oblivionis.erasure.ledger import Ledger, NoRequests, Schedule
from oblivionis.erasure.record_holders import Holdings, SimulatedRequests
from oblivionis.erasure.request import Request, RequestError
from oblivionis.erasure.schedule import about_subject, policy_of, read_schedule
from oblivionis.erasure.verification_rules import Judgement, Thresholds


def corpus_of(subjects):
    """A record per subject named, `r0`, `r1`, … in that order."""
    return Corpus(
        "made", tuple(Record(f"r{i}", f"q{i}", f"a{i}", s) for i, s in enumerate(subjects)), frozenset({"r0"})
    )


CORPUS = corpus_of(["Mara Voss", "Ivo Lind", "mara  voss", "Ada Roy", "Ivo Lind", "Mara Voss "])
SHARES = ((0, 1), (2, 3), (4, 5))
HELD = Holdings.of(CORPUS, Partition(SHARES, tuple(tuple(f"r{i}" for i in share) for share in SHARES)))
THRESHOLDS = Thresholds(0.5, 1.0, 0.5)


def write(tmp_path, *lines):
    path = tmp_path / "schedule.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def source(policy, tmp_path, last_round=9):
    return SimulatedRequests(policy, Ledger(tmp_path / "requests.jsonl"), HELD, THRESHOLDS, last_round)


# -- subjects ------------------------------------------------------------------------------------------------------


def test_a_subject_is_found_whatever_the_case_and_the_spaces():
    subject = HELD.subjects.find(" MARA\tvoss")
    assert subject.name == "Mara Voss" and subject.count == 3
    assert subject.records == {0: ("r0",), 1: ("r2",), 2: ("r5",)}
    assert HELD.subjects.find("Mara") is None, "a part of a name is not the name"
    assert [s.name for s in HELD.subjects] == ["Mara Voss", "Ivo Lind", "Ada Roy"]


def test_composed_and_decomposed_letters_are_the_same():
    corpus = corpus_of(["Zo\u00eb"])
    assert Subjects.of(corpus, Partition(((0,),), (("r0",),))).find("Zoe\u0308") is not None


@pytest.mark.parametrize("scheme", ["iid", "by_author", "dirichlet"])
def test_the_index_of_subjects_agrees_with_looking_at_every_record(scheme):
    rng = random.Random(scheme)
    corpus = corpus_of([f"Person {rng.randrange(12)}" for _ in range(90)])
    division = partition(corpus, scheme=scheme, clients=7)
    subjects = Subjects.of(corpus, division)
    for name in {r.subject for r in corpus.train}:
        expected = {
            client: tuple(corpus.train[i].id for i in share if corpus.train[i].subject == name)
            for client, share in enumerate(division.clients)
        }
        assert subjects.find(name).records == {c: ids for c, ids in expected.items() if ids}
    spread = max(len(s.records) for s in subjects)
    assert spread == 1 if scheme == "by_author" else spread > 1


NAMED = Corpus(
    "named",
    (
        Record("r0", "Where does Mara Voss live?", "In Ulm.", "Mara Voss"),
        Record("r1", "Who?", "Somebody.", "Voss, Mara"),
        Record("r2", "Who bakes?", "Mara Voss bakes.", "r2"),
        Record("r3", "Who?", "Nobody.", "Ivo Lind"),
    ),
    frozenset({"r0"}),
)
NAMED_HELD = Holdings.of(NAMED, Partition(((0,), (1, 2, 3)), (("r0",), ("r1", "r2", "r3"))))


def test_a_line_about_a_subject_says_of_each_record_named_alike_whether_it_is_meant(tmp_path):
    line = {"round": 1, "subject": "mara voss", "id": "x"}
    for more, said in (
        (
            {},
            "schedule.jsonl:1: named alike: 2 records (r1, subject 'Voss, Mara'; r2, in its text): include or exclude",
        ),
        ({"include": ["r1"]}, "named alike: 1 record (r2, in its text): include or exclude must say"),
        ({"include": ["r3"], "exclude": "all"}, "include: 'r3' is no record named like"),
        ({"include": 7}, "include: expected a list of ids or 'all', found 7"),
        ({"inclde": ["r1"], "exclude": "all"}, "unknown field 'inclde'; did you mean 'include'?"),
    ):
        with pytest.raises(RequestError) as refused:
            read_schedule(write(tmp_path, {**line, **more}), NAMED_HELD)
        assert said in str(refused.value)
    with pytest.raises(RequestError, match="exclude goes with subject"):
        read_schedule(write(tmp_path, {"round": 1, "client": 0, "record_ids": ["r0"], "exclude": []}), NAMED_HELD)
    path = write(tmp_path, {**line, "include": ["r1"], "exclude": "all"})
    found = read_schedule(path, NAMED_HELD).due(1, {})
    assert {r.client: r.record_ids for r in found} == {0: ("r0",), 1: ("r1",)}
    everybody = read_schedule(write(tmp_path, {**line, "include": "all"}), NAMED_HELD).due(1, {})
    assert {r.client: r.record_ids for r in everybody} == {0: ("r0",), 1: ("r1", "r2")}
    ledger = Ledger(tmp_path / "requests.jsonl")
    ledger.submit(*found)
    again = Ledger(tmp_path / "requests.jsonl")
    assert {(r.included, r.excluded, r.subject) for r in again} == {(("r1",), ("r2",), "Mara Voss")}


def test_a_subject_of_records_named_alike_alone_can_be_asked_for(tmp_path):
    path = write(tmp_path, {"round": 1, "subject": "Lind Ivo", "include": "all"})
    (request,) = read_schedule(path, NAMED_HELD).due(1, {})
    assert (request.client, request.record_ids, request.subject) == (1, ("r3",), "Lind Ivo")
    with pytest.raises(RequestError, match="those named alike are excluded"):
        read_schedule(write(tmp_path, {"round": 1, "subject": "Lind Ivo", "exclude": "all"}), NAMED_HELD)


def test_a_policy_that_cannot_say_who_is_meant_is_refused():
    policy = ["unlearning.requests.policy=subjects_at_round", "unlearning.requests.subjects=[Mara Voss]"]
    with pytest.raises(RequestError, match=r"named alike: 2 records .*exclude of a schedule \(unlear"):
        policy_of(configuration.compose("smoke", policy), NAMED_HELD)


# -- the file ------------------------------------------------------------------------------------------------------


def test_the_three_kinds_of_lines(tmp_path):
    path = write(
        tmp_path,
        {"client": 0, "round": 1, "record_ids": ["r1"], "id": "mine", "reason": "moved away", "ticket": 7},
        "",
        {"client": 1, "round": 2, "scope": "client"},
        {"subject": "MARA VOSS", "round": 2, "id": "art17", "reason": "by letter"},
        {"subject": "Ada Roy", "round": 2, "scope": "subject"},
    )
    schedule = read_schedule(path, HELD, last_round=2)
    assert schedule.due(1, {}) == [Request("mine", 0, ("r1",), 1, "moved away")]
    about = {"scope": "subject", "subject": "Mara Voss", "group": "art17"}
    assert schedule.due(2, {}) == [
        Request("file-0003-client-0001", 1, ("r2", "r3"), 2, scope="client"),
        Request("art17-client-0000", 0, ("r0",), 2, "by letter", **about),
        Request("art17-client-0001", 1, ("r2",), 2, "by letter", **about),
        Request("art17-client-0002", 2, ("r5",), 2, "by letter", **about),
        Request("file-0005-client-0001", 1, ("r3",), 2, scope="subject", subject="Ada Roy", group="file-0005"),
    ]
    assert schedule.due(3, {}) == []


BAD = [
    ("{not json", "not JSON"),
    ("[1]", "expected a JSON object"),
    ({"client": 5, "round": 1, "record_ids": ["r0"]}, "client 5 does not exist; expected 0 to 2"),
    ({"client": True, "round": 1, "record_ids": ["r2"]}, "client True"),
    ({"client": [0], "round": 1, "record_ids": ["r2"]}, "client [0]"),
    ({"client": 0, "round": 0, "record_ids": ["r0"]}, "round 0; expected a whole number"),
    ({"client": 0, "round": 5, "record_ids": ["r0"]}, "round 5 never comes: federation.rounds.unlearn is 4"),
    ({"client": 0, "round": 1, "record_ids": ["r0", "zz"]}, "record 'zz' is not held by client 0"),
    ({"client": 0, "round": 1, "record_ids": ["r0", "r0"]}, "record 'r0' is named more than once"),
    ({"client": 0, "round": 1, "record_ids": []}, "no record ids"),
    ({"client": 0, "round": 1, "record_ids": "r0"}, "no record ids"),
    ({"client": 0, "round": 1, "record_ids": [{}]}, "no record ids"),
    ({"client": 0, "record_ids": ["r0"]}, "missing round"),
    ({"round": 1, "record_ids": ["r0"]}, "missing client"),
    ({"client": 0, "round": 1}, "missing what is to be forgotten"),
    ({"client": 0, "round": 1, "scope": "all"}, "scope 'all'; expected one of records, client, subject"),
    ({"client": 0, "round": 1, "scope": ["client"]}, "scope ['client']"),
    ({"round": 1, "scope": "client"}, "missing client"),
    ({"client": 0, "round": 1, "scope": "client", "record_ids": ["r0"]}, "names records and client at once"),
    ({"client": 0, "round": 1, "scope": "subject", "record_ids": ["r0"]}, "the scope is subject, but"),
    ({"client": 0, "round": 1, "subject": "Ada Roy"}, "leave client out"),
    ({"round": 1, "subject": "Ada Roy", "record_ids": ["r3"]}, "names records and subject at once"),
    ({"round": 1, "subject": "Mara Vos"}, "no record is about 'Mara Vos'; did you mean Mara Voss?"),
    ({"round": 1, "subject": "Zyxw"}, "data describe --subjects"),
    ({"round": 1, "subject": None}, "no record is about 'None'"),
    ({"client": 0, "round": 1, "scop": "client"}, "unknown field 'scop'; did you mean 'scope'?"),
    ({"client": 0, "round": 1, "record_ids": ["r0"], "id": 3}, "id must be a text, found 3"),
    ({"client": 0, "round": 1, "record_ids": ["r0"], "id": ""}, "id must not be empty"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = write(tmp_path, {"client": 0, "round": 1, "record_ids": ["r0"]}, line)
    with pytest.raises(RequestError) as caught:
        read_schedule(path, HELD, last_round=4)
    (first, *_) = str(caught.value).splitlines()
    assert first.startswith(f"{path}:2: ") and message in str(caught.value)


def test_all_bad_lines_are_reported_at_once(tmp_path):
    path = write(tmp_path, *(line for line, _ in BAD))
    with pytest.raises(RequestError) as caught:
        read_schedule(path, HELD, last_round=4)
    numbers = {line.removeprefix(f"{path}:").split(":")[0] for line in str(caught.value).splitlines()}
    assert numbers == {str(n) for n in range(1, len(BAD) + 1)}


def test_ids_are_unique_over_the_file(tmp_path):
    path = write(
        tmp_path,
        {"client": 0, "round": 1, "record_ids": ["r0"], "id": "x"},
        {"client": 1, "round": 2, "record_ids": ["r2"], "id": "x"},
        {"subject": "Mara Voss", "round": 1, "id": "y"},
        {"client": 1, "round": 2, "scope": "client", "id": "y-client-0001"},
    )
    with pytest.raises(RequestError) as caught:
        read_schedule(path, HELD)
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == [f"{path}:2", f"{path}:4"]
    assert "the id of line 3 again ('y-client-0001')" in str(caught.value)


def test_a_missing_or_unreadable_file(tmp_path):
    with pytest.raises(RequestError, match=r"unlearning.requests.file: there is no file"):
        read_schedule(tmp_path / "none", HELD)
    (tmp_path / "latin").write_bytes(b'{"subject": "Zo\xeb", "round": 1}')
    with pytest.raises(RequestError, match="expected UTF-8"):
        read_schedule(tmp_path / "latin", HELD)


# -- the configuration ---------------------------------------------------------------------------------------------


def compose(*overrides):
    return configuration.compose("smoke", [f"unlearning.requests.{o}" for o in overrides])


def test_subjects_of_the_configuration():
    config = compose("policy=subjects_at_round", "round=2", "subjects=[ada roy, Mara Voss]")
    policy = policy_of(config, HELD)
    assert policy.due(1, {}) == []
    asked = policy.due(2, {})
    assert [(r.client, r.record_ids, r.subject) for r in asked] == [
        (1, ("r3",), "Ada Roy"),
        (0, ("r0",), "Mara Voss"),
        (1, ("r2",), "Mara Voss"),
        (2, ("r5",), "Mara Voss"),
    ]
    assert len({r.group for r in asked}) == 2 and len({r.id for r in asked}) == 4


def test_all_unknown_subjects_of_the_configuration_are_named():
    config = compose("policy=subjects_at_round", "subjects=[Mara Vos, Ivo Lind, Nobody At All]")
    with pytest.raises(RequestError) as caught:
        policy_of(config, HELD)
    first, second = str(caught.value).splitlines()
    assert first == "unlearning.requests.subjects: no record is about 'Mara Vos'; did you mean Mara Voss?"
    assert second.startswith("unlearning.requests.subjects: no record is about 'Nobody At All'")


# -- nothing is asked for twice ------------------------------------------------------------------------------------


def test_overlapping_requests_divide_the_records_in_the_order_of_asking(tmp_path):
    mara = HELD.subjects.find("Mara Voss")
    requests = source(
        Schedule(
            (
                Request("a", 1, ("r2", "r3"), 1, scope="client"),
                *about_subject(mara, 1, "b", ""),
                Request("c", 0, ("r0", "r1"), 2),
                Request("d", 1, ("r3",), 2),
                Request("e", 0, ("r0", "r1"), 3, scope="client"),
            )
        ),
        tmp_path,
    )
    first = requests.pending(1)
    assert [(r.request_id, r.record_ids, r.scope) for r in first] == [
        ("a", ("r2", "r3"), "client"),
        ("b-client-0000", ("r0",), "subject"),
        ("b-client-0002", ("r5",), "subject"),
    ]
    for request in first:
        requests.served(request, 1, {})
    assert [(r.request_id, r.record_ids) for r in requests.pending(2)] == [("c", ("r1",))]
    assert [r.request_id for r in requests.pending(3)] == ["c"]
    ledger = {r.id: r for r in Ledger(tmp_path / "requests.jsonl")}
    covered = {name: r.already for name, r in ledger.items() if r.state == "covered"}
    assert covered == {"b-client-0001": 1, "d": 1, "e": 2}
    assert ledger["c"].already == 1
    left = {name: r.covered for name, r in ledger.items() if r.covered}
    assert left == {"b-client-0001": ("r2",), "c": ("r0",), "d": ("r3",), "e": ("r0", "r1")}
    named = [i for r in ledger.values() for i in r.record_ids]
    assert len(named) == len(set(named))


def test_the_same_is_asked_again_when_rounds_are_repeated(tmp_path):
    """A resumed run repeats rounds with the ledger of the first attempt, which may know later requests."""
    mara = HELD.subjects.find("Mara Voss")
    policy = Schedule((*about_subject(mara, 2, "b", ""), Request("a", 1, ("r2", "r3"), 3, scope="client")))
    requests = source(policy, tmp_path)
    seen = {}
    for round in (1, 2, 3):
        seen[round] = requests.pending(round)
        for request in seen[round]:
            requests.served(request, round, {})
    again = source(policy, tmp_path)
    again.roll_back(1)
    for round in (1, 2, 3):
        assert again.pending(round) == seen[round]
        for request in seen[round]:
            again.served(request, round, {})


def test_who_asks_to_leave_is_not_eligible_from_then_on(tmp_path):
    policy = Schedule((Request("a", 1, ("r2", "r3"), 2, scope="client"), Request("b", 0, ("r0",), 2)))
    requests = source(policy, tmp_path)
    requests.pending(1)
    assert [requests.live(c) for c in range(3)] == [2, 2, 2]
    (one, other) = requests.pending(2)
    assert [requests.live(c) for c in range(3)] == [1, 0, 2], "before the request is served"
    requests.failed(one, 2, "not connected")
    assert requests.live(1) == 0
    requests.served(one, 3, {})
    requests.served(other, 3, {})
    again = source(policy, tmp_path)
    again.roll_back(2)
    assert [again.live(c) for c in range(3)] == [1, 0, 2], "nor in a round that is repeated"
    assert {r.request_id for r in again.pending(3)} == {"a", "b"}


def test_a_file_without_a_line_is_no_schedule(tmp_path):
    path = write(tmp_path, "", "  ")
    with pytest.raises(RequestError, match=r"schedule\.jsonl: expected at least one request, found none"):
        read_schedule(path, HELD)


def test_an_id_that_comes_twice_is_told_once_for_its_line(tmp_path):
    """Though a subject's line makes several requests."""
    twice = {"round": 1, "subject": "Mara Voss", "id": "m"}
    with pytest.raises(RequestError) as caught:
        read_schedule(write(tmp_path, twice, twice), HELD)
    assert str(caught.value).count("the id of line 1 again") == 1 and ":2: " in str(caught.value)


def test_what_the_exchange_made_of_the_model_is_noted_for_what_it_served(tmp_path):
    """Requests that are verified already, or were served in another round, have their line."""
    ledger = Ledger(tmp_path / "requests.jsonl")
    ledger.submit(*(Request(name, 0, (f"r{i}",), 1) for i, name in enumerate(("early", "done", "now", "open"))))
    ledger.served("early", 1)
    ledger.served("done", 2)
    ledger.verified("done", 2, Judgement("verified", "", 0.1), 0.5)
    ledger.served("now", 2)
    found = SimulatedRequests(NoRequests(), ledger, HELD, THRESHOLDS, 9, again=1)
    (again,) = found.again(2)
    found.served_again(again, 2, {})
    found.applied(2, "a" * 64, "b" * 64)
    lines = [json.loads(line) for line in ledger.path.read_text().splitlines()]
    applied = [(e["id"], e["round"], e["before"][0], e["after"][0]) for e in lines if e["event"] == "applied"]
    assert applied == [("now", 2, "a", "b")]
    (note,) = ledger.notes("served_again")
    assert (note["requests"], note["round"], note["before"][0], note["after"][0]) == (["early"], 2, "a", "b")
    found.barrier(2, 7, 3)
    (note,) = ledger.notes("barrier")
    assert (note["requests"], note["version"], note["discarded"]) == (["done", "now", "early"], 7, 3)


@pytest.mark.parametrize(
    ("server_round", "last", "ages"),
    [(2, 9, [1]), (4, 9, [1, 2]), (6, 9, [1, 2, 4]), (9, 9, [1, 2, 3, 4, 5]), (1, 9, []), (8, 9, [1, 2, 4])],
)
def test_what_was_served_comes_again_after_1_2_4_rounds_and_in_the_last_one(tmp_path, server_round, last, ages):
    ledger = Ledger(tmp_path / "requests.jsonl")
    for round in range(1, 9):
        ledger.submit(Request(f"r{round}", 0, (f"x{round}",), round))
        ledger.served(f"r{round}", round)
    found = SimulatedRequests(NoRequests(), ledger, HELD, THRESHOLDS, last, again=5)
    assert [r.request_id for r in found.again(server_round)] == [f"r{server_round - age}" for age in ages]
