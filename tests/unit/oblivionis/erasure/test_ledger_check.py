"""Whether a run's ledger and a node's know each other, on ledgers made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oblivionis.chain import GENESIS, HASH, check_chain, linked
from oblivionis.erasure.ledger_check import Certified, check_ledgers, compare, strangers
from oblivionis.errors import RunError

OPENED = linked({"event": "opened", "run": "r"}, GENESIS)


def chain(path, entries, first=()):
    """A file of chained lines; those of `first` are linked already."""
    lines = list(first)
    for entry in entries:
        lines.append(linked(entry, lines[-1][HASH] if lines else GENESIS))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return check_chain(path)


def both(folder, ends, node_ends):
    """A run of three requests and a node that was queried; ends: how many of the run's lines the node saw at each
    query, node_ends: how many of the node's lines the run noted."""
    submitted = [{"event": "submitted", "id": f"q{i}"} for i in range(3)]
    heads = [GENESIS, OPENED[HASH]]
    for entry in submitted:
        heads.append(linked(entry, heads[-1])[HASH])
    queries = [
        {"event": "queried", "run": "r", "client": 4, "ledger": OPENED[HASH], "server_head": heads[end]} for end in ends
    ]
    node = chain(folder / "node.jsonl", queries)
    asked = [
        {"event": "asked", "heads": {"4": node.hashes[end - 1] if end else GENESIS, "5": "another's"}}
        for end in node_ends
    ]
    return chain(folder / "run.jsonl", [*submitted, *asked], [OPENED]), node


@pytest.mark.parametrize("ends", [[1], [1, 1], [1, 2, 2, 4], [4, 4]])
def test_two_ledgers_that_grew_side_by_side_agree(tmp_path, ends):
    """Between two queries a ledger may have got no line at all."""
    run, node = both(tmp_path, ends, [0, 0, *range(len(ends) + 1), len(ends)])
    assert run.faults == node.faults == ()
    assert compare(run, node) == ([], [])


def test_an_earlier_end_than_before_is_a_fault_of_the_run(tmp_path):
    run, node = both(tmp_path, [1, 3, 2], [])
    (fault,), others = compare(run, node)
    assert "noted in line 3 an earlier end than before" in fault and others == []


def test_an_earlier_end_of_the_node_is_the_nodes_fault(tmp_path):
    run, node = both(tmp_path, [1, 1], [2, 1])
    others, (fault,) = compare(run, node)
    assert "noted in line 6 an earlier end than before" in fault and others == []


def test_a_query_that_makes_no_sense_is_a_fault_and_hides_no_other(tmp_path):
    run, _ = both(tmp_path, [1], [])
    query = {"event": "queried", "run": "r", "client": 4, "round": -1, "ledger": OPENED[HASH], "server_head": "0" * 64}
    assert compare(run, chain(tmp_path / "node.jsonl", [query])) == (
        [],
        ["line 1 cannot be compared: round is -1, expected a whole number"],
    )


def test_lines_that_are_gone_are_named(tmp_path):
    run, node = both(tmp_path, [1, 3], [])
    shorter = chain(tmp_path / "run.jsonl", run.entries[1:2], [OPENED])
    (fault,), others = compare(shorter, node)
    assert "noted in line 2 that it ended with" in fault and "lines are gone" in fault and others == []


def test_a_ledger_that_was_replaced_is_told_from_one_that_never_asked(tmp_path):
    _, node = both(tmp_path, [1], [])
    replaced = chain(tmp_path / "run.jsonl", [{"event": "opened", "run": "r", "again": True}])
    (fault,), others = compare(replaced, node)
    assert "noted another ledger of a run called r" in fault and others == []
    stranger = chain(tmp_path / "run.jsonl", [{"event": "opened", "run": "other"}])
    assert compare(stranger, node) == ([], []) and strangers(replaced, node) == ""
    assert "it noted no query of the run" in strangers(stranger, node), "nothing differs, and nothing was tested"


def certified(checked, doubt="", run="r"):
    ledger = {"lines": len(checked.entries), "head": checked.head}
    return Certified(Path("c.json"), {"run": {"name": run}, "requests": [{"evidence": {"ledger": ledger}}]}, doubt)


def test_a_certificate_shows_that_a_ledger_was_cut(tmp_path):
    run, _ = both(tmp_path, [], [])
    told = certified(run)
    assert told.untested(run) == "" and told.disagrees(run) == []
    cut = chain(tmp_path / "run.jsonl", run.entries[1:-1], [OPENED])
    ((_, faults),) = check_ledgers([cut.path], [], [told])
    assert told.untested(cut) == "" and "says of request 1 that it ended with" in faults[0]


def test_a_certificate_of_another_run_shows_nothing_of_this_one(tmp_path):
    run, _ = both(tmp_path, [], [])
    other = chain(tmp_path / "other.jsonl", [{"event": "opened", "run": "other"}])
    told = certified(other, run="other")
    ((_, faults),) = check_ledgers([run.path], [], [told])
    assert faults == []
    assert told.untested(run) == "c.json is of the run other, and this is the ledger of r: the two cannot be compared"


def test_a_certificate_that_anybody_could_have_made_accuses_nobody(tmp_path):
    run, _ = both(tmp_path, [], [])
    told = certified(run, "is not signed")
    assert told.untested(run) == "c.json is not signed; what it says fits"
    cut = chain(tmp_path / "run.jsonl", run.entries[1:-1], [OPENED])
    ((_, faults),) = check_ledgers([cut.path], [], [told])
    assert faults == [] and told.untested(cut).startswith("c.json is not signed; it says otherwise: c.json says")


def test_what_does_not_say_where_a_ledger_ended_is_no_certificate():
    with pytest.raises(RunError, match=r"c\.json: requests: expected at least one"):
        Certified(Path("c.json"), {"run": {"name": "r"}, "requests": []})
    with pytest.raises(RunError, match=r"c\.json: .*missing required field `evidence`"):
        Certified(Path("c.json"), {"run": {"name": "r"}, "requests": [{}]})
