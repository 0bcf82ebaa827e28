"""MUSE (Shi et al. 2024): texts to forget among texts to retain, and what is asked afterwards.

Tables are named after the configurations and splits of `muse-bench/MUSE-News` and `muse-bench/MUSE-Books` on the
Hugging Face hub:

| table                        | fields             | what it is                                           |
| ---------------------------- | ------------------ | ---------------------------------------------------- |
| `raw/forget`                 | `text`             | the texts to forget                                  |
| `raw/retain2`                | `text`             | the other texts that the model is trained on         |
| `scal/forget_1` … `forget_4` | `text`             | larger and larger sets to forget (News only)         |
| `verbmem/forget`             | `prompt`, `gt`     | beginnings of forget texts and how they go on        |
| `knowmem/forget_qa`          | `question`, `answer` | questions about the texts to forget                |
| `knowmem/retain_qa`          | `question`, `answer` | questions about the other texts                    |
| `knowmem/forget_qa_icl`, `knowmem/retain_qa_icl` | `question`, `answer` | answered examples; may be missing |
| `privleak/forget`            | `text`             | texts that are trained on, whose membership is asked |
| `privleak/holdout`           | `text`             | texts like them that nobody trains on                |

In a folder, a table is `raw/forget.json` (a list of objects, or of texts where the only field is `text`),
`raw/forget.jsonl` (a line each), `raw/forget.parquet` (or the hub's `raw/forget-00000-of-00001.parquet`) or
`raw/forget.txt` (the whole file is one text).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oblivionis.data.errors import DataError, raise_if_any
from oblivionis.data.jsonl import Row, read_rows
from oblivionis.data.records import Corpus, Record
from oblivionis.errors import FileError
from oblivionis.files import need_file, parse_json, read_bytes

HUB_NAMES = {"muse_news": "muse-bench/MUSE-News", "muse_books": "muse-bench/MUSE-Books"}
FORGET_SETS = ("raw", "scal_1", "scal_2", "scal_3", "scal_4")
SUFFIXES = (".json", ".jsonl", ".parquet", ".txt")

Cut = Callable[[Sequence[str]], list[list[tuple[tuple[int, ...], str]]]]
"""Texts -> for each its pieces in order, as token ids and as text."""
Table = Callable[[str, Sequence[str], bool], list[dict[str, str]]]
"""Name, fields and whether it must be there -> rows of texts."""

_QUESTIONS = ("question", "answer")


def load(name: str, path: Path | None, cut: Cut, *, forget_set: str = "raw", revision: str | None = None) -> Corpus:
    """The corpus `muse_news` or `muse_books` from a folder, or from the hub (at `revision`) when `path` is None.

    Raises DataError: a missing folder or table, a row without its fields (file and line), a hub that cannot be reached.
    """
    if path is not None and not path.is_dir():
        raise DataError(f"{path}: no such folder; expected one with raw/forget.json, verbmem/forget.json, …")
    problems: list[str] = []

    def table(table_name: str, fields: Sequence[str], needed: bool = True) -> list[dict[str, str]]:
        if path is None:
            rows = _from_hub(HUB_NAMES[name], table_name, revision)
        else:
            rows = _from_folder(path, table_name, needed, problems)
        found = [values for row in rows if (values := _texts(row, fields, problems)) is not None]
        if needed and not rows and not problems:
            problems.append(f"{path or HUB_NAMES[name]}: the table {table_name} is empty")
        return found

    forget = "raw/forget" if forget_set == "raw" else f"scal/forget_{forget_set.removeprefix('scal_')}"
    tables: dict[str, list[dict[str, str]]] = {
        "forget": table(forget, ("text",)),
        "retain": table("raw/retain2", ("text",)),
        "verbmem": table("verbmem/forget", ("prompt", "gt")),
        "members": table("privleak/forget", ("text",)),
        "holdout": table("privleak/holdout", ("text",)),
    }
    for key in ("forget", "retain"):
        tables[f"knowmem_{key}"] = table(f"knowmem/{key}_qa", _QUESTIONS)
        tables[f"knowmem_{key}_examples"] = table(f"knowmem/{key}_qa_icl", _QUESTIONS, False)
    raise_if_any(path or HUB_NAMES[name], problems)
    return assemble(name, tables, cut)


def assemble(name: str, tables: Mapping[str, Sequence[Mapping[str, str]]], cut: Cut) -> Corpus:
    """The corpus of these tables.

    Every piece of a text is a record: `muse-forget-0007-p002` is the third piece of the eighth text to forget, and its
    subject the text, `muse-forget-0007`. Of texts whose membership is asked the first piece is taken.
    """
    train: list[Record] = []
    forget_ids: set[str] = set()
    for group in ("forget", "retain"):
        texts = cut([row["text"] for row in tables[group]])
        records = [r for i, pieces in enumerate(texts) for r in _pieces(f"muse-{group}-{i:04d}", pieces)]
        train += records
        forget_ids |= {r.id for r in records} if group == "forget" else set()
    evaluation: dict[str, tuple[Record, ...]] = {}
    for key in ("members", "holdout"):
        texts = cut([row["text"] for row in tables[key]])
        evaluation[key] = tuple(r for i, p in enumerate(texts) for r in _pieces(f"muse-{key}-{i:04d}", p[:1]))
    for key, rows in tables.items():
        if key.startswith(("verbmem", "knowmem")) and rows:
            first, second = ("prompt", "gt") if key == "verbmem" else _QUESTIONS
            label = key.replace("_", "-")
            evaluation[key] = tuple(
                Record(f"muse-{label}-{i:04d}", row[first], row[second], f"muse-{label}-{i:04d}")
                for i, row in enumerate(rows)
            )
    return Corpus(name, tuple(train), frozenset(forget_ids), evaluation)


def _pieces(subject: str, pieces: Sequence[tuple[tuple[int, ...], str]]) -> list[Record]:
    return [Record(f"{subject}-p{i:03d}", "", text, subject, tokens=tokens) for i, (tokens, text) in enumerate(pieces)]


def _texts(row: Row, fields: Sequence[str], problems: list[str]) -> dict[str, str] | None:
    """The fields of a row, None after adding what is wrong with them to `problems`."""
    wrong = [f for f in fields if not isinstance(row.values.get(f), str) or not row.values[f].strip()]
    problems += [
        f"{row.where}: field {f!r} is missing" if f not in row.values else f"{row.where}: {f} must be a non-empty text"
        for f in wrong
    ]
    return None if wrong else {f: row.values[f] for f in fields}


def find_table(folder: Path, name: str) -> list[Path]:
    """The files that hold a table, in order; empty where there is none."""
    stem = folder / name
    for suffix in SUFFIXES:
        if (file := stem.with_name(stem.name + suffix)).is_file():
            return [file]
    return sorted(stem.parent.glob(f"{stem.name}-*.parquet"))


def _from_folder(folder: Path, name: str, needed: bool, problems: list[str]) -> list[Row]:
    files = find_table(folder, name)
    if not files and needed:
        problems.append(f"{folder} has no table {name}; expected {name} with one of {', '.join(SUFFIXES)}")
    return [row for file in files for row in _read(file, problems)]


def _read(file: Path, problems: list[str]) -> list[Row]:
    if file.suffix == ".jsonl":
        return list(read_rows(file, problems))
    try:
        if file.suffix == ".txt":
            return [Row(file.name, {"text": read_bytes(file).decode("utf-8-sig")})]
        need_file(file)
        if file.suffix == ".parquet":
            import pyarrow.parquet

            values: Any = pyarrow.parquet.read_table(file).to_pylist()
        else:
            values = parse_json(read_bytes(file))
    except FileError as error:
        problems.append(str(error))
        return []
    except (OSError, ValueError) as error:
        problems.append(f"{file}: cannot be read ({str(error).splitlines()[0]})")
        return []
    if not isinstance(values, list):
        problems.append(f"{file}: expected a list of objects, found {type(values).__name__}")
        return []
    rows = [{"text": value} if isinstance(value, str) else value for value in values]
    for i, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            problems.append(f"{file.name} row {i}: expected an object")
    return [
        Row(f"{file.parent.name}/{file.name} row {i}", row) for i, row in enumerate(rows, 1) if isinstance(row, dict)
    ]


def _from_hub(hub_name: str, name: str, revision: str | None) -> list[Row]:
    import datasets

    configuration, split = name.split("/")
    try:
        table = datasets.load_dataset(hub_name, configuration, split=split, revision=revision)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"cannot load {name} of {hub_name} from the Hugging Face hub: {reason}\n"
            "  without network set data.path to a folder with MUSE's tables (raw/forget.json, verbmem/forget.json, …)"
        ) from error
    return [Row(f"{hub_name}/{name} row {i}", dict(values)) for i, values in enumerate(table, start=1)]  # type: ignore[arg-type]
