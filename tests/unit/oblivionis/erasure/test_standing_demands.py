"""What comes into a node's folder after a request: copies, records about the person, near copies."""

import json
import logging

import pytest
from support.commands import call

from oblivionis.data.records import Record
from oblivionis.data.twins import content_key
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_ledger import EXCHANGED, NodeLedger
from oblivionis.erasure.node_record_files import counts, read_node
from oblivionis.erasure.request_submission import submit, withdraw
from oblivionis.erasure.standing_demands import hold_back
from oblivionis.errors import OblivionisError

HOME = {"id": "a", "subject": "Mara Voss", "question": "Where does Mara Voss live?", "answer": "In Ulm, by the river."}
OTHER = {
    "id": "z",
    "subject": "Ivo Lind",
    "question": "Where does Ivo Lind live?",
    "answer": "In Bonn, at the station.",
}
NEW = {"id": "n", "subject": "MARA  VOSS", "question": "Who is the doctor?", "answer": "Her doctor is Lena Odum."}
ALIKE = {"id": "t", "question": "Who employs Mara Voss?", "answer": "The town employs her in its archive."}
NEARLY = {"id": "y", "subject": "Lot 7", "question": "Where does she live?", "answer": "In Ulm, by the wide river."}


@pytest.fixture
def node(tmp_path):
    write(tmp_path, HOME, OTHER)
    return NodeFolder(tmp_path)


def write(folder, *rows):
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def trained(node):
    """The ids of the records that the client trains on, once it has looked at its folder."""
    records = read_node(node.path).records
    hold_back(node, records)
    withheld = {*node.tombstones(), *NodeLedger(node.path).asked()}
    live = [r.id for r in records if r.id not in withheld]
    return live


def ask(node, **asked):
    return submit(node.path, reason="by letter", **asked)


def without_id(row):
    return {name: value for name, value in row.items() if name != "id"}


# -- the key of what a record says ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"id": "other"},
        {"answer": "in ulm by the river "},
        {"answer": "In\u00a0Ulm,  by the ri\u00adver!"},
        {"question": "WHERE does Mara Voss live"},
        {"subject": "mara\u200b voss"},
    ],
)
def test_spaces_case_and_signs_make_no_other_content(change):
    assert content_key(Record(**{**HOME, **change})) == content_key(Record(**HOME))


@pytest.mark.parametrize(
    "change",
    [
        {"answer": "In Ulm, by a river."},
        {"question": "Where did Mara Voss live?"},
        {"subject": "Ada Roy"},
        {"subject": "a"},
        {"question": HOME["answer"], "answer": HOME["question"]},
    ],
)
def test_other_words_and_another_subject_do(change):
    assert content_key(Record(**{**HOME, **change})) != content_key(Record(**HOME))


def test_a_record_without_a_subject_has_none_in_its_content():
    one, other = (Record(i, "Who?", "Nobody at all.", i) for i in "ab")
    assert content_key(one) == content_key(other) != content_key(Record("c", "Who?", "Nobody at all.", "b"))


# -- copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buried", [False, True])
def test_a_record_without_an_id_that_is_exported_anew_stays_the_same_record(node, buried):
    write(node.path, without_id(HOME), OTHER)
    (first, _) = read_node(node.path).records
    made = ask(node, ids=first.id).request
    if buried:
        node.bury(made.record_ids, made.id)
    for answer in (HOME["answer"] + " ", HOME["answer"].upper(), HOME["answer"]):
        write(node.path, {**without_id(HOME), "answer": answer}, OTHER)
        assert [r.id for r in read_node(node.path).records] == [first.id, "z"]
        assert trained(node) == ["z"]
    assert not (node.tombstones() - set(made.record_ids)), "it is no copy"


def test_what_a_tombstone_says_is_enough(node):
    """A server's request: the node's own ledger names nothing."""
    write(node.path, without_id(HOME), OTHER)
    (first, _) = read_node(node.path).records
    node.bury([first.id], "x", {first.id: content_key(first)})
    write(node.path, {**without_id(HOME), "answer": HOME["answer"] + " "}, {**HOME, "id": "again"}, OTHER)
    assert [r.id for r in read_node(node.path).records] == [first.id, "again", "z"]
    assert trained(node) == ["z"] and node.buried() == {first.id: "x", "again": "x"}


def test_a_record_and_its_copy_without_ids_stay_two_and_neither_is_trained_on(node):
    write(node.path, without_id(HOME), OTHER)
    first = read_node(node.path).records[0].id
    ask(node, ids=first)
    copy = {**without_id(HOME), "answer": HOME["answer"].upper()}
    for rows in ((without_id(HOME), copy, OTHER), (copy, {**copy, "answer": HOME["answer"] + " "}, OTHER)):
        write(node.path, *rows)
        ids = [r.id for r in read_node(node.path).records]
        assert first in ids and len(set(ids)) == 3 and trained(node) == ["z"]


def test_a_mark_to_forget_stays_with_a_record_that_is_known_again(node):
    write(node.path, without_id(HOME), OTHER)
    first = read_node(node.path).records[0].id
    ask(node, ids=first)
    write(node.path, {**without_id(HOME), "answer": HOME["answer"] + " ", "forget": True}, OTHER)
    assert read_node(node.path).marked == {first}


def test_a_copy_under_another_id_is_buried_and_told(node, caplog):
    ask(node, ids="a", identifier="art17")
    write(node.path, OTHER, {**HOME, "id": "b", "answer": "in ulm by the river"})
    with caplog.at_level(logging.WARNING, logger="flwr"):
        assert trained(node) == ["z"]
    assert node.buried() == {"b": "art17"}
    assert "1 record (b): buried, they say what records say that request art17 asked for" in caplog.text
    write(node.path, OTHER, {**HOME, "id": "c"})
    assert trained(node) == ["z"], "a copy of the copy"


def test_the_same_words_about_somebody_else_are_no_copy(node):
    ask(node, ids="a")
    write(node.path, OTHER, {**HOME, "id": "b", "subject": "Ada Roy"})
    assert trained(node) == ["z", "b"]


def test_tombstones_without_content_work_as_ever(node):
    node.tombstones_path.write_text(json.dumps({"record_id": "a", "request_id": "x", "time": 1.0}) + "\n")
    assert trained(node) == ["z"] and node.contents() == {}
    node.bury(["a", "q"], "y", {"q": "0" * 32})
    assert node.buried() == {"a": "x", "q": "y"} and node.contents() == {"0" * 32: ("q", "y")}


# -- people ---------------------------------------------------------------------------------------------------------


def test_a_demand_about_a_person_stands_until_it_is_withdrawn(node, caplog):
    ask(node, subject="Mara Voss", identifier="art17")
    write(node.path, HOME, OTHER, NEW)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        assert trained(node) == ["z"]
        assert caplog.text.count("1 record (n): held back from training, request art17 about this person stands") == 1
        assert trained(node) == ["z"]
    assert len([r for r in caplog.records if "held back" in r.message]) == 1, "it is told once"
    (request,) = NodeLedger(node.path).requests()
    assert (request.record_ids, request.held_back) == (("a",), ("n",))
    assert "1 later record held back" in request.progress
    assert [r.record_ids for r in NodeLedger(node.path).unsettled()] == [("a",)], (
        "the server is told what was asked for"
    )
    withdraw(node.path, "art17", "by phone")
    assert trained(node) == ["z", "n"], "what it names stays asked for"
    assert "withdrawn" in NodeLedger(node.path).requests()[0].progress


def test_a_request_for_records_holds_nobody_else_back(node):
    ask(node, ids="a")
    write(node.path, HOME, OTHER, NEW)
    assert trained(node) == ["z", "n"]


def test_who_is_named_alike_later_is_held_back_until_somebody_says_who_is_meant(node, caplog):
    ask(node, subject="Mara Voss", identifier="art17")
    write(node.path, HOME, OTHER, ALIKE)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        assert trained(node) == ["z"]
    assert "1 record (t): only named alike" in caplog.text
    with pytest.raises(OblivionisError, match=r"named alike: 1 record \(t, in its text\)"):
        ask(node, subject="Mara Voss")
    made = ask(node, subject="mara voss", exclude="t")
    assert not made.made and made.lines()[0].startswith("request art17 asks for all of them already")
    assert trained(node) == ["z", "t"]
    with pytest.raises(OblivionisError, match="asked for already"):
        ask(node, subject="Mara Voss")
    assert ask(node, subject="Mara Voss", include="t").request.record_ids == ("t",), "somebody may think better of it"
    assert trained(node) == ["z"]
    with pytest.raises(OblivionisError, match="asked for already"):
        ask(node, subject="Mara Voss")


def test_what_was_said_of_a_record_holds_after_a_new_export(node):
    write(node.path, HOME, OTHER, without_id(ALIKE))
    former = read_node(node.path).records[2].id
    ask(node, subject="Mara Voss", exclude="all")
    write(node.path, HOME, OTHER, {**without_id(ALIKE), "answer": ALIKE["answer"] + "  "})
    assert trained(node) == ["z", former]


def test_of_several_demands_about_a_person_each_holds_back(node):
    ask(node, subject="Mara Voss", identifier="one")
    write(node.path, HOME, OTHER, NEW)
    assert trained(node) == ["z"]
    ask(node, subject="Mara Voss", identifier="two")
    one, two = NodeLedger(node.path).requests()
    assert one.held_back == () and two.record_ids == ("n",), "what is asked for is not held back besides"
    done, others = withdraw(node.path, "one", "")
    assert (done.id, [r.id for r in others]) == ("one", ["two"])
    write(node.path, HOME, OTHER, NEW, {**NEW, "id": "m", "answer": "Her doctor is Piet Saal."})
    assert trained(node) == ["z"] and NodeLedger(node.path).requests()[1].held_back == ("m",)


def test_only_a_demand_that_stands_can_be_withdrawn(node):
    ask(node, subject="Mara Voss", identifier="art17")
    ask(node, ids="z", identifier="other")
    withdraw(node.path, "art17", "")
    for name, said in (
        ("art17", "is withdrawn already"),
        ("other", "is not about a person"),
        ("art", "did you mean art17"),
    ):
        with pytest.raises(OblivionisError, match=said):
            withdraw(node.path, name, "")


def test_what_was_withheld_when_something_was_sent_is_known_afterwards(node):
    ledger = NodeLedger(node.path)
    ask(node, subject="Mara Voss", identifier="art17")
    for step in (lambda: write(node.path, HOME, OTHER, NEW), lambda: withdraw(node.path, "art17", "")):
        ledger.note(EXCHANGED, kind="train", run="run", client=1, round=1)
        step()
        trained(node)
    ledger.note(EXCHANGED, kind="train", run="run", client=1, round=1)
    assert [sorted(e["asked"]) for e in ledger.exchanges()] == [["a"], ["a", "n"], ["a"]]
    assert ledger.verify().faults == ()


# -- near copies, counts --------------------------------------------------------------------------------------------


def test_near_copies_are_trained_on_and_told_once(node, caplog):
    ask(node, ids="a")
    write(node.path, HOME, OTHER, NEARLY)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        assert trained(node) == ["z", "y"] == trained(node)
    told = [r.message for r in caplog.records if "nearly the same" in r.message]
    assert told == ["1 record (y): trained on, and nearly the same as records that were asked for"]


def test_what_is_reworded_where_the_record_is_gone_is_trained_on_and_not_told(node, caplog):
    """Nobody can tell it from another record; only of a demand about a person does the name in it tell."""
    ask(node, ids="a")
    write(node.path, OTHER, NEARLY)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        assert trained(node) == ["z", "y"]
    assert not [r for r in caplog.records if "(y)" in r.message]


def test_a_reworded_record_is_held_back_while_the_name_stays_in_it(node):
    ask(node, subject="Mara Voss", identifier="art17")
    named = {"id": "n", "question": "Where has Mara Voss her home?", "answer": "Near a river, in the town of Ulm."}
    nameless = {"id": "m", "question": "Where has the watchmaker her home?", "answer": "Near a river, in Ulm."}
    write(node.path, OTHER, named, nameless)
    assert trained(node) == ["z", "m"]
    (request,) = NodeLedger(node.path).requests()
    assert request.held_back == ("n",)


def test_what_is_held_back_does_not_count_as_live(node):
    ask(node, subject="Mara Voss")
    write(node.path, OTHER, NEW, {**HOME, "id": "b"}, NEARLY)
    trained(node)
    assert counts(node) == (4, 2)


def test_a_folder_without_requests_is_left_as_it_is(node):
    assert trained(node) == ["a", "z"] and sorted(p.name for p in node.path.iterdir()) == ["data"]


def test_the_folders_are_described_with_what_came_later(node, tmp_path):
    ask(node, subject="Mara Voss", identifier="art17")
    write(node.path, OTHER, NEW, {**HOME, "id": "b"}, ALIKE)
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    (nodes / "node0").symlink_to(node.path)
    place = ["smoke", "data=node", f"data.nodes={nodes}", "federation.clients=1", "unlearning.requests.policy=nodes"]
    said = " ".join(call("data", "describe", *place).out.split())
    assert "not trained on, copies of records that a request asked for: b (art17)" in said
    assert "not trained on, request art17 about this person stands: n, t" in said
    assert "named alike: 1 record (t, in its text)" in said
    told = json.loads(call("data", "describe", *place, "--subject", "mara voss", "--json").out)
    assert told["records"] == {"0": ["n", "b"]} and [a["record_id"] for a in told["alike"]] == ["t"]


def test_an_excluded_record_hides_no_copy_of_one_that_was_asked_for(node):
    said = {"subject": "Lot 7", "question": "What is Mara Voss treated for?", "answer": "Asthma, with an inhaler."}
    write(node.path, HOME, OTHER, {"id": "u", **said})
    ask(node, ids="u", identifier="first")
    write(node.path, HOME, OTHER, {"id": "u", **said}, {"id": "t", **said})
    ask(node, subject="Mara Voss", exclude="t", identifier="art17")
    assert trained(node) == ["z"] and node.buried()["t"] == "first"
    write(node.path, HOME, OTHER, {"id": "v", **said})
    assert trained(node) == ["z"], "nor of one that came later"


def test_another_record_under_the_id_of_an_excluded_one_is_held_back(node):
    write(node.path, HOME, OTHER, ALIKE)
    ask(node, subject="Mara Voss", exclude="t", identifier="art17")
    assert trained(node) == ["z", "t"]
    write(node.path, HOME, OTHER, {**ALIKE, "answer": ALIKE["answer"].upper() + " "})
    assert trained(node) == ["z", "t"], "it says the same"
    write(node.path, HOME, OTHER, {**ALIKE, "question": "What is Mara Voss treated for?", "answer": "Asthma."})
    assert trained(node) == ["z"]
    with pytest.raises(OblivionisError, match="named alike: 1 record"):
        ask(node, subject="Mara Voss")
    ask(node, subject="Mara Voss", exclude="t")
    assert trained(node) == ["z", "t"]
