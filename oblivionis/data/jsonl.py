"""Your own records as JSON lines: one object per line, UTF-8.

Fields of a training record:

| field                | type            | meaning                                                               |
| -------------------- | --------------- | --------------------------------------------------------------------- |
| `question`           | text, required  | what is asked                                                         |
| `answer`             | text, required  | what the model learns to answer                                       |
| `id`                 | text            | stable name; without it a hash of question, answer and subject        |
| `subject`            | text            | whom the record is about; without it each record is its own subject   |
| `paraphrased_answer` | text            | the answer in other words (truth ratio)                               |
| `perturbed_answer`   | list of texts   | wrong answers of the same form (truth ratio)                          |
| `forget`             | true or false   | to be forgotten; a separate file of ids replaces these marks          |

Further fields are ignored, but a near miss of a name above ("paraphrased_anwser") is reported. Beside the training
file may lie `forget_perturbed.jsonl`, `retain_perturbed.jsonl`, `real_authors.jsonl` and `world_facts.jsonl` with the
same fields (`forget` excepted): the questions of the evaluation. A record there that repeats the question and answer
of a training record takes over its id and subject. Without the first two, the training records themselves are asked.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from oblivionis.data.errors import raise_if_any
from oblivionis.data.records import Corpus, Record
from oblivionis.errors import FileError
from oblivionis.files import parse_json, read_bytes
from oblivionis.naming import unfit_character

TRAIN_FILE = "train.jsonl"
EVALUATION_FILES = {
    "forget": "forget_perturbed.jsonl",
    "retain": "retain_perturbed.jsonl",
    "real_authors": "real_authors.jsonl",
    "world_facts": "world_facts.jsonl",
}
FIELDS = ("question", "answer", "id", "subject", "paraphrased_answer", "perturbed_answer", "forget")


class Row(NamedTuple):
    """One object of a source and where it stands there, such as `train.jsonl:17`."""

    where: str
    values: Mapping[str, Any]


def load(
    path: Path,
    *,
    forget_file: Path | None = None,
    holdout_file: Path | None = None,
    reference_file: Path | None = None,
) -> Corpus:
    """Read a training file (or a folder that holds `train.jsonl`) and the evaluation files beside it.

    `forget_file` lists ids to forget, one per line: plain, as a JSON text, or as an object with `id`. `holdout_file`
    and `reference_file` hold records that nobody trains on. Raises DataError with every faulty line of all files.
    """
    source = path / TRAIN_FILE if path.is_dir() else path
    problems: list[str] = []
    places: dict[str, dict[str, str]] = {"train": {}}
    train, marked = read_training([source], problems, places["train"])
    known = {record.id for record in train}
    if not train and not problems:
        problems.append(f"{source}: expected at least one record, found none")
    forget_ids = frozenset(_forget_ids(forget_file, known, problems) if forget_file else marked)
    evaluation = _evaluation(source.parent, train, forget_ids, problems, places)
    for name, file in (("holdout", holdout_file), ("reference", reference_file)):
        if file is not None:
            evaluation[name] = _never_trained(name, file, train, problems, places)
    raise_if_any(path, problems)
    return Corpus(name=path.stem, train=tuple(train), forget_ids=forget_ids, evaluation=evaluation, places=places)


def read_training(
    paths: Iterable[Path], problems: list[str], places: dict[str, str] | None = None
) -> tuple[list[Record], list[str]]:
    """The training records of `paths` in their order, and the ids of those marked `forget`.

    Ids are unique over all of them. What is wrong goes to `problems`, with file and line; `places` gets those of each
    record by its id.
    """
    train: list[Record] = []
    marked: list[str] = []
    first: dict[str, str] = {} if places is None else places
    for row in (row for path in paths for row in read_rows(path, problems)):
        record = to_record(row, problems)
        forget = row.values.get("forget", False)
        if not isinstance(forget, bool):
            problems.append(f"{row.where}: forget must be true or false, found {_shown(forget)}")
        if record is None or _repeats(row, record, first, problems):
            continue
        train.append(record)
        if forget is True:
            marked.append(record.id)
    return train, marked


def read_questions(path: Path) -> dict[str, tuple[Record, ...]]:
    """Question sets that come without training records: of a folder its `EVALUATION_FILES`, of a file the set `retain`.

    Raises DataError with every faulty line, and where there is no question at all.
    """
    problems: list[str] = []
    files = {name: path / file for name, file in EVALUATION_FILES.items()} if path.is_dir() else {"retain": path}
    sets: dict[str, tuple[Record, ...]] = {}
    for name, file in files.items():
        if path.is_dir() and not file.exists():
            continue
        records: list[Record] = []
        first: dict[str, str] = {}
        for row in read_rows(file, problems):
            record = to_record(row, problems)
            if record is not None and not _repeats(row, record, first, problems):
                records.append(record)
        if records:
            sets[name] = tuple(records)
    if not sets and not problems:
        problems.append(f"{path}: expected at least one question, found none")
    raise_if_any(path, problems)
    return sets


def read_rows(path: Path, problems: list[str]) -> Iterator[Row]:
    """The JSON objects of `path`, a line each; blank lines are skipped. What cannot be read goes to `problems`."""
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        problems.append(f"{path}: file not found; expected JSON lines")
        return
    except FileError as error:
        problems.append(str(error))
        return
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path.name}:{number}"
        try:
            value = parse_json(line.decode())
        except UnicodeDecodeError:
            problems.append(f"{where}: expected UTF-8 text")
        except ValueError as error:
            problems.append(f"{where}: expected a JSON object on one line, but {error}")
        else:
            if isinstance(value, dict):
                yield Row(where, value)
            else:
                problems.append(f"{where}: expected a JSON object, found {_shown(value)}")


def to_record(
    row: Row,
    problems: list[str],
    *,
    identifier: str | None = None,
    subject: str | None = None,
    need: Iterable[str] = ("question", "answer"),
) -> Record | None:
    """The record of a row, or None after adding what is wrong with it to `problems`.

    `id` and `subject` override the row's own fields; `need` names the fields that must be there.
    """
    values = row.values
    before = len(problems)
    for name in need:
        if name not in values:
            near = difflib.get_close_matches(name, list(values), n=1, cutoff=0.8)
            hint = f" (found {near[0]!r})" if near else ""
            problems.append(f"{row.where}: field {name!r} is missing{hint}")
    for name in ("question", "answer", "id", "subject", "paraphrased_answer"):
        value = values.get(name)
        if value is None and (name not in values or name not in need):
            continue
        if not isinstance(value, str) or not value.strip():
            problems.append(f"{row.where}: {name} must be a non-empty text, found {_shown(value)}")
    if isinstance(own := values.get("id"), str) and (unfit := unfit_character(own)):
        problems.append(f"{row.where}: id must have no control characters, found {unfit} in {_shown(own)}")
    perturbed = values.get("perturbed_answer")
    perturbed = [] if perturbed is None else perturbed
    if not isinstance(perturbed, list) or not all(isinstance(p, str) and p.strip() for p in perturbed):
        problems.append(f"{row.where}: perturbed_answer must be a list of non-empty texts, found {_shown(perturbed)}")
    for name in set(values).difference(FIELDS):
        near = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.85)
        if near and near[0] not in values and near[0] not in need:
            problems.append(f"{row.where}: unknown field {name!r}; did you mean {near[0]!r}?")
    if len(problems) > before:
        return None
    identity = identifier or values.get("id") or content_id(values["question"], values["answer"], values.get("subject"))
    return Record(
        id=identity,
        question=values["question"],
        answer=values["answer"],
        subject=subject or values.get("subject") or identity,
        paraphrased_answer=values.get("paraphrased_answer"),
        perturbed_answers=tuple(perturbed),
    )


def content_id(question: str, answer: str, subject: str | None = None) -> str:
    """`r-` and 16 hexadecimal digits of the SHA-256 of what the record says: the same wherever it stands."""
    text = json.dumps([question, answer, subject], ensure_ascii=False)
    return "r-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def by_content(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """Records by their question and answer."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        found.setdefault((record.question, record.answer), []).append(record)
    return found


def _repeats(row: Row, record: Record, first: dict[str, str], problems: list[str]) -> bool:
    """Note where an id occurs first; report a repetition."""
    if record.id not in first:
        first[record.id] = row.where
        return False
    said = f"id {record.id!r}" if "id" in row.values else "the same question, answer and subject"
    problems.append(f"{row.where}: {said} already at {first[record.id]}; ids must be unique")
    return True


def _forget_ids(path: Path, known: Collection[str], problems: list[str]) -> Iterator[str]:
    try:
        lines = read_bytes(path).decode("utf-8-sig").split("\n")
    except FileError as error:
        problems.append(str(error))
        return
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path}: cannot be read as a list of ids ({error})")
        return
    if not any(line.strip() for line in lines):
        problems.append(f"{path}: expected at least one id, found none")
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text:
            continue
        value: Any = text
        if text[0] in '{"':
            try:
                value = parse_json(text)
            except ValueError as error:
                problems.append(f"{path.name}:{number}: {error}")
                continue
            value = value.get("id") if isinstance(value, dict) else value
        if isinstance(value, str) and value in known:
            yield value
        else:
            problems.append(f"{path.name}:{number}: no training record has the id {_shown(value)}")


def _evaluation(
    folder: Path,
    train: list[Record],
    forget_ids: frozenset[str],
    problems: list[str],
    places: dict[str, dict[str, str]],
) -> dict[str, tuple[Record, ...]]:
    content = by_content(train)
    sets: dict[str, tuple[Record, ...]] = {}
    for name, file in EVALUATION_FILES.items():
        path = folder / file
        if not path.exists():
            continue
        records: list[Record] = []
        first: dict[str, str] = places.setdefault(name, {})
        for row in read_rows(path, problems):
            key = (row.values.get("question"), row.values.get("answer"))
            same = content.get(key, []) if all(isinstance(k, str) for k in key) else []  # type: ignore[arg-type]
            record = to_record(
                row, problems, identifier=same[0].id if same else None, subject=same[0].subject if same else None
            )
            if record is not None and not _repeats(row, record, first, problems):
                records.append(record)
        if not records and not problems:
            problems.append(f"{path}: expected at least one question, found none")
        sets[name] = tuple(records)
    if "forget" not in sets and forget_ids:
        sets["forget"] = tuple(r for r in train if r.id in forget_ids)
    if "retain" not in sets:
        sets["retain"] = tuple(r for r in train if r.id not in forget_ids)
    return {name: sets[name] for name in EVALUATION_FILES if sets.get(name)}


def never_trained(name: str, path: Path, train: Sequence[Record]) -> tuple[Record, ...]:
    """The records of the file, the set `name`, none of which may be a training record. Raises DataError."""
    problems: list[str] = []
    records = _never_trained(name, path, train, problems, {})
    raise_if_any(path, problems)
    return records


def _never_trained(
    name: str, path: Path, train: Sequence[Record], problems: list[str], places: dict[str, dict[str, str]]
) -> tuple[Record, ...]:
    """The records of the file, the set `name`, none of which may be a training record."""
    content, ids = by_content(train), {r.id for r in train}
    records: list[Record] = []
    first: dict[str, str] = places.setdefault(name, {})
    for row in read_rows(path, problems):
        record = to_record(row, problems)
        if record is None or _repeats(row, record, first, problems):
            continue
        if record.id in ids or (record.question, record.answer) in content:
            problems.append(f"{row.where}: this record is trained on; expected records that are not")
        records.append(record)
    if not records and not problems:
        problems.append(f"{path}: expected at least one record, found none")
    return tuple(records)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=bool(isinstance(value, str) and unfit_character(value)))
    return text if len(text) <= 40 else text[:37] + "…"
