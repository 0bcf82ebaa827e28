"""Reading what others wrote: every fault with its place, nothing that hangs, torn lines told."""

import os
from pathlib import Path
from typing import TypedDict

import pytest

from oblivionis import files
from oblivionis.errors import FileError
from oblivionis.files import checked, is_torn, parse_json, read_bytes, read_json, read_lines, remove_torn, write_atomic


class Row(TypedDict):
    name: str
    sizes: list[int]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"a": NaN}', "NaN is no number in JSON"),
        (b'{"a": -1e400}', "-1e400 is no number that a computer holds"),
        (b"1" * 5000, "a number of too many digits"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": "\xe9"}', "it is not UTF-8 text"),
        ("{}".encode("utf-16"), "it is not UTF-8 text"),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', 'key "b" is given twice'),
        (b'{"a": "\\ud800"}', "half a character"),
        (b"{", "at column 2"),
        (b"", "Expecting value at column 1"),
        (b'{"a": "b', "Unterminated string starting at column 7"),
    ],
)
def test_what_is_no_json(text, why):
    with pytest.raises(ValueError, match=why):
        parse_json(text)


def test_what_is_json_all_the_same():
    assert parse_json(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}
    assert parse_json("[NaN, 1e999]", finite=False)[1] == float("inf")
    assert parse_json('{"a": 1, "a": 2}', unique=False) == {"a": 2}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"name": 1, "sizes": []}, "name: expected `str`, got `int`"),
        ({"name": "a", "sizes": [1, "b"]}, r"sizes\[1\]: expected `int`, got `str`"),
        ({"name": "a"}, "missing required field `sizes`"),
        ([], "expected `object`, got `array`"),
        ({"name": "a", "sizes": [True]}, r"sizes\[0\]: expected `int`, got `bool`"),
    ],
)
def test_the_key_that_is_wrong_is_named(tmp_path, value, why):
    with pytest.raises(ValueError, match=why):
        checked(value, Row)
    files.write_json(tmp_path / "x.json", value)
    with pytest.raises(FileError, match=f"x.json: .*{why}"):
        read_json(tmp_path / "x.json", Row)


def test_further_keys_are_kept():
    value = {"name": "a", "sizes": [1], "more": {"b": None}}
    assert checked(value, Row) is value


def test_pipes_folders_and_loops_are_told_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, what in (("pipe", "a pipe"), (".", "a folder"), ("loop", "symbolic links"), ("x" * 300, "too long")):
        with pytest.raises(FileError, match=what):
            read_bytes(tmp_path / name)
    with pytest.raises(FileError, match="null"):
        read_bytes(tmp_path / "a\0b")
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "absent")


def test_lines_that_are_torn_and_lines_that_are_wrong(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    good = '{"name": "a", "sizes": [1]}\n'
    path.write_text(f'{good}{{"name": "b", "siz\n{good}{{"na')
    assert len(read_lines(path, Row)) == 2
    said = capsys.readouterr().err
    assert "rows.jsonl:2 is torn" in said and "rows.jsonl:4 is torn" in said
    read_lines(path, Row)
    assert not capsys.readouterr().err, "once"
    for line, why in (('{"name": 3, "sizes": []}', "name"), ("5", "object"), ('{"name": "a",, "sizes": []}', "column")):
        path.write_text(f"{good}{line}\n{good}")
        with pytest.raises(FileError, match=f"rows.jsonl:2: .*{why}"):
            read_lines(path, Row)


def test_a_torn_line_that_a_chain_goes_on_over_is_not_told(tmp_path, capsys):
    path = tmp_path / "chained.jsonl"
    path.write_text('{"event": "a"\n{"event": "b", "prev": "x"}\n')
    assert [row["event"] for row in read_lines(path)] == ["b"]
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ['{"a": 1', '{"a": {"b": 1}', '{"a": "x', '{"a": tr', '{"a": 1}'[:-1] + "\0" * 9, "\0\0"]
)
def test_beginnings_of_an_object_are_torn(text):
    assert is_torn(text)


@pytest.mark.parametrize("text", ["nonsense", '{"a": 1,, "b": 2}', '{"a": NaN}', '["a"', "5"])
def test_other_lines_are_not(text):
    assert not is_torn(text)


def test_what_a_killed_write_leaves_is_removed_and_nothing_else(tmp_path, monkeypatch):
    kept = [tmp_path / name for name in ("a.json", ".hidden", "below/b.json", "c.tmp")]
    for path in kept:
        write_atomic(path, "whole")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # as where the process ended before
        for path in kept:
            with pytest.raises(KeyboardInterrupt):
                write_atomic(path, "torn")
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 8
    remove_torn(tmp_path)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)
    assert all(path.read_text() == "whole" for path in kept)
