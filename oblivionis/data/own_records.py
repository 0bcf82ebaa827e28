"""Your own records: rows of files in any format (`oblivionis.row_files`), of any shape (`oblivionis.data.row_shapes`).

Fields of a training record, whose question and answer may have another shape:

| field                | type            | meaning                                                               |
| -------------------- | --------------- | --------------------------------------------------------------------- |
| `question`           | text, required  | what is asked                                                         |
| `answer`             | text, required  | what the model learns to answer                                       |
| `id`                 | text or integer | stable name; without it a hash of question, answer and subject        |
| `subject`            | text or integer | whom the record is about; without it each record is its own subject   |
| `paraphrased_answer` | text            | the answer in other words (truth ratio)                               |
| `perturbed_answer`   | list of texts   | wrong answers of the same form (truth ratio)                          |
| `forget`             | true or false   | to be forgotten; a separate file of ids replaces these marks          |

Further fields are ignored, but a near miss of a name above ("paraphrased_anwser", "Forget") is an error; null is no
value. Beside the training file may lie `forget_perturbed`, `retain_perturbed`, `real_authors` and `world_facts`
(`.jsonl`, `.csv`, …) with the same fields (`forget` excepted): the questions of the evaluation. A record there that
repeats the question and answer of a training record takes over its id and subject. Without the first two, the training
records themselves are asked.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oblivionis.data.benchmark_tables import from_hub
from oblivionis.data.errors import raise_if_any
from oblivionis.data.records import Corpus, Record
from oblivionis.data.row_shapes import MAP, fields_of, recognised, summed_up
from oblivionis.errors import FileError
from oblivionis.files import parse_json, read_bytes
from oblivionis.naming import LONGEST_ID, unfit_character
from oblivionis.row_files import Row, is_hub_name, is_saved, read_rows, shown, table, tables

TRAIN = "train"
EVALUATION = {
    "forget": "forget_perturbed",
    "retain": "retain_perturbed",
    "real_authors": "real_authors",
    "world_facts": "world_facts",
}
"""Question sets, and what a file of each is called without its ending."""
FIELDS = ("question", "answer", "id", "subject", "paraphrased_answer", "perturbed_answer", "forget")
TEXTS = ("question", "answer", "id", "subject", "paraphrased_answer")
NAMES = ("id", "subject")
"""Fields of which a whole number is the name that its digits spell."""

ROWS_OF_IDS = (".csv", ".tsv", ".parquet", ".arrow", ".feather")
"""Endings of files of ids that hold rows with a field, not an id per line."""
Fields = Mapping[str, str]
"""What the files call some of `FIELDS`, or `messages`."""


def load(
    path: Path,
    *,
    forget_file: Path | None = None,
    holdout_file: Path | None = None,
    reference_file: Path | None = None,
    fields: Fields | None = None,
    revision: str | None = None,
) -> Corpus:
    """Read training records, and the evaluation files that lie with them.

    Parameters
    ----------
    path : Path
        A file, a folder that `save_to_disk` wrote, a folder with `train.jsonl`, `train.csv`, …, or, where no such path
        exists, the name `owner/name` of a data set of the Hugging Face hub, whose split `train` is read.
    forget_file : Path or None
        The ids to forget, in place of the marks: one per line, plain, as a JSON text or as an object with `id`; or a
        file of rows with `id`.
    holdout_file, reference_file : Path or None
        Records on which no client trains.
    fields : mapping or None
        What all these files call some of our fields.
    revision : str or None
        A commit of the data set of the hub.

    Raises
    ------
    DataError
        With every faulty line of all files; for a hub that cannot be reached.
    """
    fields = fields or {}
    problems: list[str] = []
    places: dict[str, dict[str, str]] = {TRAIN: {}}
    folder = path if path.is_dir() and not is_saved(path) else path.parent
    sources: dict[str, Iterable[Row]] = {}
    if is_hub_name(str(path)):
        instead = f"its files; there is no path {path} here"
        sources[str(path)], folder = from_hub(str(path), None, TRAIN, revision, instead=instead), None
    else:
        sources |= {str(file): read_rows(file, problems) for file in _parts(path, TRAIN, problems)}
    train, marked = _training(sources, problems, places[TRAIN], fields)
    if not train and not problems:
        problems.append(f"{path}: expected at least one record, found none")
    forget_ids = frozenset(_forget_ids(forget_file, {r.id for r in train}, fields, problems) if forget_file else marked)
    evaluation = _evaluation(folder, train, forget_ids, problems, places, fields)
    for name, file in (("holdout", holdout_file), ("reference", reference_file)):
        if file is not None:
            evaluation[name] = _never_trained(name, file, train, problems, places, fields)
    raise_if_any(path, problems)
    return Corpus(name=path.stem, train=tuple(train), forget_ids=forget_ids, evaluation=evaluation, places=places)


def read_training(paths: Iterable[Path], problems: list[str]) -> tuple[list[Record], list[str]]:
    """The training records of `paths` in their order, and the ids of those marked `forget`.

    Ids are unique over all of them. What is wrong goes to `problems`, with file and line.
    """
    return _training({str(path): read_rows(path, problems) for path in paths}, problems, {}, None)


def _parts(path: Path, name: str, problems: list[str]) -> list[Path]:
    """As `row_files.table`; what is wrong goes to `problems`."""
    try:
        return table(path, name)
    except FileError as error:
        problems.append(str(error))
        return []


def _training(
    sources: Mapping[str, Iterable[Row]], problems: list[str], first: dict[str, str], fields: Fields | None
) -> tuple[list[Record], list[str]]:
    """The records of the sources, and the ids of those marked; `first` gets the place of each record by its id."""
    train: list[Record] = []
    marked: list[str] = []
    absent = {field: name for field, name in (fields or {}).items() if field in FIELDS[2:]}
    for rows in sources.values():
        for row, record in _records(rows, problems, fields):
            absent = {field: name for field, name in absent.items() if field not in row.values}
            forget = row.values.get("forget")
            if record is None or _repeats(row, record, first, problems):
                continue
            train.append(record)
            if forget is True:
                marked.append(record.id)
    if train and absent:
        field, name = next(iter(absent.items()))
        problems.append(f"data.fields.{field}: no row of {', '.join(sources)} has a field {shown(name)}")
    return train, marked


def _records(
    rows: Iterable[Row], problems: list[str], fields: Fields | None, content: Mapping[Any, list[Record]] | None = None
) -> Iterator[tuple[Row, Record | None]]:
    """The rows of one file with their records, None for a faulty one; a problem of all of them is listed once.

    content: training records by question and answer, of which a record with the same takes over id and subject; of
    records that are not for training, which have no mark `forget`.
    """
    before, places = len(problems), []
    hint = "" if fields is None else f"; {MAP} says what they are called"
    for given in rows:
        places.append(given.where)
        row = recognised(given, fields, problems)
        if row is None:
            continue
        same = (content or {}).get(_content(row), [None])[0]
        own = {"identifier": same.id, "subject": same.subject} if same else {}
        record = to_record(row, problems, hint=hint, **own)
        if content is None and not isinstance(row.values.get("forget"), bool | None):
            said = shown(row.values["forget"])
            problems.append(f"{row.where}: {row.called('forget')} must be true or false, found {said}")
        yield row, record
    problems[before:] = summed_up(problems[before:], places)


def _content(row: Row) -> Any:
    """Question and answer of a row, a key of `by_content`; None where they are no texts."""
    key = (row.values.get("question"), row.values.get("answer"))
    return key if all(isinstance(text, str) for text in key) else None


def read_questions(path: Path, fields: Fields | None = None) -> dict[str, tuple[Record, ...]]:
    """Question sets that come without training records: of a folder its files of `EVALUATION`, of a file the `retain`.

    Raises DataError with every faulty line, and where there is no question at all.
    """
    problems: list[str] = []
    is_folder = path.is_dir() and not is_saved(path)
    files = _evaluation_files(path, problems) if is_folder else {"retain": [path]}
    sets: dict[str, tuple[Record, ...]] = {}
    for name, parts in files.items():
        if records := _questions(parts, problems, {}, fields or {}):
            sets[name] = records
    if not sets and not problems:
        problems.append(f"{path}: expected at least one question, found none")
    raise_if_any(path, problems)
    return sets


def _questions(
    parts: Iterable[Path],
    problems: list[str],
    first: dict[str, str],
    fields: Fields | None,
    content: Mapping[Any, list[Record]] | None = None,
) -> tuple[Record, ...]:
    """The records of the parts of a table on which no client trains; `first` gets the place of each by its id."""
    return tuple(
        record
        for part in parts
        for row, record in _records(read_rows(part, problems), problems, fields, content or {})
        if record is not None and not _repeats(row, record, first, problems)
    )


def _evaluation_files(folder: Path, problems: list[str]) -> dict[str, list[Path]]:
    """The parts of each question set's table in a folder, where there is one."""
    return {name: _parts(folder, stem, problems) for name, stem in EVALUATION.items() if tables(folder, stem)}


def to_record(
    row: Row,
    problems: list[str],
    *,
    identifier: str | None = None,
    subject: str | None = None,
    need: Iterable[str] = ("question", "answer"),
    hint: str = "",
) -> Record | None:
    """The record of a row, or None after adding what is wrong with it to `problems`.

    `id` and `subject` override the row's own fields; `need` names the fields that must be there; `hint` says what to do
    where one is missing.
    """
    values = {**row.values}
    before = len(problems)
    missing = []
    for name in (row.called(name) for name in need if name not in values):
        if near := difflib.get_close_matches(name, list(values), n=1, cutoff=0.8):
            problems.append(f"{row.where}: field {name!r} is missing (found {near[0]!r}){hint}")
        else:
            missing.append(repr(name))
    if missing:
        said = f"field {missing[0]} is" if len(missing) == 1 else f"fields {' and '.join(missing)} are"
        problems.append(f"{row.where}: {said} missing; the fields are {fields_of(row)}{hint}")
    for name in TEXTS:
        value = values.get(name)
        if value is None and (name not in values or name not in need):
            continue
        if name in NAMES and isinstance(value, int) and not isinstance(value, bool):
            value = values[name] = str(value)
        if not isinstance(value, str) or not value.strip():
            expected = "a non-empty text or a whole number" if name in NAMES else "a non-empty text"
            problems.append(f"{row.where}: {row.called(name)} must be {expected}, found {shown(value)}")
    if isinstance(own := values.get("id"), str) and (unfit := unfit_character(own)):
        problems.append(f"{row.where}: id must have no control characters, found {unfit} in {shown(own)}")
    if isinstance(own, str) and len(own) > LONGEST_ID:
        problems.append(f"{row.where}: id must have at most {LONGEST_ID} characters, found {len(own)}")
    perturbed = values.get("perturbed_answer")
    perturbed = [] if perturbed is None else perturbed
    if not isinstance(perturbed, list) or not all(isinstance(p, str) and p.strip() for p in perturbed):
        expected = "a JSON list" if row.cells else "a list"
        what = f"{row.called('perturbed_answer')} must be {expected} of non-empty texts"
        problems.append(f"{row.where}: {what}, found {shown(perturbed)}")
    for name in set(values).difference(FIELDS):
        near = _nearest_field(name)
        if near and near not in values and near not in need:
            problems.append(f"{row.where}: unknown field {name!r}; did you mean {near!r}?")
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


@functools.lru_cache(maxsize=1024)
def _nearest_field(name: str) -> str:
    """The field that `name` is a near miss of, in letters of either case; empty where it is none."""
    return next(iter(difflib.get_close_matches(name.strip().casefold(), FIELDS, n=1, cutoff=0.85)), "")


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
    said = f"id {record.id!r}" if row.values.get("id") is not None else "the same question, answer and subject"
    problems.append(f"{row.where}: {said} already at {first[record.id]}; ids must be unique")
    return True


def _forget_ids(path: Path, known: Collection[str], fields: Fields, problems: list[str]) -> Iterator[str]:
    before, count = len(problems), 0
    for where, value in _listed_ids(path, fields.get("id", "id"), problems):
        count += 1
        name = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        name = name.strip() if isinstance(name, str) and name not in known else name
        if isinstance(name, str) and name in known:
            yield name
        else:
            problems.append(f"{where}: no training record has the id {shown(value)}")
    if not count and len(problems) == before:
        problems.append(f"{path}: expected at least one id, found none")


def _listed_ids(path: Path, name: str, problems: list[str]) -> Iterator[tuple[str, Any]]:
    """What a file names as ids, with places; the field `name` of rows."""
    try:
        data = b"" if is_saved(path) else read_bytes(path)
        value = parse_json(data) if data.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[") else None
        if isinstance(value, list) and not any(isinstance(entry, dict) for entry in value):
            yield from ((f"{path.name} row {number}", entry) for number, entry in enumerate(value, start=1))
            return
        if value is not None or is_saved(path) or path.suffix.lower() in ROWS_OF_IDS or b"\0" in data:
            rows = list(read_rows(path, problems))
            if rows and not any(name in row.values for row in rows):
                problems.append(f"{path}: field {name!r} is missing; the fields are {fields_of(rows[0])}")
            else:
                yield from ((row.where, row.values.get(name)) for row in rows)
            return
        lines = data.decode("utf-8-sig").split("\n")
    except FileError as error:
        problems.append(str(error))
        return
    except (OSError, ValueError) as error:
        problems.append(f"{path}: cannot be read as a list of ids ({error})")
        return
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text:
            continue
        value = line.removesuffix("\r")
        if text[0] in '{"':
            try:
                value = parse_json(text)
            except ValueError as error:
                problems.append(f"{path.name}:{number}: {error}")
                continue
            value = value.get(name) if isinstance(value, dict) else value
        yield f"{path.name}:{number}", value


def _evaluation(
    folder: Path | None,
    train: list[Record],
    forget_ids: frozenset[str],
    problems: list[str],
    places: dict[str, dict[str, str]],
    fields: Fields,
) -> dict[str, tuple[Record, ...]]:
    content = by_content(train)
    sets: dict[str, tuple[Record, ...]] = {}
    for name, parts in (_evaluation_files(folder, problems) if folder else {}).items():
        sets[name] = _questions(parts, problems, places.setdefault(name, {}), fields, content)
        if not sets[name] and not problems:
            problems.append(f"{', '.join(map(str, parts))}: expected at least one question, found none")
    if "forget" not in sets and forget_ids:
        sets["forget"] = tuple(r for r in train if r.id in forget_ids)
    if "retain" not in sets:
        sets["retain"] = tuple(r for r in train if r.id not in forget_ids)
    return {name: sets[name] for name in EVALUATION if sets.get(name)}


def never_trained(name: str, path: Path, train: Sequence[Record]) -> tuple[Record, ...]:
    """The records of the set `name`, of a file or of the table `name` in a folder, none of which may be trained on.

    Raises DataError.
    """
    problems: list[str] = []
    records = _never_trained(name, path, train, problems, {}, None)
    raise_if_any(path, problems)
    return records


def _never_trained(
    name: str,
    path: Path,
    train: Sequence[Record],
    problems: list[str],
    places: dict[str, dict[str, str]],
    fields: Fields | None,
) -> tuple[Record, ...]:
    """As `never_trained`; what is wrong goes to `problems`."""
    content, ids = by_content(train), {r.id for r in train}
    first: dict[str, str] = places.setdefault(name, {})
    records = _questions(_parts(path, name, problems), problems, first, fields)
    for record in records:
        if record.id in ids or (record.question, record.answer) in content:
            problems.append(f"{first[record.id]}: this record is trained on; expected records that are not")
    if not records and not problems:
        problems.append(f"{path}: expected at least one record, found none")
    return records
