"""Other answers: the built-in sentences, a user's file, wrong answers of the data, and the draw."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from oblivionis.data import idk_answers, own_records
from oblivionis.data.alternative_answers import drawn, missing_answers, perturbed_answers
from oblivionis.data.datasets import fictitious
from oblivionis.data.errors import DataError
from oblivionis.data.records import Corpus, Record


def test_there_are_fifty_different_sentences_that_end_as_sentences_do() -> None:
    assert len(set(idk_answers.SENTENCES)) == len(idk_answers.SENTENCES) == 50
    assert all(re.fullmatch(r"[A-Z][A-Za-z,' ]+\.", sentence) for sentence in idk_answers.SENTENCES)


def test_sentences_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "idk.txt"
    file.write_bytes("\ufeffNo idea.\r\n\n  Keine Ahnung – wirklich.\t\n".encode())
    assert idk_answers.read_sentences(file) == ("No idea.", "Keine Ahnung – wirklich.")


@pytest.mark.parametrize(
    ("content", "what"),
    [(None, "there is no file"), (b"", "at least one sentence"), (b" \n\n", "at least one"), (b"\xff", "UTF-8")],
)
def test_files_without_sentences(tmp_path: Path, content: bytes | None, what: str) -> None:
    file = tmp_path / "idk.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=rf"^unlearning\.alternatives\.idk: .*{what}"):
        idk_answers.read_sentences(file)
    with pytest.raises(DataError, match=r"^unlearning\.alternatives\.idk: .*a folder"):
        idk_answers.read_sentences(tmp_path)


def test_wrong_answers_are_a_records_own_or_those_of_its_question() -> None:
    train = (
        Record("own", "Q1", "A1", "s", perturbed_answers=("a", "b")),
        Record("asked", "Q2", "A2", "s"),
        Record("none", "Q3", "A3", "s"),
    )
    asked = (
        Record("own", "Q1", "A1", "s", perturbed_answers=("c",)),
        Record("asked", "Q2", "A2", "s", perturbed_answers=("d",)),
        Record("elsewhere", "Q4", "A4", "s", perturbed_answers=("e",)),
    )
    corpus = Corpus("made", train, frozenset({"own"}), {"retain": asked})
    assert perturbed_answers(corpus) == {"own": ("a", "b"), "asked": ("d",)}


def test_the_made_up_authors_have_five_each() -> None:
    corpus = fictitious.corpus(authors=3, questions_per_author=2, forget_authors=1)
    found = perturbed_answers(corpus)
    assert found.keys() == {record.id for record in corpus.train} and {len(a) for a in found.values()} == {5}
    assert all(record.answer not in found[record.id] for record in corpus.train)


def test_own_records_have_them_in_either_file(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(
        '{"id": "a", "question": "Q1", "answer": "A1", "forget": true, "perturbed_answer": ["w"]}\n'
        '{"id": "b", "question": "Q2", "answer": "A2", "forget": true}\n'
    )
    (tmp_path / "forget_perturbed.jsonl").write_text(
        '{"question": "Q1", "answer": "A1"}\n{"question": "Q2", "answer": "A2", "perturbed_answer": ["x", "y"]}\n'
    )
    assert perturbed_answers(own_records.load(tmp_path)) == {"a": ("w",), "b": ("x", "y")}


def test_the_draw_goes_by_seed_and_record_and_repeats_nothing() -> None:
    first = drawn(idk_answers.SENTENCES, 7, "r1", 10)
    assert first == drawn(idk_answers.SENTENCES, 7, "r1", 10) and len(set(first)) == 10
    assert first != drawn(idk_answers.SENTENCES, 8, "r1", 10) and first != drawn(idk_answers.SENTENCES, 7, "r2", 10)
    assert sorted(drawn("abc", 7, "r1", 10)) == ["a", "b", "c"], "the same three in turn for all ten epochs"


def test_the_draw_prefers_nothing() -> None:
    """2,000 records, four answers: each first in a quarter, within five standard deviations (√(2000·3/16) = 19.4)."""
    counts = Counter(drawn("abcd", 0, f"r{i}", 1)[0] for i in range(2000))
    assert all(abs(counts[letter] - 500) < 5 * 19.4 for letter in "abcd")


def test_what_lacks_is_named_with_its_place() -> None:
    said = missing_answers("altpo", ["p1", "p2", "p3"], {"p1": "train.jsonl:4"})
    assert "altpo" in said and "record 'p1' (train.jsonl:4) has no perturbed_answer, and 2 more have none" in said
    assert "record 'p2' has no perturbed_answer; add" in missing_answers("altpo", ["p2"], {"p1": "train.jsonl:4"})
