"""Questions for an audit, from JSON lines or a CSV table with a header.

| field      | also read as            | meaning                                                              |
| ---------- | ----------------------- | --------------------------------------------------------------------|
| `question` | `prompt`, `goal`        | required: what the model is asked                                    |
| `answer`   |                         | the true answer, for the leakage functions that compare with it      |
| `keywords` | `keyword`               | what gives the answer away: a list, or texts separated by semicolons |
| `id`       | `index`                 | stable name; without it the number of the line                       |

Case does not matter in names; further fields are ignored. So JailbreakBench's table of behaviours (its column `Goal`)
and question lists with keywords can be read as they are.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluation.leakage.functions import Asked
from oblivionis.data.errors import raise_if_any
from oblivionis.data.jsonl import Row, read_rows
from oblivionis.errors import FileError
from oblivionis.files import read_bytes
from oblivionis.naming import unfit_character

_NAMES = {
    "question": "question",
    "prompt": "question",
    "goal": "question",
    "answer": "answer",
    "keywords": "keywords",
    "keyword": "keywords",
    "id": "id",
    "index": "id",
}


def read_questions(path: Path) -> list[Asked]:
    """The questions of a `.csv` table, or of JSON lines. Raises DataError with every faulty line."""
    problems: list[str] = []
    found: list[Asked] = []
    lines: dict[str, str] = {}
    for row in _table(path, problems) if path.suffix.lower() == ".csv" else read_rows(path, problems):
        asked = _question(row, problems)
        if asked is None:
            continue
        if asked.id in lines:
            problems.append(f"{row.where}: id {asked.id!r} is already that of {lines[asked.id]}")
            continue
        lines[asked.id] = row.where
        found.append(asked)
    if not found and not problems:
        problems.append(f"{path}: expected at least one question, found none")
    raise_if_any(path, problems)
    return found


def _table(path: Path, problems: list[str]) -> Iterator[Row]:
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except FileNotFoundError:
        problems.append(f"{path}: file not found; expected a CSV table or JSON lines")
        return
    except FileError as error:
        problems.append(str(error))
        return
    except UnicodeDecodeError as error:
        problems.append(f"{path}: cannot be read as UTF-8 text ({error})")
        return
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        for values in reader:
            yield Row(f"{path.name}:{reader.line_num}", {k: v for k, v in values.items() if k is not None and v})
    except csv.Error as error:
        problems.append(f"{path.name}:{reader.line_num}: not a CSV table ({error})")


def _question(row: Row, problems: list[str]) -> Asked | None:
    values: dict[str, Any] = {}
    for name, value in row.values.items():
        known = _NAMES.get(name.lower())
        if known is not None and value is not None:
            values.setdefault(known, value)
    before = len(problems)
    if "question" not in values:
        near = difflib.get_close_matches("question", list(row.values), n=1, cutoff=0.7)
        hint = f" (found {near[0]!r})" if near else ""
        problems.append(f"{row.where}: field 'question' is missing{hint}; expected question, prompt or goal")
    for name in ("question", "answer"):
        if name in values and (not isinstance(values[name], str) or not values[name].strip()):
            problems.append(f"{row.where}: {name} must be a non-empty text, found {values[name]!r}")
    keywords = values.get("keywords", [])
    if isinstance(keywords, str):
        keywords = [part.strip() for part in keywords.split(";") if part.strip()]
    if not isinstance(keywords, list) or not all(isinstance(k, str) and k.strip() for k in keywords):
        problems.append(f"{row.where}: keywords must be a list of non-empty texts, found {values['keywords']!r}")
    if not isinstance(values.get("id", ""), str | int) or isinstance(values.get("id"), bool):
        problems.append(f"{row.where}: id must be a text or a number, found {values['id']!r}")
    if len(problems) > before:
        return None
    identifier = str(values.get("id", f"line-{row.where.rpartition(':')[2]}"))
    if unfit := unfit_character(identifier):
        problems.append(f"{row.where}: id must have no control characters, found {unfit}")
        return None
    texts = [identifier, values["question"], values.get("answer") or "", *keywords]
    if any(0xD800 <= ord(character) <= 0xDFFF for text in texts for character in text):
        problems.append(f"{row.where}: half a character (a lone surrogate) in a text")
        return None
    return Asked(identifier, values["question"], values.get("answer"), tuple(keywords))
