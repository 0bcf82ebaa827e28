"""The ledger in a node's folder, and the commands `request submit`, `list` and `verify`."""

import hashlib
import json
import subprocess
import sys

import pytest
from support.commands import call

from oblivionis.chain import check_chain
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.request import RequestError

RECORDS = [
    {"id": "r1", "question": "Where does Mara Voss live?", "answer": "In Ulm.", "subject": "Mara Voss"},
    {"id": "r2", "question": "What does she do?", "answer": "She bakes.", "subject": "Mara  Voss"},
    {"id": "r3", "question": "Where does Ivo Lind live?", "answer": "In Bonn.", "subject": "Ivo Lind"},
]
LINE = {name: name[0] * 64 for name in "abcde"}


@pytest.fixture
def node(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text(json.dumps(RECORDS[0]) + "\n")
    (tmp_path / "data" / "b.jsonl").write_text("".join(json.dumps(r) + "\n" for r in RECORDS[1:]))
    return tmp_path


def submit(node, *arguments):
    return call("request", "submit", "--node-dir", node, *arguments)


def outcome(event, line, id="x", **fields):
    return {"event": event, "id": id, "line": LINE[line], "round": 1, **fields}


def test_a_ledger_that_begins_is_no_ledger_that_was_emptied(node):
    first = submit(node, "--ids", "r1", "--reason", "by letter")
    assert first.code == 0 and "empty" not in first.out + first.err
    (node / "requests.jsonl").write_text("")
    assert "is empty: a crash, or somebody emptied it" in submit(node, "--ids", "r2", "--reason", "by phone").err


def test_submit_by_ids_by_subject_and_all(node):
    assert submit(node, "--ids", "r1, r3", "--reason", "by letter", "--id", "art17").code == 0
    result = submit(node, "--subject", "mara voss", "--reason", "by phone")
    assert result.code == 0 and "1 record," in result.out and "1 more is asked for already" in result.out
    assert submit(node, "--all", "--reason", "contract ended").code == 2, "nothing is left to ask for"
    first, second = NodeLedger(node).requests()
    assert (first.id, first.scope, first.record_ids, first.reason) == ("art17", "records", ("r1", "r3"), "by letter")
    assert (second.scope, second.record_ids, second.subject) == ("subject", ("r2",), "Mara Voss")
    assert (first.covered, second.covered, second.everything) == ((), ("r1",), ("r2", "r1"))
    assert check_chain(node / "requests.jsonl").faults == ()


def test_all_names_everything_that_the_node_holds(node):
    assert submit(node, "--all", "--reason", "contract ended", "--id", "end").code == 0
    (request,) = NodeLedger(node).requests()
    assert (request.scope, request.record_ids) == ("client", ("r1", "r2", "r3"))


def test_nothing_is_asked_for_while_somebody_is_only_named_alike(node):
    extra = {"id": "r4", "question": "Who bakes?", "answer": "Mara Voss, of Ulm, bakes."}
    (node / "data" / "c.jsonl").write_text(json.dumps(extra) + "\n")
    asked = ("--subject", "Mara Voss", "--reason", "x")
    result = submit(node, *asked)
    assert result.code == 2 and "named alike: 1 record (r4, in its text)" in result.err and not result.out
    assert not (node / "requests.jsonl").exists()
    result = submit(node, *asked, "--include", "all", "--id", "x")
    assert result.code == 0 and "are about Mara Voss: 1 (r4); are not: none" in result.out
    (request,) = NodeLedger(node).requests()
    assert (request.record_ids, request.included, request.excluded) == (("r1", "r2", "r4"), ("r4",), ())
    assert call("request", "withdraw", "--node-dir", node, "x").code == 0 and NodeLedger(node).requests()[0].withdrawn
    assert call("request", "withdraw", "--node-dir", node, "x").code == 2


def test_somebody_who_is_only_named_alike_can_be_meant(node):
    result = submit(node, "--subject", "Lind, Ivo", "--reason", "x", "--include", "r3")
    assert result.code == 0 and [(r.subject, r.record_ids) for r in NodeLedger(node).requests()] == [
        ("Lind, Ivo", ("r3",))
    ]
    assert (
        "those named alike are excluded"
        in submit(node, "--subject", "Voss Mara", "--reason", "x", "--exclude", "all").err
    )


MISTAKES = {
    "someone said to be meant without a name": (
        ["--all", "--include", "r1", "--reason", "x"],
        "--include and --exclude say",
    ),
    "unknown id": (["--ids", "r1,r33", "--reason", "x"], "has the id 'r33'; did you mean r3?"),
    "unknown subject": (["--subject", "Mara Vos", "--reason", "x"], "did you mean Mara Voss?"),
    "nothing named": (["--reason", "x"], "one of --ids, --subject and --all"),
    "two things named": (["--all", "--ids", "r1", "--reason", "x"], "one of --ids, --subject and --all"),
    "empty ids": (["--ids", " , ", "--reason", "x"], "--ids: expected ids"),
    "no reason": (["--all"], "--reason TEXT is missing"),
    "a path as id": (["--all", "--reason", "x", "--id", "../x"], "--id '../x'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_and_nothing_is_written(node, name):
    arguments, message = MISTAKES[name]
    result = submit(node, *arguments)
    assert result.code == 2 and message in result.err and "Traceback" not in result.err
    assert not (node / "requests.jsonl").exists()


def test_faulty_records_are_told_with_file_and_line(node):
    (node / "data" / "b.jsonl").write_text('{"id": "r2", "question": "x"}\n')
    result = submit(node, "--ids", "r1", "--reason", "x")
    assert result.code == 2 and "b.jsonl:1" in result.err


def test_a_missing_folder_is_told(tmp_path):
    assert "no such folder" in submit(tmp_path / "no", "--all", "--reason", "x").err
    assert "no such folder" in submit(tmp_path, "--all", "--reason", "x").err
    assert "no such folder" in call("request", "list", "--node-dir", tmp_path / "no").err


def test_an_id_is_taken_once(node):
    ledger = NodeLedger(node)
    ledger.submit(["r1"], identifier="x")
    with pytest.raises(RequestError, match="already"):
        ledger.submit(["r2"], identifier="x")


def did(ledger, name, round=1, run="run", kind="train.unlearn", **more):
    """The line of the node's own about an exchange or an audit."""
    ledger.note("exchanged", kind=kind, run=run, client=0, round=round, requests=[name], **more)


def measured(ledger, name, recited=0.0, before=1.0, moment="final", **more):
    """The node's own audits: of the models before and right after the exchange, and of one `moment` more."""
    for of, count in (("before", before), ("after", 0.0), (moment, recited)):
        numbers = {"request_recited": count, "request_rouge": 0.125}
        did(ledger, name, kind="evaluate.audit", **{"moment": of, "numbers": numbers, **more})


def told(ledger, *outcomes, run="run", **more):
    """What a server says in a query; returns state, round and note of the first request then."""
    ledger.heard(run, "f" * 64, outcomes, round=1, **more)
    request = ledger.requests()[0]
    return request.state, request.served_round, request.note


def test_outcomes_make_the_states_and_are_entered_once(node):
    ledger = NodeLedger(node)
    ledger.submit(["r1"], identifier="x")
    did(ledger, "x", 3)
    served = outcome("served", "a", round=3)
    assert ledger.heard("run", "f" * 64, [served, outcome("applied", "b", before="0" * 64, after="1" * 64)], round=4)
    (request,) = ledger.requests()
    assert (request.state, request.run, request.served_round, request.settled) == ("served", "run", 3, False)
    measured(ledger, "x")
    confirmed = ledger.heard("run", "f" * 64, [served, outcome("verified", "c", rouge=0.25, limit=0.5)], round=5)
    assert confirmed == [LINE["a"], LINE["c"]], "what is known already is confirmed again"
    (request,) = ledger.requests()
    assert (request.state, request.rouge, ledger.unsettled()) == ("verified", 0.125, []), "its own number"
    events = [json.loads(line)["event"] for line in ledger.path.read_text().splitlines()]
    assert events == [
        "submitted",
        "exchanged",
        "served",
        "applied",
        "queried",
        *["exchanged"] * 3,
        "verified",
        "queried",
    ]
    assert check_chain(ledger.path).faults == ()


def test_what_is_not_verified_or_rolled_back_is_told_again(node):
    ledger = NodeLedger(node)
    ledger.submit(["r1"], identifier="x")
    ledger.submit(["r2"], identifier="y")
    did(ledger, "x")
    did(ledger, "y")
    ledger.heard("run", "f" * 64, [outcome("served", "a"), outcome("verification_failed", "b", rouge=0.9)], round=1)
    ledger.heard("run", "f" * 64, [outcome("served", "c", "y"), outcome("rolled_back", "d", "y")], round=1)
    assert [(r.id, r.state) for r in ledger.unsettled()] == [("x", "not verified"), ("y", "open")]


# -- what a node believes --------------------------------------------------------------------------------------------


@pytest.fixture
def asked(node):
    ledger = NodeLedger(node)
    ledger.submit(["r1"], identifier="x")
    return ledger


def test_no_exchange_no_served(asked):
    state = told(asked, outcome("served", "a", round=2))
    assert state == ("open", None, "run run says that it is served; this node did no such exchange")
    for wrong in ({"round": 2, "run": "other"}, {"round": 3}, {"round": 2, "kind": "train"}):
        did(asked, "x", **wrong)
        assert told(asked, outcome("served", "a", round=2))[:2] == ("open", None)
    did(asked, "y", 2)
    assert told(asked, outcome("served", "b", round=2))[:2] == ("open", None), "an exchange for another request"
    did(asked, "x-client-0000", 2)
    assert told(asked, outcome("served", "c", round=2)) == ("served", 2, ""), "under the name that the server gave it"


@pytest.mark.parametrize("kind", ["train.unlearn", "query.bury"])
def test_an_exchange_is_one_by_which_the_records_were_forgotten_or_buried(asked, kind):
    did(asked, "x", kind=kind)
    assert told(asked, outcome("served", "a"))[:2] == ("served", 1)


def test_one_exchange_is_served_once(asked):
    """A run that resumed from before it does it again."""
    did(asked, "x")
    again = (outcome("served", "a"), outcome("rolled_back", "b"), outcome("served", "c"))
    assert told(asked, *again) == ("open", None, "run run says that it is served; this node did no such exchange")
    did(asked, "x")
    assert told(asked, outcome("rolled_back", "d"), outcome("served", "e"))[:2] == ("served", 1)


def test_one_forged_query_verifies_nothing(asked):
    state = told(asked, outcome("verified", "a", rouge=0.0, outcome="verified"))
    assert state == (
        "open",
        None,
        "run run says that it is verified; by this node's ledger it did not serve the request",
    )
    measured(asked, "x")
    assert told(asked, outcome("served", "b"), outcome("verified", "c"))[0] == "open", "an audit is no exchange"
    assert [r.id for r in asked.unsettled()] == ["x"]


def test_another_run_verifies_nothing_that_it_did_not_serve(asked):
    did(asked, "x")
    told(asked, outcome("served", "a"))
    measured(asked, "x", run="other")
    assert told(asked, outcome("verified", "b"), run="other")[0] == "served"
    assert "did not serve" in told(asked, outcome("verified", "c"), run="other")[2]


def test_nothing_is_verified_that_the_node_did_not_measure(asked):
    measured(asked, "x")
    did(asked, "x")
    assert told(asked, outcome("served", "a"), outcome("verified", "b"))[0] == "served", "measured before the exchange"
    for no_end in ("before", "after"):
        measured(asked, "x", moment=no_end)
    state = told(asked, outcome("verified", "c"))
    assert state == ("served", 1, "run run says that it is verified; this node has not measured it")
    assert [r.id for r in asked.unsettled()] == ["x"]
    measured(asked, "x")
    assert told(asked, outcome("verified", "d")) == ("verified", 1, "")


def test_what_the_node_found_recited_is_not_verified(asked):
    did(asked, "x")
    measured(asked, "x", recited=1.0)
    state = told(asked, outcome("served", "a"), outcome("verified", "b"))
    said = "by this node's own audit it is not verified: the final model recites its record"
    assert state == ("served", 1, f"run run says that it is verified; {said}")


@pytest.mark.parametrize("after", [1.0, -1.0])
def test_what_the_exchange_left_is_not_verified(asked, after):
    """No number below 0 can come of an audit; in a ledger that was edited it speaks for nothing."""
    did(asked, "x")
    for moment, recited in (("before", 1.0), ("after", after), ("final", 0.0)):
        did(asked, "x", kind="evaluate.audit", moment=moment, numbers={"request_recited": recited})
    state, _, note = told(asked, outcome("served", "a"), outcome("verified", "b"))
    assert state == "served" and "by this node's own audit it is not verified" in note


def test_a_copy_of_a_servers_line_without_its_hash_is_not_the_nodes_own_word(asked):
    asked.note("verified", "x", run="run", line="", rouge=0.0)
    (request,) = asked.requests()
    assert request.state == "open" and "did not serve the request" in request.note


def test_an_audit_whose_numbers_are_null_is_no_line_of_the_program(asked):
    did(asked, "x")
    with pytest.raises(ValueError, match=r"numbers is None"):
        did(asked, "x", kind="evaluate.audit", moment="final", numbers=None)


def test_two_outcomes_with_one_hash_are_both_kept(asked):
    """A server that says two things under one line's hash leaves both in the node's ledger."""
    did(asked, "x")
    asked.heard("run", "f" * 64, [outcome("served", "a"), outcome("verification_failed", "a", rouge=0.9)], round=1)
    assert [e["event"] for e in asked.entries() if "line" in e] == ["served", "verification_failed"]


def test_what_nobody_recited_before_was_not_verified(asked):
    did(asked, "x")
    measured(asked, "x", before=0.0)
    state = told(asked, outcome("served", "a"), outcome("verified", "b"))
    assert state[0] == "served" and "by this node's own audit it is not testable" in state[2]


def test_which_share_of_the_records_must_be_verified_is_the_servers_to_say(node):
    ledger = NodeLedger(node)
    ledger.submit(["r1", "r2"], identifier="x")
    did(ledger, "x")
    measured(ledger, "x", before=1.0)
    assert told(ledger, outcome("served", "a"), outcome("verified", "b"))[0] == "verified"


def test_an_audit_that_an_earlier_version_entered_without_numbers_counts(asked):
    did(asked, "x")
    did(asked, "x", kind="evaluate.audit", moment="final")
    assert told(asked, outcome("served", "a"), outcome("verified", "b", rouge=0.5))[0] == "verified"
    assert asked.requests()[0].rouge == 0.5


def test_a_request_may_have_the_name_that_a_server_gives_to_another(asked):
    asked.submit(["r2"], identifier="x-client-0000")
    did(asked, "x-client-0000")
    assert told(asked, outcome("served", "a"))[0] == "open", "the exchange was for the other"
    asked.heard("run", "f" * 64, [outcome("served", "b", "x-client-0000")], round=1)
    assert [r.state for r in asked.requests()] == ["open", "served"]


def test_an_exchange_done_anew_is_measured_anew(asked):
    did(asked, "x")
    measured(asked, "x")
    did(asked, "x", 2)
    assert told(asked, outcome("served", "a", round=2), outcome("verified", "b"))[0] == "served"


def test_a_node_that_measures_nothing_at_all_has_the_servers_word_only(asked):
    did(asked, "x")
    state = told(asked, outcome("served", "a"), outcome("verified", "b", rouge=0.25), audits=False)
    said = "by the word of its server alone: this node measures nothing"
    assert state == ("verified", 1, said) and asked.requests()[0].rouge == 0.25
    shown = call("request", "list", "--node-dir", asked.node_dir)
    assert said in " ".join(shown.out.split())


@pytest.mark.parametrize("event", ["failed", "applied", "rejected", "rolled_back", "served", "verification_failed"])
def test_no_other_word_smuggles_in_that_it_is_verified(asked, event):
    did(asked, "x")
    measured(asked, "x")
    told(asked, outcome("served", "a"), outcome(event, "b", outcome="verified", reason="no"))
    assert asked.requests()[0].state not in ("verified", "covered") and len(asked.unsettled()) == 1


def test_what_failed_was_rejected_or_was_undone_is_demanded_on(asked):
    assert told(asked, outcome("failed", "a", reason="late")) == ("open", None, "attempt failed: late")
    assert told(asked, outcome("rolled_back", "b"))[0] == "open"
    assert told(asked, outcome("rejected", "c", reason="no")) == ("rejected", None, "no")
    assert [r.id for r in asked.unsettled()] == ["x"], "another run is told of it"
    assert asked.submit(["r1"], identifier="again").id == "again", "and it may be asked for anew"


def test_a_check_that_failed_is_of_what_was_served(asked):
    assert told(asked, outcome("verification_failed", "a", outcome="inconclusive", why="?"))[0] == "open"
    did(asked, "x")
    told(asked, outcome("served", "b"))
    assert told(asked, outcome("verification_failed", "c", outcome="inconclusive", why="?")) == ("inconclusive", 1, "?")
    assert told(asked, outcome("verification_failed", "d", outcome="covered"))[0] == "not verified"


def test_covered_is_what_earlier_requests_of_this_node_name(asked):
    asked.submit(["r1", "r2"], identifier="y", scope="client")
    assert [r.record_ids for r in asked.requests()] == [("r1",), ("r2",)]
    asked.heard("run", "f" * 64, [outcome("covered", "a", "x"), outcome("covered", "b", "y")], round=1)
    first, second = asked.requests()
    assert (first.state, second.state) == ("open", "open") and len(asked.unsettled()) == 2
    assert second.note == "run run says that it is covered; no earlier request of this node names 'r2'"


def test_a_request_that_a_rejected_one_covers_is_not_covered(asked):
    told(asked, outcome("rejected", "a", reason="no"))
    asked.submit(["r1"], identifier="y")
    asked.heard("run", "f" * 64, [outcome("covered", "b", "x"), outcome("covered", "c", "y")], round=1)
    assert [r.state for r in asked.requests()] == ["rejected", "open"]


def test_a_repeated_demand_is_covered_by_the_first(asked):
    did(asked, "x")
    measured(asked, "x")
    told(asked, outcome("served", "a"), outcome("verified", "b"))
    asked.submit(["r1"], identifier="y")
    asked.heard("run", "f" * 64, [outcome("covered", "c", "y")], round=1)
    assert [r.state for r in asked.requests()] == ["verified", "covered"]


def test_an_outcome_of_a_request_that_was_not_made_here_is_not_entered(node):
    ledger = NodeLedger(node)
    ledger.submit(["r1"], identifier="x")
    assert ledger.heard("run", "f" * 64, [outcome("served", "a", "ghost")], round=1) == []
    assert [r.state for r in ledger.requests()] == ["open"]


def test_list_shows_state_and_reason(node):
    submit(node, "--ids", "r1", "--reason", "by letter", "--id", "x")
    result = call("request", "list", "--node-dir", node, "--json")
    (told,) = json.loads(result.out)
    assert told["state"] == "open"
    assert all(word in call("request", "list", "--node-dir", node).out for word in ("x", "open", "letter"))


def test_a_torn_line_does_not_stop_the_next_request(node):
    ledger = NodeLedger(node)
    ledger.submit(["r1"], identifier="x")
    with open(ledger.path, "a") as handle:
        handle.write('{"event": "submitted", "id": "y", "sc')
    assert [r.id for r in ledger.requests()] == ["x"]
    assert call("request", "verify", node).code == 1
    ledger.submit(["r2"], identifier="y")
    assert [r.id for r in ledger.requests()] == ["x", "y"]
    result = call("request", "verify", node)
    assert result.code == 0 and "torn" in result.out


def test_an_altered_ledger_is_told_by_verify(node):
    submit(node, "--ids", "r1", "--reason", "by letter", "--id", "x")
    path = node / "requests.jsonl"
    path.write_text(path.read_text().replace('"r1"', '"r2"'))
    result = call("request", "verify", node)
    assert result.code == 1 and "line 1: altered" in result.out
    path.write_text('{"event": "submitted", "id": "x"}\n')
    assert "no ledger" in call("request", "list", "--node-dir", node).err


PROGRAM = """
import sys
from pathlib import Path
from oblivionis.erasure.node_ledger import NodeLedger
for n in range(15):
    NodeLedger(Path(sys.argv[1])).note("queried", writer=sys.argv[2], n=n)
"""


@pytest.mark.slow
def test_two_processes_may_write_at_once(node):
    """The command line and the ClientApp do."""
    writers = [subprocess.Popen([sys.executable, "-c", PROGRAM, str(node), name]) for name in "ab"]
    for n in range(15):
        NodeLedger(node).note("queried", writer="c", n=n)
    assert [w.wait(60) for w in writers] == [0, 0]
    checked = NodeLedger(node).verify()
    assert checked.faults == () and checked.remarks == () and len(checked.entries) == 45
    for name in "abc":
        assert [e["n"] for e in checked.entries if e["writer"] == name] == list(range(15))


# -- erased exactly ---------------------------------------------------------------------------------------------------

LEFT, NOTHING = "1" * 64, hashlib.sha256().hexdigest()


def trained(ledger, round, stage="train", replay=0):
    did(ledger, "-", round, kind="train", stage=stage, trained=LEFT, **({"replay": replay} if replay else {}))


def erased(line="b"):
    return outcome("verified", line, outcome="erased exactly")


def test_a_node_believes_an_exact_erasure_once_it_held_all_its_earlier_rounds_again(asked):
    for round in (1, 2):
        trained(asked, round)
    did(asked, "x", kind="query.bury", trained=LEFT)
    trained(asked, 1, replay=1)
    state = told(asked, outcome("served", "a"), erased())
    said = "run run says that it is erased exactly; this node did not hold round 2 of train again"
    assert state == ("served", 1, said)
    assert [r.id for r in asked.unsettled()] == ["x"]
    trained(asked, 2, replay=1)
    trained(asked, 1, stage="unlearn")
    state = told(asked, erased("c"))
    assert (state[0], state[2]) == ("erased exactly", "this node held its rounds again")
    assert asked.unsettled() == []


def test_a_node_without_a_record_left_has_no_round_to_hold_again(asked):
    trained(asked, 1)
    did(asked, "x", kind="query.bury", trained=NOTHING)
    state = told(asked, outcome("served", "a"), erased())
    assert (state[0], state[2]) == (
        "erased exactly",
        "by the word of its server alone: this node has no record left to train on",
    )


def test_a_run_whose_rounds_cannot_be_held_again_erases_nothing_exactly(asked):
    did(asked, "x")
    state = told(asked, outcome("served", "a"), erased())
    assert state == ("served", 1, "run run says that it is erased exactly; this node excluded nothing in that run")


def test_a_failed_verification_that_says_erased_exactly_is_none(asked):
    did(asked, "x")
    told(asked, outcome("served", "a"))
    trained(asked, 1)
    state = told(asked, outcome("verification_failed", "b", outcome="erased exactly"))
    assert state[0] != "erased exactly"
