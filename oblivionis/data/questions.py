"""Questions for an audit, from a file of rows in any format.

| field      | also read as            | meaning                                                              |
| ---------- | ----------------------- | --------------------------------------------------------------------|
| `question` | `prompt`, `goal`        | required: what the model is asked                                    |
| `answer`   |                         | the true answer, for the leakage functions that compare with it      |
| `keywords` | `keyword`               | what gives the answer away: a list, or texts separated by semicolons |
| `id`       | `index`                 | stable name; without it the number of the line, or of the row         |

Case does not matter in names; further fields are ignored. So JailbreakBench's table of behaviours (its column `Goal`)
and question lists with keywords can be read as they are.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

from evaluation.leakage.functions import Asked
from oblivionis.data.errors import raise_if_any
from oblivionis.naming import unfit_character
from oblivionis.row_files import Row, read_rows

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
    """The questions of a file of rows. Raises DataError with every faulty one."""
    problems: list[str] = []
    found: list[Asked] = []
    lines: dict[str, str] = {}
    for row in read_rows(path, problems):
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
    keywords = row._replace(values=values).value("keywords") if "keywords" in values else []
    if isinstance(keywords, str):
        keywords = [part.strip() for part in keywords.split(";") if part.strip()]
    if not isinstance(keywords, list) or not all(isinstance(k, str) and k.strip() for k in keywords):
        problems.append(f"{row.where}: keywords must be a list of non-empty texts, found {values['keywords']!r}")
    if not isinstance(values.get("id", ""), str | int) or isinstance(values.get("id"), bool):
        problems.append(f"{row.where}: id must be a text or a number, found {values['id']!r}")
    if len(problems) > before:
        return None
    line, number = re.search(r":\d+$", row.where), re.split(r"\D", row.where)[-1]
    identifier = str(values.get("id", f"{'line' if line else 'row'}-{number}"))
    if unfit := unfit_character(identifier):
        problems.append(f"{row.where}: id must have no control characters, found {unfit}")
        return None
    texts = [identifier, values["question"], values.get("answer") or "", *keywords]
    if any(0xD800 <= ord(character) <= 0xDFFF for text in texts for character in text):
        problems.append(f"{row.where}: half a character (a lone surrogate) in a text")
        return None
    return Asked(identifier, values["question"], values.get("answer"), tuple(keywords))
