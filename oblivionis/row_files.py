"""Rows of a file, whatever its format: JSON lines, a JSON list, CSV, parquet, Arrow, or a folder of `datasets`.

The content tells the format; the ending counts only where the content leaves a choice, as between a line of text and a
CSV header. JSON and CSV are read by the standard library and not by `datasets`, whose readers guess types (the answer
`1958-05-03` becomes a time, the id `007` a 7, the answer `NA` nothing), stop at the first fault and leave a copy of
all records in a cache, which no deletion reaches. Parquet and Arrow are read by pyarrow, as `datasets` does it, without
that copy; what `save_to_disk` wrote is read by `datasets`.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from oblivionis.errors import FileError
from oblivionis.files import parse_json, read_bytes
from oblivionis.naming import unfit_character

SUFFIXES = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow", ".feather")
"""Endings of files with rows, in the order in which they are tried."""
FORMATS = "JSON lines, a JSON list, CSV, parquet, Arrow or a folder of save_to_disk"

_BOM = b"\xef\xbb\xbf"
_JSON = (".jsonl", ".ndjson", ".json")
_COLUMNAR = (".parquet", ".arrow", ".feather")
_DELIMITERS = ",;\t|"
_ANNOUNCED = re.compile(rf'"?sep=([{_DELIMITERS}])"?(\r\n?|\n)')
"""A first line that tells Excel the delimiter."""
_BATCH = 1000
csv.field_size_limit(2**31 - 1)  # of 131,072 characters otherwise, less than a book has
_FOREIGN = (
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook or another file of Microsoft Office"),
    (b"FEA1", "a Feather file of version 1"),
    (b"version https://git-lfs.", "a pointer of Git LFS and not the file itself (git lfs pull)"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"%PDF", "a PDF file"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
"""How files of other kinds begin, the first that fits counts."""


class Row(NamedTuple):
    """One row of a source, and where it stands there: `train.jsonl:17`, or `train.parquet row 17`, from 1.

    `cells`: the values are texts of cells, which have no type, as in CSV. `names`: what a field is called in the source
    where it is not called as in `values`.
    """

    where: str
    values: Mapping[str, Any]
    cells: bool = False
    names: Mapping[str, str] = {}

    def called(self, field: str) -> str:
        """What the source calls a field."""
        return self.names.get(field, field)

    def value(self, field: str) -> Any:
        """The value of a field that may be a list: of a cell that holds a JSON list, that list. None without it."""
        value = self.values.get(field)
        if self.cells and isinstance(value, str) and value.lstrip().startswith("["):
            try:
                return parse_json(value)
            except ValueError:
                return value
        return value


def is_saved(path: Path) -> bool:
    """Whether `path` is a folder that `save_to_disk` of `datasets` wrote."""
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def is_hub_name(path: str) -> bool:
    """Whether `path` reads as a data set of the Hugging Face hub, `owner/name`, and nothing of that name lies here."""
    named = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path)
    return bool(named) and Path(path).suffix.lower() not in (*SUFFIXES, ".txt") and not Path(path).exists()


def tables(folder: Path, name: str, suffixes: Sequence[str] = SUFFIXES) -> list[list[Path]]:
    """All that holds the table `name` in a folder: a list of one file, or of the parts of a table in their order.

    The table is `name.jsonl`, … (`suffixes`), files `name-….parquet`, or a folder `name`: one of `save_to_disk`, or one
    with files of these endings.
    """
    stem = folder / name
    found = [[file] for suffix in suffixes if (file := stem.with_name(stem.name + suffix)).is_file()]
    if is_saved(stem):
        found.append([stem])
    elif stem.is_dir() and (parts := sorted(file for file in stem.iterdir() if file.suffix in suffixes)):
        found.append(parts)
    if parts := sorted(stem.parent.glob(f"{stem.name}-*.parquet")):
        found.append(parts)
    return found


def table(path: Path, name: str) -> list[Path]:
    """The parts of the table `name` in the folder `path`; `path` itself where it holds rows.

    Raises FileError where the folder has no such table, more than one, or not all parts of it.
    """
    if is_saved(path) or not path.is_dir():
        return [path]
    found = tables(path, name)
    if len(found) == 1:
        need_all_parts(found[0])
        return found[0]
    if found:
        several = " and ".join(parts[0].name for parts in found)
        raise FileError(f"{path} holds {several}: expected one of them, or the path of the one that counts")
    others = [file.name for file in row_files(path)]
    here = f"; it holds {', '.join(others[:5])}{', …' if len(others) > 5 else ''}" if others else ""
    raise FileError(f"there is no file {path / name}.jsonl (or {', '.join(SUFFIXES[1:])}){here}")


def need_all_parts(files: Iterable[Path]) -> None:
    """Raise FileError where names such as `train-00003-of-00012.parquet` tell of parts that are not among `files`."""
    there: dict[tuple[str, str], list[Path]] = {}
    for file in files:
        if named := re.fullmatch(r"(.+)-\d+-of-(\d+)(\.\w+)", file.name):
            there.setdefault((f"{named[1]}-…-of-{named[2]}{named[3]}", named[2]), []).append(file)
    for (name, count), parts in there.items():
        if len(parts) < int(count):
            raise FileError(f"{parts[0].parent} holds {len(parts)} of {int(count)} parts {name}: expected all of them")


def row_files(folder: Path) -> list[Path]:
    """All in a folder that holds rows, by the ending, sorted by name: files, and folders of `save_to_disk`."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES or is_saved(path))


def count_lines(path: Path) -> int | None:
    """The rows of a file of JSON lines, without reading them; None for every other format, and for a single line.

    An object alone may be a whole table, which reading tells.
    """
    with path.open("rb") as lines:
        first = next((line.strip() for line in lines if line.strip()), b"").removeprefix(_BOM)
        if not (first.startswith(b"{") and first.endswith(b"}")):
            return None
        more = sum(1 for line in lines if line.strip())
    return 1 + more if more else None


def read_rows(path: Path, problems: list[str], *, name: str | None = None, texts: bool = False) -> Iterator[Row]:
    """The rows of a file, or of a folder of `save_to_disk` (of several splits: of `train`). Blank lines are none.

    What cannot be read goes to `problems`, with its place; where it is the whole file, in one line that says what the
    file is. name: what places call the file, else its own name. texts: a text in a JSON list is a row with the field
    `text`.
    """
    name = path.name if name is None else name
    if is_saved(path):
        yield from _saved(path, name, problems)
        return
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        problems.append(f"{path}: file not found; expected {FORMATS}")
        return
    except FileError as error:
        problems.append(str(error))
        return
    suffix = path.suffix.lower()
    start = data[:4096].removeprefix(_BOM).lstrip()
    if data.startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")):
        yield from _columns(data, path, name, problems)
    elif foreign := _foreign(data):
        problems.append(f"{path}: {foreign}; expected {FORMATS}")
    elif suffix in _COLUMNAR and not start.startswith((b"[", b"{")):
        found = "text" if start else "an empty file"
        problems.append(f"{path}: cannot be read ({found}, and no {suffix[1:]} file)")
    elif _is_json(data, start, suffix):
        yield from _json(data, path, name, problems, texts)
    else:
        yield from _csv(data, path, name, problems)


def _foreign(data: bytes) -> str:
    """What a file is that holds no rows; empty where it may hold some."""
    if data.startswith(b"PK\x03\x04"):
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                inside = archive.namelist()
        except zipfile.BadZipFile:
            inside = []
        is_workbook = any(entry.startswith("xl/") for entry in inside)
        return "an Excel workbook: save it as CSV (UTF-8)" if is_workbook else "a zip archive"
    found = next((what for magic, what in _FOREIGN if data.startswith(magic)), "")
    if found or b"\0" not in (start := data[:1000]):
        return found
    nulls = sorted(start[side::2].count(b"\0") for side in (0, 1))
    return "UTF-16 text" if nulls[0] == 0 and nulls[1] * 3 > len(start) else "a binary file of no known kind"


def _is_json(data: bytes, start: bytes, suffix: str) -> bool:
    """Whether text is to be read as JSON, in lines or as one value, else as CSV."""
    if start.startswith((b"[", b"{")):
        return suffix not in (".csv", ".tsv") or _parses(_first_line(data)) or _parses(data)
    if suffix not in _JSON:
        return not start
    if b"\n{" in data:
        return True
    lines = data.removeprefix(_BOM).lstrip()[:65536].decode(errors="replace").splitlines()[:2]
    widths = {d: {len(next(csv.reader([line], delimiter=d))) for line in lines} for d in _DELIMITERS}
    return len(lines) < 2 or not any(len(width) == 1 and width != {1} for width in widths.values())


def _first_line(data: bytes) -> bytes:
    return data.removeprefix(_BOM).lstrip().partition(b"\n")[0].strip()


def _parses(text: bytes) -> bool:
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


def _json(data: bytes, path: Path, name: str, problems: list[str], texts: bool) -> Iterator[Row]:
    """JSON lines, a list, or one object, which is a row."""
    body = data.removeprefix(_BOM).strip()
    first = _first_line(data)
    is_list = first.startswith(b"[")
    if is_list or (first.startswith(b"{") and not _parses(first)):
        try:
            value = parse_json(data)
        except ValueError as error:
            if is_list and not _parses(first):
                problems.append(f"{path}: cannot be read (it begins as a JSON list, but {error})")
                return
            if first == b"{" and (first != body or path.suffix.lower() == ".json"):
                what = "objects that go over several lines, expected each on one line or a list of them"
                problems.append(f"{path}: cannot be read ({what}; as one JSON value: {error})")
                return
        else:
            if is_list:
                yield from _listed(value, path, name, problems, texts)
            elif wrong := _by_columns(value):
                problems.append(f"{path}: {wrong}")
            else:
                yield Row(f"{name} row 1", value)
            return
    for number, line in enumerate(data.removeprefix(_BOM).split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            value = parse_json(line.decode())
        except UnicodeDecodeError:
            problems.append(f"{where}: expected UTF-8 text")
        except ValueError as error:
            problems.append(f"{where}: expected a JSON object on one line, but {error}")
        else:
            if not isinstance(value, dict):
                problems.append(f"{where}: expected a JSON object, found {shown(value)}")
            elif first == body and (wrong := _by_columns(value)):
                problems.append(f"{path}: {wrong}")
            else:
                yield Row(where, value)


def _by_columns(value: Mapping[str, Any]) -> str:
    """What is wrong with the only object of a file, which has an object under each key; empty otherwise."""
    if value and all(isinstance(column, dict) for column in value.values()):
        return "one JSON object with an object under each key; expected a list of objects (pandas: orient='records')"
    return ""


def _listed(values: list[Any], path: Path, name: str, problems: list[str], texts: bool) -> Iterator[Row]:
    rows = [{"text": value} if texts and isinstance(value, str) else value for value in values]
    if rows and not any(isinstance(row, dict) for row in rows):
        kinds = " and ".join(sorted({_kind(row) for row in rows}))
        problems.append(f"{path}: a JSON list of {kinds}, expected a list of objects")
        return
    for number, row in enumerate(rows, start=1):
        if isinstance(row, dict):
            yield Row(f"{name} row {number}", row)
        else:
            problems.append(f"{name} row {number}: expected an object, found {shown(row)}")


def _kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "nulls" if value is None else "true and false"
    return "texts" if isinstance(value, str) else "lists" if isinstance(value, list) else "numbers"


def _csv(data: bytes, path: Path, name: str, problems: list[str]) -> Iterator[Row]:
    """A table with a header; an empty cell is None. Rows have the line on which they begin."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"the byte 0x{data[error.start]:02X}"
        problems.append(f"{name}:{line}: expected UTF-8 text, found {found} (Windows-1252 or Latin-1, perhaps)")
        return
    announced = _ANNOUNCED.match(text)
    skipped, delimiter = (1, announced[1]) if announced else (0, _delimiter(text))
    body = text[announced.end() :] if announced else text
    reader = csv.reader(io.StringIO(body, newline=""), delimiter=delimiter, strict=True)
    start, header = 1 + skipped, None
    try:
        for cells in reader:
            where, start = f"{name}:{start}", reader.line_num + 1 + skipped
            if not any(cells):
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                if twice := {column for column in header if column and header.count(column) > 1}:
                    problems.append(f"{path}: the column {min(twice)!r} is given twice")
                    return
            elif len(cells) != len(header):
                mark = "tab" if delimiter == "\t" else f"`{delimiter}`"
                hint = f"; a text with a {mark} in it needs quotes" if len(cells) > len(header) else ""
                problems.append(f"{where}: expected a cell for each column, {len(header)}, found {len(cells)}{hint}")
            else:
                values = {column: cell or None for column, cell in zip(header, cells, strict=True) if column}
                yield Row(where, values, cells=True)
    except csv.Error as error:
        problems.append(f"{name}:{start}: cannot be read as CSV ({error})")


def _delimiter(text: str) -> str:
    """What divides the header into the most columns."""

    def columns(delimiter: str) -> int:
        try:
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
            return len(next((cells for cells in reader if any(cells)), []))
        except csv.Error:
            return 0

    return max(_DELIMITERS, key=columns)


def _columns(data: bytes, path: Path, name: str, problems: list[str]) -> Iterator[Row]:
    """Parquet, and Arrow's IPC as a file or as a stream."""
    import pyarrow as pa
    import pyarrow.parquet

    what = "a parquet file" if data.startswith(b"PAR1") else "an Arrow file"
    with _telling(path, what, problems):
        source = pa.BufferReader(data)
        if data.startswith(b"PAR1"):
            found = pyarrow.parquet.ParquetFile(source).read()
        elif data.startswith(b"ARROW1"):
            found = pa.ipc.open_file(source).read_all()
        else:
            found = pa.ipc.open_stream(source).read_all()
        if twice := {column for column in found.column_names if found.column_names.count(column) > 1}:
            problems.append(f"{path}: the column {min(twice)!r} is given twice")
            return
        yield from _of_batches(found.to_batches(max_chunksize=_BATCH), name)


def _saved(path: Path, name: str, problems: list[str]) -> Iterator[Row]:
    """What `save_to_disk` wrote: a `Dataset`, or the split `train` of a `DatasetDict`."""
    import datasets

    with _telling(path, "a folder of save_to_disk", problems):
        found: Any = datasets.load_from_disk(str(path))
        if isinstance(found, datasets.DatasetDict):
            if "train" not in found:
                splits = ", ".join(map(str, found))
                problems.append(f"{path}: a saved DatasetDict with {splits}; expected train, or the path of one split")
                return
            found, name = found["train"], f"{name}/train"
        yield from _of_batches(found.with_format("arrow").iter(batch_size=_BATCH), name)


def _of_batches(batches: Iterable[Any], name: str) -> Iterator[Row]:
    """The rows of tables or batches of pyarrow; images and sounds stay bytes."""
    number = 0
    for batch in batches:
        for values in batch.to_pylist():
            number += 1
            yield Row(f"{name} row {number}", values)


@contextmanager
def _telling(path: Path, what: str, problems: list[str]) -> Iterator[None]:
    """Tell of whatever goes wrong: damaged files and values beyond Python's (the year 10000) fail in many ways."""
    try:
        yield
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        problems.append(f"{path}: cannot be read ({what}, but {reason})")


def shown(value: Any) -> str:
    """A value as JSON, shortened, for a message; what JSON has not, such as bytes and times, as Python writes it."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    text = json.dumps(value, default=repr) if unfit_character(text) else text
    return text if len(text) <= 40 else text[:37] + "…"
