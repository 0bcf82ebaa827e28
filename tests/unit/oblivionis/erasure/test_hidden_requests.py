"""A node's share in cover exchanges: what its commitment binds and tells, what becomes of its requests, and opening."""

import hashlib
import hmac
import json
import random
import re
import stat

import pytest
from support.nodes import write_lines

from oblivionis.chain import check_chain
from oblivionis.erasure.hidden_requests import (
    SealError,
    commit,
    demands_of,
    enter_outcomes,
    give_up,
    join,
    open_commitment,
    read_opened,
    sealed_counts,
    share_of,
    valid_commitment,
)
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.node_record_files import counts
from oblivionis.erasure.query_schema import COUNTED, LEFT_OUT, ROLLED_BACK, SessionOutcome
from oblivionis.erasure.unlearn_messages import Demand

RUN = "clinics"


def ask(folder, identifier, *records, scope="records"):
    return NodeLedger(folder).submit(list(records), scope=scope, reason="by letter", identifier=identifier)


def outcome(share, what=COUNTED, line="a", round=1, run=RUN, **fields):
    said = {"before": "b" * 64, "after": "c" * 64} if what == COUNTED else {}
    return SessionOutcome(share.session, run, round, what, line * 64, share.commitment, **{**said, **fields})


def states(folder):
    return {r.id: r.state for r in NodeLedger(folder).requests()}


def canonical(body):
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def by_definition(run, session, client, secret, demands):
    """The commitment as the module's docstring states it, written down a second time."""

    def salt(label):
        return hmac.new(bytes.fromhex(secret), label.encode(), hashlib.sha256).hexdigest()

    digests = []
    for name, scope, records in demands:
        body = {"id": name, "record_ids": records, "salt": salt(f"request {name}"), "scope": scope}
        digests.append(hashlib.sha256(canonical(body)).hexdigest())
    body = {"client": client, "requests": digests, "run": run, "salt": salt("exchange"), "session": session}
    return hashlib.sha256(canonical(body)).hexdigest()


def secrets_of(folder):
    return [line["secret"] for line in NodeLedger(folder).lines("committed")]


def test_the_commitment_is_the_hash_that_the_definition_says(tmp_path):
    ask(tmp_path, "x", "r1", "Zoë")
    ask(tmp_path, "leave", "r2", scope="client")
    share = join(tmp_path, RUN, "s1", 7)
    (secret,) = secrets_of(tmp_path)
    asked = [("x", "records", ["r1", "Zoë"]), ("leave", "client", ["r2"])]
    assert len(bytes.fromhex(secret)) == 32
    assert share.commitment == by_definition(RUN, "s1", 7, secret, asked)


def test_with_and_without_requests_it_has_one_form_and_one_length(tmp_path):
    ask(tmp_path / "asks", "x", *(f"r{n}" for n in range(500)))
    found = [join(tmp_path / name, RUN, "s1", 0).commitment for name in ("asks", "silent")]
    assert all(re.fullmatch("[0-9a-f]{64}", c) and valid_commitment(c) for c in found) and len(set(found)) == 2
    assert not any(map(valid_commitment, ("", "A" * 64, "a" * 63, "a" * 64 + "\n", None, 5)))


def test_no_two_sessions_share_a_salt(tmp_path):
    for n in range(5):
        join(tmp_path, RUN, f"s{n}", 0)
    assert len(set(secrets_of(tmp_path))) == 5
    assert len({line["commitment"] for line in NodeLedger(tmp_path).lines("committed")}) == 5


def test_all_that_opens_it_is_on_the_disk_before_it_leaves(tmp_path):
    ask(tmp_path, "x", "r1")
    share = join(tmp_path, RUN, "s1", 0)
    path = tmp_path / "requests.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and check_chain(path).faults == ()
    (line,) = NodeLedger(tmp_path).lines("committed")
    assert line["commitment"] == share.commitment and line["demands"] == [
        {"id": "x", "scope": "records", "record_ids": ["r1"]}
    ]


def test_a_repeated_call_gives_the_same_and_seals_nothing_anew(tmp_path):
    assert share_of(tmp_path, "s1") is None
    ask(tmp_path, "x", "r1")
    first = join(tmp_path, RUN, "s1", 0)
    ask(tmp_path, "late", "r2")
    before = (tmp_path / "requests.jsonl").read_bytes()
    assert share_of(tmp_path, "s1") == first and (tmp_path / "requests.jsonl").read_bytes() == before
    with pytest.raises(SealError, match="sealed with other requests already"):
        commit(tmp_path, "s1", [], run=RUN, client=0)
    assert join(tmp_path, RUN, "s1", 0) == first, "what is asked for meanwhile waits for the next exchange"
    assert len(secrets_of(tmp_path)) == 1 and check_chain(tmp_path / "requests.jsonl").faults == ()
    for run, client in (("other", 0), (RUN, 1)):
        with pytest.raises(SealError, match="another run or client"):
            join(tmp_path, run, "s1", client)


def test_one_exchange_is_begun_so_often_whether_or_not_one_asks(tmp_path):
    """Else a server could hold it among other clients each time, until it knows in whose presence the sum is not 0."""
    ask(tmp_path / "asks", "x", "r1")
    for name in ("asks", "silent"):
        for _ in range(3):
            join(tmp_path / name, RUN, "s1", 0)
        with pytest.raises(SealError, match="session 's1' was begun 3 times already"):
            join(tmp_path / name, RUN, "s1", 0)
    (request,) = NodeLedger(tmp_path / "asks").requests()
    assert request.exchanges == 3


def give_up_in_vain(folder, session):
    """An exchange in which the node adds nothing: it tells nobody anything, and does not count."""
    join(folder, RUN, session, 0)
    give_up(folder, session, "out of memory")


def test_run_after_run_asks_no_oftener(tmp_path):
    ask(tmp_path, "x", "r1")
    runs = [f"run{n}" for n in range(5)]
    found = []
    for n, run in enumerate(runs):
        share = join(tmp_path, run, run, 0)
        found.append(len(share.demands))
        enter_outcomes(tmp_path, [outcome(share, line=f"{n}", run=run)])
    assert found == [1, 1, 1, 0, 0]
    assert open_commitment(tmp_path, "x").run == "run2"


def test_a_request_that_was_in_many_exchanges_waits_for_its_user(tmp_path):
    ask(tmp_path, "x", "r1")
    for n, what in enumerate((LEFT_OUT, ROLLED_BACK, LEFT_OUT), start=1):
        share = join(tmp_path, RUN, f"s{n}", 0)
        assert [d.request_id for d in share.demands] == ["x"]
        enter_outcomes(tmp_path, [outcome(share, what, line=f"{n}")])
        give_up_in_vain(tmp_path, f"own{n}")
    (request,) = NodeLedger(tmp_path).requests()
    assert request.progress.startswith("open, ") and request.progress.endswith(", was in 3 exchanges")
    assert demands_of(tmp_path, RUN) == () == join(tmp_path, "another", "s4", 0).demands
    assert join(tmp_path, RUN, "s5", 0, most_exchanges=4).demands == share.demands


@pytest.mark.parametrize("session", ["", "x" * 201, "a\nb", "\x1b[2J"])
def test_a_session_needs_a_name(tmp_path, session):
    with pytest.raises(SealError, match="printable"):
        join(tmp_path, RUN, session, 0)
    assert not NodeLedger(tmp_path).lines("committed")


def test_nothing_is_sealed_that_was_not_asked_for_here(tmp_path):
    ask(tmp_path, "x", "r1")
    before = (tmp_path / "requests.jsonl").read_bytes()
    with pytest.raises(SealError, match="request 'y' was not made on this node"):
        commit(tmp_path, "s1", [Demand("y", "records", ("r1",))], run=RUN, client=0)
    assert (tmp_path / "requests.jsonl").read_bytes() == before


def test_open_sealed_served(tmp_path):
    ask(tmp_path, "x", "r1")
    assert demands_of(tmp_path, RUN) == (Demand("x", "records", ("r1",)),)
    share = join(tmp_path, RUN, "s1", 0)
    assert states(tmp_path) == {"x": "sealed"} and demands_of(tmp_path, RUN) == ()
    ask(tmp_path, "y", "r2")
    second = join(tmp_path, RUN, "s2", 0)
    assert [d.request_id for d in second.demands] == ["y"], "x is in a sum already, as far as anybody knows"
    assert enter_outcomes(tmp_path, [outcome(share)]) == ["a" * 64]
    assert states(tmp_path) == {"x": "served", "y": "sealed"}
    (request, _) = NodeLedger(tmp_path).requests()
    assert (request.run, request.served_round) == (RUN, 1)
    assert demands_of(tmp_path, RUN) == () and demands_of(tmp_path, "next") == (
        Demand("x", "records", ("r1",)),
        Demand("y", "records", ("r2",)),
    ), "an unverified request is one of the next run again"


@pytest.mark.parametrize("what", [LEFT_OUT, ROLLED_BACK])
def test_what_is_not_in_the_sum_is_asked_for_again(tmp_path, what):
    ask(tmp_path, "x", "r1")
    share = join(tmp_path, RUN, "s1", 0)
    assert enter_outcomes(tmp_path, [outcome(share, what)]) == ["a" * 64]
    assert states(tmp_path) == {"x": "open"}
    again = join(tmp_path, RUN, "s2", 0)
    assert again.demands == share.demands and again.commitment != share.commitment


def test_a_sum_that_a_resumed_run_undid_is_made_again_under_the_same_commitment(tmp_path):
    ask(tmp_path, "x", "r1")
    share = join(tmp_path, RUN, "s1", 0)
    enter_outcomes(tmp_path, [outcome(share, COUNTED, "a"), outcome(share, ROLLED_BACK, "b")])
    assert states(tmp_path) == {"x": "open"}
    assert join(tmp_path, RUN, "s1", 0) == share and states(tmp_path) == {"x": "sealed"}
    enter_outcomes(tmp_path, [outcome(share, COUNTED, "c", round=2)])
    (request,) = NodeLedger(tmp_path).requests()
    assert (request.state, request.served_round) == ("served", 2)
    assert open_commitment(tmp_path, "x").line == "c" * 64


def test_an_outcome_is_entered_once_and_confirmed_as_often_as_it_is_told(tmp_path):
    ask(tmp_path, "x", "r1")
    share = join(tmp_path, RUN, "s1", 0)
    assert [enter_outcomes(tmp_path, [outcome(share)]) for _ in range(3)] == [["a" * 64]] * 3
    assert len(NodeLedger(tmp_path).lines("session")) == len(NodeLedger(tmp_path).lines("served")) == 1
    stranger = SessionOutcome("s9", RUN, 1, COUNTED, "d" * 64, share.commitment, "b" * 64, "c" * 64)
    assert enter_outcomes(tmp_path, [stranger, outcome(share, line="e", run="other")]) == []


def test_an_exchange_that_the_server_does_not_know_is_lost(tmp_path):
    """The server stopped between the sum and its ledger's line: it will never tell."""
    ask(tmp_path, "x", "r1")
    share = join(tmp_path, RUN, "s1", 0)
    enter_outcomes(tmp_path, [], run="another run")
    assert states(tmp_path) == {"x": "sealed"}
    enter_outcomes(tmp_path, [], run=RUN)
    assert states(tmp_path) == {"x": "open"}
    enter_outcomes(tmp_path, [outcome(share)], run=RUN)
    assert states(tmp_path) == {"x": "open"}, "x may be sealed elsewhere by now: it is forgotten once more at worst"


def test_a_commitment_that_the_server_mistook_serves_nothing(tmp_path):
    ask(tmp_path, "x", "r1")
    share = join(tmp_path, RUN, "s1", 0)
    enter_outcomes(tmp_path, [outcome(share).__class__(*("s1", RUN, 1, COUNTED, "a" * 64, "f" * 64))])
    (request,) = NodeLedger(tmp_path).requests()
    assert (request.state, "another commitment" in request.note) == ("open", True)


def test_a_node_that_could_add_nothing_asks_again_although_it_counts(tmp_path):
    ask(tmp_path, "x", "r1")
    share = join(tmp_path, RUN, "s1", 0)
    give_up(tmp_path, "s1", "the loss is not finite")
    assert states(tmp_path) == {"x": "open"}
    enter_outcomes(tmp_path, [outcome(share)])
    (request,) = NodeLedger(tmp_path).requests()
    assert (request.state, request.note) == ("open", "the loss is not finite")
    with pytest.raises(SealError, match="in no session 's9'"):
        give_up(tmp_path, "s9", "why")


def test_no_record_twice_and_none_that_is_gone(tmp_path):
    ask(tmp_path, "x", "r1", "r2")
    ask(tmp_path, "gone", "r3", "r4")
    first = join(tmp_path, RUN, "s1", 0, held={"r1", "r2", "r3"})
    assert [d.request_id for d in first.demands] == ["x"]
    gone = next(r for r in NodeLedger(tmp_path).requests() if r.id == "gone")
    assert (gone.state, gone.note) == ("open", "attempt failed: this client does not hold record 'r4' any more")
    join(tmp_path, RUN, "s2", 0, held={"r1", "r2", "r3"})
    assert len(NodeLedger(tmp_path).lines("failed")) == 1
    NodeLedger(tmp_path).note("rejected", "x", reason="no", run="old")
    ask(tmp_path, "y", "r1", "r5")
    NodeLedger(tmp_path).note("rolled_back", "x", run="old")
    assert demands_of(tmp_path, RUN) == (
        Demand("x", "records", ("r1", "r2")),
        Demand("gone", "records", ("r3", "r4")),
        Demand("y", "records", ("r5",)),
    )


def test_the_numbers_that_a_sealed_node_tells_do_not_fall(tmp_path):
    node, path = NodeFolder(tmp_path), tmp_path / "data" / "records.jsonl"
    rows = [{"id": f"r{n}", "question": f"Who is {n}?", "answer": "Nobody."} for n in range(3)]
    write_lines(path, rows)
    assert sealed_counts(node) == (3, 3) == counts(node)
    ask(tmp_path, "x", "r0", "r1", scope="client")
    node.bury(["r0", "r1"], "x")
    node.leave("x")
    assert sealed_counts(node) == (3, 3) and counts(node) == (3, 0)
    write_lines(path, rows[2:])
    assert sealed_counts(node) == (3, 3)


@pytest.fixture
def opened(tmp_path):
    """A request of an exchange that holds two, opened into a file."""
    ask(tmp_path, "x", "r1", "r2")
    ask(tmp_path, "private", "r3", scope="subject")
    share = join(tmp_path, RUN, "s1", 4)
    enter_outcomes(tmp_path, [outcome(share)])
    path = tmp_path / "opened.json"
    path.write_text(json.dumps(open_commitment(tmp_path, "x").to_json()))
    return path, share


def test_one_request_is_opened_and_the_others_stay_sealed(opened):
    path, share = opened
    found = read_opened(path)
    assert (found.commitment, found.demand) == (share.commitment, Demand("x", "records", ("r1", "r2")))
    assert (found.run, found.session, found.client, found.round, found.line) == (RUN, "s1", 4, 1, "a" * 64)
    text = path.read_text()
    (secret,) = secrets_of(path.parent)
    assert "private" not in text and "r3" not in text and secret not in text and "letter" not in text
    other = hmac.new(bytes.fromhex(secret), b"request private", hashlib.sha256).hexdigest()
    assert other not in text


CHANGES = {
    "the request's id": lambda o: o["demand"].update(request_id="z"),
    "its scope": lambda o: o["demand"].update(scope="client"),
    "a record": lambda o: o["demand"].update(record_ids=["r1", "r9"]),
    "a record less": lambda o: o["demand"].update(record_ids=["r1"]),
    "the order of its records": lambda o: o["demand"].update(record_ids=["r2", "r1"]),
    "the exchange's salt": lambda o: o.update(salts=["0" * 64, o["salts"][1]]),
    "the request's salt": lambda o: o.update(salts=[o["salts"][0], "0" * 64]),
    "the run": lambda o: o.update(run="other"),
    "the session": lambda o: o.update(session="s2"),
    "the client": lambda o: o.update(client=5),
    "the commitment": lambda o: o.update(commitment="0" * 64),
    "another's digest": lambda o: o.update(digests=[o["digests"][0], "0" * 64]),
    "the order of the digests": lambda o: o.update(digests=o["digests"][::-1]),
    "a digest less": lambda o: o.update(digests=o["digests"][:1]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_any_change_breaks_it(opened, name):
    path, _ = opened
    body = json.loads(path.read_text())
    CHANGES[name](body)
    path.write_text(json.dumps(body))
    with pytest.raises(SealError, match="was changed"):
        read_opened(path)


def test_any_digit_breaks_it(opened):
    path, _ = opened
    whole = path.read_text()
    body, generator = json.loads(whole), random.Random(0)
    hashes = [*body["salts"], *body["digests"], body["commitment"]]
    for _ in range(100):
        before = generator.choice(hashes)
        place = generator.randrange(64)
        other = generator.choice([digit for digit in "0123456789abcdef" if digit != before[place]])
        path.write_text(whole.replace(before, before[:place] + other + before[place + 1 :]))
        with pytest.raises(SealError, match="was changed"):
            read_opened(path)
    path.write_text(whole)
    assert read_opened(path).commitment == body["commitment"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "oblivionis opened request", "version": 1}', '{"format": "x", "format": "y"}'],
)
def test_what_is_no_opened_request_is_told(tmp_path, text):
    path = tmp_path / "opened.json"
    path.write_text(text)
    with pytest.raises(SealError, match=r"opened\.json"):
        read_opened(path)
    with pytest.raises(SealError, match="no such file"):
        read_opened(tmp_path / "absent.json")


def test_only_what_was_served_can_be_opened(tmp_path):
    with pytest.raises(SealError, match="made no request 'x'"):
        open_commitment(tmp_path, "x")
    ask(tmp_path, "x", "r1")
    with pytest.raises(SealError, match="request 'x' is open"):
        open_commitment(tmp_path, "x")
    share = join(tmp_path, RUN, "s1", 0)
    with pytest.raises(SealError, match="request 'x' is sealed"):
        open_commitment(tmp_path, "x")
    enter_outcomes(tmp_path, [outcome(share, LEFT_OUT)])
    with pytest.raises(SealError, match="request 'x' is open"):
        open_commitment(tmp_path, "x")


def test_what_is_opened_says_which_of_its_records_other_requests_name(tmp_path):
    """Those that an earlier request names when it is made, and those that one names in the same exchange."""
    ask(tmp_path, "zz", "r1", "r2")
    ask(tmp_path, "art17", "r2", "r3")
    share = join(tmp_path, RUN, "s1", 0)
    assert [d.record_ids for d in share.demands] == [("r1", "r2"), ("r3",)]
    enter_outcomes(tmp_path, [SessionOutcome("s1", RUN, 1, "counted", "a" * 64, share.commitment, "b" * 64, "c" * 64)])
    found = open_commitment(tmp_path, "art17")
    assert (found.demand.record_ids, found.covered) == (("r3",), ("r2",))
    assert open_commitment(tmp_path, "zz").covered == ()
    path = tmp_path / "opened.json"
    path.write_text(json.dumps(found.to_json()))
    assert read_opened(path) == found
    path.write_text(json.dumps({k: v for k, v in found.to_json().items() if k != "covered"}))
    assert read_opened(path).covered == (), "a file of an earlier version"
