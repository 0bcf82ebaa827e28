"""Hash-chained ledgers: what `request verify` finds, by the definition of the chain written down a second time."""

import hashlib
import json

import pytest

from oblivionis.chain import GENESIS, check_chain
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.ledger_check import check_ledgers
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import Judgement
from oblivionis.errors import RunError


@pytest.fixture
def path(tmp_path):
    ledger = Ledger(tmp_path / "requests.jsonl")
    for name in ("a", "b", "c"):
        ledger.submit(Request(name, 3, ("x", "ü\u2028"), 1, "Art. 17 – ‘yes’"))
    ledger.served("a", 1, count=2, rouge=0.1 + 0.2)
    ledger.verified("a", 1, Judgement("verified", "", 1e-17), 0.5)
    return ledger.path


def lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def rewrite(path, rows):
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8")


def faults(path):
    return check_chain(path).faults


def test_each_line_names_the_hash_of_the_one_before(path):
    before = GENESIS
    for line in lines(path):
        entry = json.loads(line)
        body = {k: v for k, v in entry.items() if k != "hash"}
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert entry["prev"] == before
        assert entry["hash"] == hashlib.sha256(text.encode()).hexdigest()
        before = entry["hash"]
    checked = check_chain(path)
    assert (checked.faults, checked.remarks, checked.head, len(checked.entries)) == ((), (), before, 5)


@pytest.mark.parametrize("row", range(5))
def test_an_altered_line_is_found_where_it_stands(path, row):
    rows = lines(path)
    entry = json.loads(rows[row])
    entry["client"] = 4
    rows[row] = json.dumps(entry, ensure_ascii=False)
    rewrite(path, rows)
    assert [f.split(":")[0] for f in faults(path)] == [f"line {row + 1}"]


@pytest.mark.parametrize("row", range(4))
def test_an_altered_line_with_a_new_hash_breaks_the_next(path, row):
    rows = lines(path)
    entry = {**json.loads(rows[row]), "client": 4}
    body = {k: v for k, v in entry.items() if k != "hash"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    entry["hash"] = hashlib.sha256(text.encode()).hexdigest()
    rows[row] = json.dumps(entry, ensure_ascii=False)
    rewrite(path, rows)
    assert [f.split(":")[0] for f in faults(path)] == [f"line {row + 2}"]


@pytest.mark.parametrize("row", range(4))
def test_a_removed_line_is_found(path, row):
    rows = lines(path)
    del rows[row]
    rewrite(path, rows)
    assert [f.split(":")[0] for f in faults(path)] == [f"line {row + 1}"]


def test_moved_and_doubled_lines_are_found(path):
    rows = lines(path)
    rewrite(path, [rows[0], rows[2], rows[1], *rows[3:]])
    assert [f.split(":")[0] for f in faults(path)] == ["line 2", "line 3", "line 4"]
    rewrite(path, [*rows, rows[-1]])
    assert [f.split(":")[0] for f in faults(path)] == ["line 6"]


def test_a_tail_that_was_cut_off_leaves_no_trace_in_the_file_itself(path):
    rewrite(path, lines(path)[:3])
    assert faults(path) == ()


def test_a_torn_last_line_is_reported_and_one_that_the_chain_goes_on_after_is_a_remark(path):
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + '{"event": "served", "id', encoding="utf-8")
    assert faults(path) == ("line 6: cannot be read: torn by a crash, or altered",)
    Ledger(path).served("b", 2)
    checked = check_chain(path)
    assert checked.faults == () and [r.split(":")[0] for r in checked.remarks] == ["line 6"]
    path.write_text(whole[:-1], encoding="utf-8")
    assert faults(path) == (), "only the line break is missing"


def test_a_key_given_twice_is_an_altered_line(path):
    rows = lines(path)
    rows[3] = rows[3].replace('{"event"', '{"event": "rejected", "event"')
    rewrite(path, rows)
    assert json.loads(rows[3])["event"] == "served", "for our reader nothing has changed"
    assert [f.split(":")[0] for f in faults(path)] == ["line 4"]


def test_a_line_with_nan_is_no_line_of_ours(path):
    rows = lines(path)
    entry = json.loads(rows[4])
    rows[4] = json.dumps({**entry, "rouge": float("nan")})
    rewrite(path, rows)
    assert [f.split(":")[0] for f in faults(path)] == ["line 5"]


OLD = '{"event": "submitted", "id": "r", "client": 4, "time": 1.0, "round": 2, "record_ids": ["a"], "count": 1}\n'


def test_an_old_ledger_is_read_and_what_is_added_covers_its_lines(tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text(OLD)
    assert "no hashes" in faults(path)[0]
    Ledger(path).served("r", 2)
    assert Ledger(path).get("r").state == "served"
    checked = check_chain(path)
    assert checked.faults == () and "up to 1" in checked.remarks[0]
    path.write_text(path.read_text().replace('["a"]', '["b"]'))
    assert [f.split(":")[0] for f in faults(path)] == ["line 2"]


def test_hashes_taken_out_of_later_lines_are_a_fault(path):
    rows = lines(path)
    plain = [json.dumps({k: v for k, v in json.loads(r).items() if k not in ("prev", "hash")}) for r in rows]
    rewrite(path, [rows[0], *plain[1:]])
    assert [f.split(":")[0] for f in faults(path)] == [f"line {n}" for n in (2, 3, 4, 5)]
    rewrite(path, plain)
    assert "hashes were taken out" in faults(path)[0]


def test_reopening_goes_on_with_the_chain(path):
    ledger = Ledger(path)
    ledger.failed("b", 2, "away")
    Ledger(path).served("b", 3)
    assert faults(path) == () and len(lines(path)) == 7


def test_what_is_no_ledger_is_refused(tmp_path):
    with pytest.raises(RunError, match="no ledger"):
        check_ledgers([tmp_path], [])
    with pytest.raises(RunError, match="name one run"):
        check_ledgers([tmp_path, tmp_path], [tmp_path])
