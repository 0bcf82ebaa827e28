"""The tables of a benchmark, from a folder or from the Hugging Face hub: rows with their place.

In a folder the table `raw/forget` is `raw/forget.json` (a list of objects, or of texts where the only field is `text`),
`raw/forget.jsonl` (a line each), `raw/forget.parquet`, or in any other format of `oblivionis.row_files`;
`raw/forget.txt` (the whole file is one text); several files `raw/forget-….parquet`; or all such files in a folder
`raw/forget`, in the order of their names, as on the hub.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from oblivionis.data.errors import DataError
from oblivionis.errors import FileError
from oblivionis.files import read_bytes
from oblivionis.row_files import SUFFIXES, Row, read_rows, tables

TEXT = ".txt"


def find_table(folder: Path, name: str) -> list[Path]:
    """The files that hold a table, in order; empty where there is none."""
    return next(iter(tables(folder, name, (*SUFFIXES, TEXT))), [])


def from_folder(
    folder: Path,
    names: Sequence[str],
    problems: list[str],
    *,
    needed: bool = True,
    limit: int | None = None,
) -> list[Row]:
    """The first `limit` rows of the table that is called one of `names`; what is wrong goes to `problems`."""
    files = next((found for name in names if (found := find_table(folder, name))), [])
    before = len(problems)
    rows = list(islice((row for file in files for row in read(file, problems)), limit))
    if needed and not files:
        known = " or ".join(names)
        problems.append(f"{folder} has no table {known}; expected {names[0]} with one of {', '.join(SUFFIXES)}, {TEXT}")
    elif needed and not rows and len(problems) == before:
        problems.append(f"{folder}: the table {names[0]} is empty")
    return rows


def read(file: Path, problems: list[str]) -> Iterator[Row]:
    """The rows of a file of a table, whose places name its folder too; what is wrong goes to `problems`."""
    if file.suffix != TEXT:
        yield from read_rows(file, problems, name=f"{file.parent.name}/{file.name}", texts=True)
        return
    try:
        yield Row(file.name, {"text": read_bytes(file).decode("utf-8-sig")})
    except FileError as error:
        problems.append(str(error))
    except (OSError, ValueError) as error:
        problems.append(f"{file}: cannot be read ({str(error).splitlines()[0]})")


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
            f"cannot load {name} of {repository} from the Hugging Face hub: {reason}; "
            f"without network set data.path to a folder with {instead}"
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
