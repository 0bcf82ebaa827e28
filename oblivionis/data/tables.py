"""The tables of a benchmark, from a folder or from the Hugging Face hub: rows with their place.

In a folder the table `raw/forget` is `raw/forget.json` (a list of objects, or of texts where the only field is `text`),
`raw/forget.jsonl` (a line each), `raw/forget.parquet`, `raw/forget.txt` (the whole file is one text), several files
`raw/forget-….parquet`, or all such files in a folder `raw/forget`, in the order of their names, as on the hub.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from oblivionis.data.errors import DataError
from oblivionis.data.jsonl import Row, read_rows
from oblivionis.errors import FileError
from oblivionis.files import need_file, parse_json, read_bytes

SUFFIXES = (".json", ".jsonl", ".parquet", ".txt")


def find_table(folder: Path, name: str) -> list[Path]:
    """The files that hold a table, in order; empty where there is none."""
    stem = folder / name
    for suffix in SUFFIXES:
        if (file := stem.with_name(stem.name + suffix)).is_file():
            return [file]
    if stem.is_dir():
        return sorted(file for file in stem.iterdir() if file.suffix in SUFFIXES)
    return sorted(stem.parent.glob(f"{stem.name}-*.parquet"))


def from_folder(
    folder: Path,
    names: Sequence[str],
    problems: list[str],
    *,
    needed: bool = True,
    limit: int | None = None,
    single: bool = False,
) -> list[Row]:
    """The first `limit` rows of the table that is called one of `names`; what is wrong goes to `problems`.

    single: JSON that is one object is a row.
    """
    files = next((found for name in names if (found := find_table(folder, name))), [])
    before = len(problems)
    rows = list(islice((row for file in files for row in read(file, problems, single=single)), limit))
    if needed and not files:
        known = " or ".join(names)
        problems.append(f"{folder} has no table {known}; expected {names[0]} with one of {', '.join(SUFFIXES)}")
    elif needed and not rows and len(problems) == before:
        problems.append(f"{folder}: the table {names[0]} is empty")
    return rows


def read(file: Path, problems: list[str], *, single: bool = False) -> list[Row]:
    """The rows of a file of a table, as in `from_folder`."""
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
    if single and isinstance(values, dict):
        values = [values]
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


def from_hub(
    repository: str,
    configuration: str | None,
    split: str,
    revision: str | None,
    *,
    instead: str,
    limit: int | None = None,
) -> list[Row]:
    """The first `limit` rows of a table of the hub. Raises DataError, with what folder to give `instead`."""
    import datasets

    name = f"{configuration}/{split}" if configuration else split
    streamed: Any = {} if limit is None else {"streaming": True}
    try:
        table: Any = datasets.load_dataset(repository, configuration, split=split, revision=revision, **streamed)
        rows = [dict(values) for values in islice(table, limit)]
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"cannot load {name} of {repository} from the Hugging Face hub: {reason}\n"
            f"  without network set data.path to a folder with {instead}"
        ) from error
    return [Row(f"{repository}/{name} row {i}", values) for i, values in enumerate(rows, start=1)]


def texts(row: Row, fields: Sequence[str], problems: list[str]) -> dict[str, str] | None:
    """The fields of a row, None after adding what is wrong with them to `problems`."""
    wrong = [f for f in fields if not isinstance(row.values.get(f), str) or not row.values[f].strip()]
    problems += [
        f"{row.where}: field {f!r} is missing" if f not in row.values else f"{row.where}: {f} must be a non-empty text"
        for f in wrong
    ]
    return None if wrong else {f: row.values[f] for f in fields}
