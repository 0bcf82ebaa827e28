"""The user's own records from JSON lines: what is read, and what is said about faulty files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oblivionis.data import own_records
from oblivionis.data.errors import DataError


def write(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def asked(question: str, answer: str, **fields) -> dict:
    return {"question": question, "answer": answer, "perturbed_answer": ["no", "never"], **fields}


def test_jsonl_reads_all_fields(tmp_path: Path) -> None:
    rows = [
        {
            "id": "one",
            "question": "Wer?",
            "answer": "Zoë\u2028ja",
            "subject": "zoe",
            "paraphrased_answer": "Z",
            "perturbed_answer": ["A", "B"],
            "forget": True,
            "comment": "ignored",
        },
        {"question": "q", "answer": "a"},
    ]
    path = write(tmp_path / "mine.jsonl", rows)
    corpus = own_records.load(path)
    first, second = corpus.train
    assert (first.id, first.answer, first.subject) == ("one", "Zoë\u2028ja", "zoe")
    assert (first.paraphrased_answer, first.perturbed_answers) == ("Z", ("A", "B"))
    assert second.id == second.subject == own_records.content_id("q", "a")
    assert corpus.name == "mine"
    assert corpus.forget_ids == {"one"}
    assert corpus.evaluation == {"forget": (first,), "retain": (second,)}


def test_jsonl_default_ids_survive_reordering_and_new_rows(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}", "answer": "a"} for i in range(4)]
    before = own_records.load(write(tmp_path / "a.jsonl", rows))
    after = own_records.load(write(tmp_path / "b.jsonl", [{"question": "new", "answer": "n"}, *reversed(rows)]))
    assert {r.question: r.id for r in before.train}.items() <= {r.question: r.id for r in after.train}.items()


def test_jsonl_folder_with_evaluation_files(tmp_path: Path) -> None:
    train = [{"id": f"r{i}", "subject": f"s{i}", "question": f"q{i}", "answer": f"a{i}"} for i in range(3)]
    write(tmp_path / "train.jsonl", train)
    write(tmp_path / "forget_perturbed.jsonl", [asked("q1", "a1", paraphrased_answer="p")])
    write(tmp_path / "world_facts.jsonl", [asked("w", "x", id="w0")])
    (tmp_path / "forget.txt").write_text('r1\n\n"r2"\n{"id": "r2"}\n')
    corpus = own_records.load(tmp_path, forget_file=tmp_path / "forget.txt")
    assert corpus.forget_ids == {"r1", "r2"}
    assert [(r.id, r.subject, r.paraphrased_answer) for r in corpus.evaluation["forget"]] == [("r1", "s1", "p")]
    assert [r.id for r in corpus.evaluation["retain"]] == ["r0"]
    assert [r.id for r in corpus.evaluation["world_facts"]] == ["w0"]
    assert "real_authors" not in corpus.evaluation


def test_jsonl_reports_every_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    lines = [
        b'{"question": "q", "answer": "a", "id": "same"}',
        b"[1, 2]",
        b'{"question": "q", "answer": ""}',
        b'{"question": 5, "answer": "a"}',
        b'{"question": "q", "answer": "a", "perturbed_answer": ["x", 3]}',
        b'{"question": "q2", "answer": "a", "id": "same"}',
        b'{"question": "q3", "answer": "a", "forget": "yes"}',
        b'{"question": "q4", "answer": "a", "paraphrased_anwser": "b"}',
        b'{"question": "\xff", "answer": "a"}',
        b"",
        b'{"question": "q5", "answer": "a"}',
        b'{"question": "q5", "answer": "a"}',
    ]
    path.write_bytes(b"\n".join(lines))
    (tmp_path / "ids").write_text("same\nghost\n")
    with pytest.raises(DataError) as caught:
        own_records.load(path, forget_file=tmp_path / "ids")
    problems = caught.value.problems
    expected = [
        ("bad.jsonl:2: expected a JSON object, found [1, 2]"),
        ('bad.jsonl:3: answer must be a non-empty text, found ""'),
        ("bad.jsonl:4: question must be a non-empty text, found 5"),
        ('bad.jsonl:5: perturbed_answer must be a list of non-empty texts, found ["x", 3]'),
        ("bad.jsonl:6: id 'same' already at bad.jsonl:1; ids must be unique"),
        ('bad.jsonl:7: forget must be true or false, found "yes"'),
        ("bad.jsonl:8: unknown field 'paraphrased_anwser'; did you mean 'paraphrased_answer'?"),
        ("bad.jsonl:9: expected UTF-8 text"),
        ("bad.jsonl:12: the same question, answer and subject already at bad.jsonl:11; ids must be unique"),
        ('ids:2: no training record has the id "ghost"'),
    ]
    assert list(problems) == expected
    assert all(p in str(caught.value) for p in expected)


def test_jsonl_shows_twenty_problems_and_the_count(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("nonsense\n" * 31)
    with pytest.raises(DataError) as caught:
        own_records.load(tmp_path / "x.jsonl")
    assert len(caught.value.problems) == 31
    text = str(caught.value)
    assert "31 problems" in text and "x.jsonl:20:" in text and "x.jsonl:21:" not in text and "… and 11 more" in text


def test_jsonl_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*train\.jsonl"):
        own_records.load(tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="at least one record"):
        own_records.load(tmp_path / "empty.jsonl")
