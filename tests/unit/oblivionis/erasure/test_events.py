"""No number of a client can be one of the ledger's own fields, and a ledger in which one was is repaired."""

import json
import re
import shutil
from pathlib import Path

import pytest
from support.commands import call
from support.stages import new_run

from oblivionis.chain import Chain, check_chain, linked
from oblivionis.erasure import events
from oblivionis.erasure.events import line_fault, reported_numbers
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.ledger_repair import repair
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.request import Request, RequestError
from oblivionis.errors import RunError
from oblivionis.reports.html.request_pages import timeline

NUMBERS = {"num-examples": 4.0, "unlearn-steps": 8.0, "unlearn-loss": -1.5}


def ledger(path, **told):
    """Two requests, the first served; `told` stands beside the line's own fields, as it did once."""
    book = Ledger(path)
    book.submit(Request("a", 1, ("x",), 1), Request("b", 2, ("y", "z"), 1))
    book.served("a", 1, count=1, told=NUMBERS)
    if told:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        body = {k: v for k, v in lines[-1].items() if k not in ("prev", "hash", "told")}
        lines[-1] = linked({**body, **NUMBERS, **told}, lines[-2]["hash"])
        path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    "told",
    [
        {"id": 7.0},
        {"event": 7.0},
        {"round": 1e9},
        {"round": -1.0},
        {"client": 2.0},
        {"client": 2},
        {"count": 1.0},
        {"time": -5.0},
        {"time": 1e300},
        {"scope": 1.0},
        {"attempts": 0.5},
        {"reason": 1.0},
        {"told": 1.0},
    ],
)
def test_a_ledger_with_a_forged_line_is_told_of_and_repaired(tmp_path, told):
    path = ledger(tmp_path / "requests.jsonl", **told)
    assert check_chain(path).faults == (), "it is a whole chain: the program itself wrote this"
    with pytest.raises(RequestError, match=r"line 3: .*oblivionis request repair"):
        Ledger(path)
    before, head = path.read_bytes(), check_chain(path).head
    done = repair(path)
    assert list(done.aside) == [3] and done.kept.read_bytes() == before
    checked = check_chain(path)
    assert checked.faults == () and [e["event"] for e in checked.entries] == ["submitted", "submitted", "repaired"]
    assert checked.hashes[:2] == check_chain(done.kept).hashes[:2], "what came before is as it was"
    note = checked.entries[-1]
    assert (note["kept"], note["was"], note["aside"]) == (done.kept.name, head, [{"line": 3, "hash": head}])
    again = Ledger(path)
    assert {r.id: r.state for r in again} == {"a": "pending", "b": "pending"}
    again.served("a", 2, count=1, told=NUMBERS)
    assert check_chain(path).faults == ()
    assert repair(path).kept is None, "nothing is left to repair"


def test_lines_after_a_forged_one_are_linked_anew_and_named_by_their_new_hashes(tmp_path):
    path = ledger(tmp_path / "requests.jsonl", id=7.0)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    entry = {"event": "failed", "id": "b", "client": 2, "scope": "records", "time": 2e9, "round": 1, "reason": "x"}
    lines.append(linked(entry, lines[-1]["hash"]))
    said = {"event": "acknowledged", "time": 2e9, "client": 2, "lines": [lines[-1]["hash"], "f" * 64]}
    lines.append(linked(said, lines[-1]["hash"]))
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    repair(path)
    checked = check_chain(path)
    assert checked.faults == ()
    assert [e["event"] for e in checked.entries] == ["submitted", "submitted", "failed", "acknowledged", "repaired"]
    assert checked.entries[3]["lines"] == [checked.entries[2]["hash"], "f" * 64]
    assert Ledger(path).get("b").attempts == 1


def test_a_ledger_that_was_altered_is_not_repaired(tmp_path):
    path = ledger(tmp_path / "requests.jsonl")
    path.write_text(path.read_text().replace('"id": "a"', '"id": 7.0', 1))
    before = path.read_bytes()
    with pytest.raises(RunError, match="somebody altered this file"):
        repair(path)
    assert path.read_bytes() == before


def test_the_command(tmp_path):
    _, run = new_run(tmp_path, "run")
    assert "nothing was changed" in call("request", "repair", run.path).out
    ledger(run.ledger_path, round=1e9)
    result = call("request", "repair", run.path)
    assert result.code == 0 and "set aside 1 line" in result.out and "line 3: round is" in result.out
    assert (run.path / "requests.before-repair-1.jsonl").is_file()
    altered = tmp_path / "altered"
    shutil.copytree(run.path, altered)
    file = altered / "requests.jsonl"
    file.write_text(file.read_text().replace('"client": 2', '"client": 3', 1))
    result = call("request", "repair", altered)
    assert result.code != 0 and "somebody altered this file" in result.err and "Traceback" not in result.err


def test_nothing_can_overwrite_a_field_and_nothing_senseless_is_written(tmp_path):
    book = Ledger(ledger(tmp_path / "requests.jsonl"))
    before = book.path.read_bytes()
    with pytest.raises(ValueError, match="client"):
        book.served("b", 1, client=7)
    for wrong in ({"told": {"x": float("nan")}}, {"told": {"x": "text"}}, {"count": 1.5}):
        with pytest.raises(ValueError, match="makes no sense"):
            book.served("b", 1, **wrong)
    with pytest.raises(ValueError, match="makes no sense"):
        book.served("b", -1)
    assert book.path.read_bytes() == before and book.get("b").state == "pending"


def test_what_a_client_told_is_read_from_old_lines_too(tmp_path):
    new, old = ledger(tmp_path / "new.jsonl"), ledger(tmp_path / "old.jsonl", surprise=1.0)
    lines = [check_chain(path).entries[-1] for path in (new, old)]
    assert [dict(reported_numbers(line)) for line in lines] == [NUMBERS, NUMBERS]
    assert not any(map(line_fault, lines)) and Ledger(old).get("a").state == "served"


# -- every event --------------------------------------------------------------------------------------------------


def test_every_event_of_both_ledgers_is_declared_and_says_what_it_is():
    declared = {name: of for name, of in events.TYPES.items() if not of.__subclasses__()}
    assert {"submitted", "served", "verification_failed", "cover_exchange", "committed", "exchanged"} <= declared.keys()
    for name, of in declared.items():
        assert of.__doc__ and of.__struct_config__.tag == name


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ({"event": "served", "id": "a", "round": -1}, "round is -1, expected a whole number"),
        ({"event": "served", "id": "a", "round": True}, "round is True, expected a whole number"),
        ({"event": "served", "id": ""}, "id is '', expected a text"),
        ({"event": "served", "id": "a", "told": {"x": float("inf")}}, "told is {'x': inf}, expected numbers by name"),
        ({"event": "served"}, "id is missing"),
        ({"event": 7}, "event is 7, expected a text"),
        ({}, "event is None, expected a text"),
        ({"event": "failed", "id": "a", "time": -5}, "time is -5, expected seconds since 1970"),
        ({"event": "failed", "id": "a", "scope": "x"}, "scope is 'x', expected one of records, client, subject"),
        ({"event": "acknowledged", "lines": []}, "client is missing"),
        ({"event": "acknowledged", "client": 1, "lines": [1]}, "lines is [1], expected a list of texts"),
        (
            {"event": "cover_failed", "round": 1, "session": "s", "commitments": {"x": "0" * 64}},
            f"commitments is {str({'x': '0' * 64})[:59]}…, expected a SHA-256 by client",
        ),
        (
            {"event": "verified", "id": "a", "records": {"x": 0.5}},
            "records is {'x': 0.5}, expected whole numbers by name",
        ),
        ({"event": "resumed", "stage": "unlearn", "round": -1}, "round is -1, expected a whole number"),
        ({"event": "of a later version", "round": -1}, "round is -1, expected a whole number"),
        ({"event": "queried", "server_lines": 1.5}, "server_lines is 1.5, expected a whole number"),
    ],
)
def test_a_fault_names_the_field_what_it_is_and_what_was_expected(line, fault):
    assert line_fault(line) == fault


@pytest.mark.parametrize("name", ["verification", "server_event", "unknown_event", "unknown_request_event"])
def test_what_several_events_have_in_common_is_no_event(tmp_path, name):
    path = tmp_path / "requests.jsonl"
    ledger(path)
    head = json.loads(path.read_text().splitlines()[-1])["hash"]
    line = linked({"event": name, "id": "a", "client": 1, "time": 1.0, "outcome": "verified", "rouge": 0.1}, head)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(RequestError, match=rf"line 4: .*{name}"):
        Ledger(path)


def test_an_event_about_no_request_names_none():
    fault = line_fault({"event": "acknowledged", "id": "a", "client": 1, "lines": []})
    assert fault == "id is 'a', expected none: acknowledged is about no request"


def test_unknown_fields_and_events_are_left_alone():
    assert not line_fault({"event": "served", "id": "a", "colour": -1, "unlearn-loss": "x"})
    assert not line_fault({"event": "of a later version", "time": 1.0, "id": "a", "colour": -1})
    assert events.read_event({"event": "of a later version"}).name == "of a later version"
    for name in ("event", "request_event", "unknown_event", "unknown_request_event", "called"):
        assert events.read_event({"event": name, "id": "a"}).name == name


@pytest.fixture
def escalated():
    """The example of CONTRIBUTING.md, as it would stand in `events`."""
    text = (Path(__file__).resolve().parents[4] / "CONTRIBUTING.md").read_text("utf-8")
    exec(re.search(r"### An event of .*?```python\n(.*?)```", text, re.DOTALL)[1], {**vars(events)})
    yield {"level": 2}
    del events.TYPES["escalated"]


def test_a_new_event_is_read_checked_replayed_and_shown_without_any_other_edit(tmp_path, escalated):
    book = Ledger(tmp_path / "requests.jsonl")
    book.submit(Request("a", 1, ("x",), 1, "art. 17"))
    about = {"id": "a", "client": 1, "scope": "records"}
    book.note("escalated", **about, **escalated)
    assert Ledger(book.path).get("a").reason == "art. 17, urgent (2)"
    with pytest.raises(ValueError, match="level is -1, expected a whole number"):
        book.note("escalated", **about, level=-1)
    lines = check_chain(book.path).entries
    assert "escalated" in str(timeline(lines))
    assert call("request", "verify", book.path).out.endswith("unbroken, ends with " + lines[-1]["hash"][:12] + "…\n")
    Chain(book.path).append([{"event": "escalated", "time": 2e9, **about, "level": "high"}])
    verified = call("request", "verify", book.path)
    assert verified.code == 0, "nobody altered it"
    assert "line 3 is as it was written, and makes no sense: level is 'high', expected a whole number" in verified.out


def test_a_new_event_is_shown_by_the_node_on_which_the_request_was_made(tmp_path, escalated):
    ledger = NodeLedger(tmp_path)
    ledger.submit(["x"], identifier="art17")
    ledger.note("escalated", "art17", **escalated)
    assert "open, urgent (2)" in call("request", "list", "--node-dir", tmp_path).out
    with pytest.raises(ValueError, match="level is 'high', expected a whole number"):
        ledger.note("escalated", "art17", level="high")
    assert len(ledger.entries()) == 2


def test_what_makes_no_sense_after_other_lines_is_told_by_the_check(tmp_path):
    book = Ledger(tmp_path / "requests.jsonl")
    book.submit(Request("a", 1, ("x",), 1))
    served = {"event": "served", "time": 2e9, "round": 1}
    Chain(book.path).append([{**served, "id": "b", "client": 1}, {**served, "id": "a", "client": 2}])
    out = call("request", "verify", book.path).out
    assert "line 2 is as it was written, and makes no sense: event 'served' names request 'b'" in out
    assert "line 3 is as it was written, and makes no sense: event 'served' of 'a' is of client 2, not 1" in out
