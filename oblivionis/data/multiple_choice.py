"""Multiple-choice questions in the shape of MMLU and WMDP.

| field | type | meaning |
| --- | --- | --- |
| `question` | text | what is asked |
| `choices` | list of texts | the answers to choose from, 2 to 26 |
| `answer` | whole number or letter | the true one: its place, from 0, or its letter, from A |
| `subject`, or `task` | text, may be absent | the field of the question, as the prompt names it |
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oblivionis.data import benchmark_tables
from oblivionis.data.errors import raise_if_any
from oblivionis.data.records import Choice
from oblivionis.row_files import Row

LETTERS = string.ascii_uppercase


def read(rows: Sequence[Row], name: str, problems: list[str], about: str = "") -> tuple[Choice, ...]:
    """The questions of the rows, called `<name>-0000` …; what is wrong goes to `problems`.

    about: their field where the rows have none.
    """
    found = [_choice(row, f"{name}-{i:04d}", about, problems) for i, row in enumerate(rows)]
    return tuple(choice for choice in found if choice is not None)


def load(path: Path) -> tuple[Choice, ...]:
    """The questions of a file of such rows. Raises DataError with every faulty row, and where there is none."""
    problems: list[str] = []
    found = read(list(benchmark_tables.read(path, problems)), path.stem, problems)
    if not found and not problems:
        problems.append(f"{path}: expected at least one question, found none")
    raise_if_any(path, problems)
    return found


def _choice(row: Row, identifier: str, about: str, problems: list[str]) -> Choice | None:
    values, before = row.values, len(problems)
    benchmark_tables.texts(row, ("question",), problems)
    choices = row.value("choices")
    if not isinstance(choices, list) or not all(isinstance(c, str) and c.strip() for c in choices):
        problems.append(f"{row.where}: choices must be a list of non-empty texts")
        choices = []
    elif not 2 <= len(choices) <= len(LETTERS):
        problems.append(f"{row.where}: expected 2 to {len(LETTERS)} choices, found {len(choices)}")
    answer = _place(values.get("answer"), row.cells)
    if choices and not (answer is not None and 0 <= answer < len(choices)):
        said = values.get("answer")
        problems.append(f"{row.where}: answer must be one of the choices, 0 to {len(choices) - 1}, found {said!r}")
    if len(problems) > before or answer is None:
        return None
    field = next((values[key] for key in ("task", "subject") if isinstance(values.get(key), str)), about)
    return Choice(identifier, values["question"].strip(), tuple(choices), answer, field.replace("_", " ").strip())


def _place(answer: Any, is_cell: bool) -> int | None:
    if is_cell and isinstance(answer, str) and answer.strip().isdecimal():
        return int(answer)
    if isinstance(answer, str) and len(answer.strip()) == 1:
        return LETTERS.find(answer.strip())
    return answer if isinstance(answer, int) and not isinstance(answer, bool) else None
