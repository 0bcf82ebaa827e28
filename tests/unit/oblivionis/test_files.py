"""Files of other people: what is no JSON object is told or left out, and never ends in a traceback."""

import json

import pytest

from oblivionis.chain import check_chain
from oblivionis.data.jsonl import read_training
from oblivionis.files import append_lines, parse_json, read_lines

HOSTILE = {
    "deep": "[" * 100_000,
    "deep object": '{"a":' * 100_000,
    "digits": "1" * 5_000,
    "digits in an object": '{"id": ' + "9" * 5_000 + "}",
    "nan": "NaN",
    "infinity": '{"value": -Infinity}',
    "cut": '{"id": "a", ',
    "empty": "",
    "not utf-8": b'{"id": "\xff"}',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_every_bad_text_is_a_value_error_of_one_short_line(text):
    with pytest.raises(ValueError) as caught:
        parse_json(text)
    assert len(str(caught.value)) < 100 and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["null", "5", '"a"', "[1, 2.5]", '{"a": {"b": [true, "\\u00e9"]}}'])
def test_good_texts_are_read_as_json_reads_them(text):
    assert parse_json(text) == parse_json(text.encode()) == json.loads(text)


def test_lines_that_are_no_objects_are_left_out(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_lines(path, [{"a": 1}])
    with path.open("ab") as file:
        for text in [*HOSTILE.values(), "5", "null", "[]"]:
            file.write((text.encode() if isinstance(text, str) else text) + b"\n")
    append_lines(path, [{"b": 2}])
    assert [row for row in read_lines(path) if set(row) <= {"a", "b"}] == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("text", [t for t in HOSTILE.values() if t], ids=[n for n, t in HOSTILE.items() if t])
def test_a_training_file_names_the_line(tmp_path, text):
    path = tmp_path / "mine.jsonl"
    good = b'{"question": "Who?", "answer": "Me.", "subject": "I"}\n'
    path.write_bytes(good + (text.encode() if isinstance(text, str) else text) + b"\n")
    problems = []
    records, _ = read_training([path], problems)
    assert len(records) == 1 and len(problems) == 1 and problems[0].startswith("mine.jsonl:2: expected")


@pytest.mark.parametrize("text", [t for t in HOSTILE.values() if isinstance(t, str) and t], ids=lambda t: t[:8])
def test_a_bad_line_of_a_ledger_is_a_fault(tmp_path, text):
    path = tmp_path / "requests.jsonl"
    path.write_text(text + "\n" + '{"event": "submitted"}\n')
    assert any("line 1" in line for line in (*check_chain(path).faults, *check_chain(path).remarks))
