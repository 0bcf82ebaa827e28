"""Questions of an audit, facts about people and multiple choice: the same from JSON lines, CSV, parquet and a list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from oblivionis.data import multiple_choice
from oblivionis.data.errors import DataError
from oblivionis.data.person_facts import read_facts
from oblivionis.data.questions import read_questions

QUESTIONS = [{"Prompt": "Who?", "answer": "Ana", "keywords": ["Ana", "Prado"]}, {"Prompt": "Why?", "keywords": None}]
FACTS = [{"subject": "Ada Orr", "property": "P19", "values": ["Ost", "West"], "cohort": "a"}]
CHOICES = [{"question": "Which rings?", "choices": ["glass", "bells"], "answer": 1}]


def write_all(folder: Path, rows: Sequence[dict]) -> dict[str, Path]:
    paths = {suffix: folder / f"a.{suffix}" for suffix in ("jsonl", "json", "csv", "parquet")}
    paths["jsonl"].write_text("\n".join(map(json.dumps, rows)))
    paths["json"].write_text(json.dumps(rows))
    frame = pd.DataFrame(rows)
    frame.to_parquet(paths["parquet"])
    lists = [column for column in frame if isinstance(frame[column][0], list)]
    frame[lists] = frame[lists].map(lambda cell: json.dumps(cell) if isinstance(cell, list) else None)
    frame.to_csv(paths["csv"], index=False, sep=";")
    return paths


def test_questions_of_an_audit(tmp_path: Path) -> None:
    for suffix, path in write_all(tmp_path, QUESTIONS).items():
        found = read_questions(path)
        asked = [(q.prompt, q.answer, q.keywords) for q in found]
        assert asked == [("Who?", "Ana", ("Ana", "Prado")), ("Why?", None, ())]
        kind, first = {"jsonl": ("line", 1), "csv": ("line", 2)}.get(suffix, ("row", 1))
        assert [q.id for q in found] == [f"{kind}-{first}", f"{kind}-{first + 1}"]
    (tmp_path / "b.json").write_text("[1]")
    with pytest.raises(DataError, match="a JSON list of numbers, expected a list of objects"):
        read_questions(tmp_path / "b.json")


def test_facts_about_people(tmp_path: Path) -> None:
    found = {suffix: read_facts(path) for suffix, path in write_all(tmp_path, FACTS).items()}
    assert found["jsonl"][0].values == ("Ost", "West")
    assert all(facts == found["jsonl"] for facts in found.values())


def test_multiple_choice(tmp_path: Path) -> None:
    found = {suffix: multiple_choice.load(path) for suffix, path in write_all(tmp_path, CHOICES).items()}
    assert found["jsonl"][0].choices == ("glass", "bells") and found["jsonl"][0].answer == 1
    assert all(asked == found["jsonl"] for asked in found.values())
