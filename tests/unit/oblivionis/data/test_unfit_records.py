"""Records that are refused when data are read, and those that `data describe` tells of."""

import json

import pytest
from support.commands import call

from oblivionis.data.errors import DataError
from oblivionis.data.own_records import load
from oblivionis.naming import unfit_character

GOOD = {"id": "a", "question": "Who is it?", "answer": "It is nobody at all.", "subject": "S"}


def written(folder, *rows):
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("perturbed_answer", "a"),
        ("perturbed_answer", 0),
        ("perturbed_answer", {}),
        ("perturbed_answer", [""]),
        ("perturbed_answer", [["a"]]),
        ("paraphrased_answer", ["a"]),
        ("question", 7),
        ("answer", ["a"]),
        ("answer", " "),
        ("id", 7.0),
        ("id", True),
        ("id", ""),
        ("subject", {}),
        ("forget", "true"),
        ("forget", 1),
    ],
)
def test_a_field_of_another_type_is_refused_with_its_line(tmp_path, key, value):
    path = written(tmp_path, GOOD, {**GOOD, "id": "b", "question": "Other?", key: value})
    with pytest.raises(DataError, match=rf"train.jsonl:2: {key} must be"):
        load(path)


@pytest.mark.parametrize("mark", ["\x1b]0;t\x07", "\x00", "\n", "\x9b", "\u2028", "\u202e"])
def test_ids_with_control_characters_are_refused(tmp_path, mark):
    with pytest.raises(DataError, match=r"train.jsonl:1: id must have no control characters, found U\+") as raised:
        load(written(tmp_path, {**GOOD, "id": f"a{mark}b"}))
    assert mark == "\n" or mark not in str(raised.value)


@pytest.mark.parametrize("key", ["id", "question", "answer", "subject"])
def test_half_characters_are_refused(tmp_path, key):
    with pytest.raises(DataError, match=r"train.jsonl:1: .*lone surrogate"):
        load(written(tmp_path, {**GOOD, key: "a\ud800b"}))


@pytest.mark.parametrize("name", ["a b", "Zoë", "中文-1", "ن\u200cم", "a\N{GRINNING FACE}"])
def test_names_in_any_script_are_fit(name):
    assert not unfit_character(name)


def described(path, *more):
    done = call("data", "describe", "smoke", "data=jsonl", f"data.path={path}", "federation.clients=2", *more)
    assert done.code == 0, done.err
    return done.out


def test_texts_that_are_too_long_are_told_with_line_id_key_and_tokens(tmp_path):
    long = "word " * 700
    path = written(
        tmp_path,
        {**GOOD, "forget": True},
        {**GOOD, "id": "b", "question": "Other?", "answer": long},
        {**GOOD, "id": "c", "question": "More?", "perturbed_answer": ["No one at all.", long]},
    )
    out = described(path)
    assert "2 texts longer than model.max_length=" in out and "a run refuses them" in out
    assert "train.jsonl:2: answer of record 'b': " in out
    assert "train.jsonl:3: perturbed_answer[1] of record 'c': " in out
    assert "their ends are cut off" in described(path, "model.on_overflow=truncate")


def test_answers_that_cannot_be_verified_by_recitation_are_told(tmp_path):
    rows = [
        {**GOOD, "forget": True},
        {**GOOD, "id": "short", "question": "Other?", "answer": "1958."},
        {**GOOD, "id": "han", "question": "Where?", "answer": "明斯克"},
        {**GOOD, "id": "signs", "question": "What?", "answer": "?! ... —"},
    ]
    out = described(written(tmp_path, *rows))
    assert "2 records cannot be verified by recitation" in out and "ids short, signs" in out
    assert "verified by recitation" not in described(written(tmp_path, *rows[:1], rows[2]))
