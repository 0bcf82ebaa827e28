"""Files that are whole or absent: atomic replacement, durable append, tolerant reading of the last line."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replace `path` by `data` in one step that survives a crash (temporary file, fsync, rename, folder fsync)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    payload = data.encode() if isinstance(data, str) else data
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(payload)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` the same file as `source`, or a copy of it where the file system cannot link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. NaN and infinity are refused (ValueError): they are no JSON."""
    write_atomic(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def append_lines(path: Path, rows: Iterable[Any]) -> None:
    """Append one JSON line per row and sync. A line torn by an earlier crash is closed off first."""
    text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    if not text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as handle:
        if handle.tell() > 0:
            handle.seek(-1, os.SEEK_END)
            if handle.read(1) != b"\n":
                text = "\n" + text
        handle.write(text.encode())
        handle.flush()
        os.fsync(handle.fileno())


def parse_json(text: str | bytes, *, finite: bool = True) -> Any:
    """The value of a JSON text that somebody else wrote; a run's own logs may hold NaN and infinity (finite=False).

    Raises ValueError, never anything else, also for what Python's reader takes or chokes on: NaN and infinity, numbers
    of more than 4,300 digits, nesting beyond its stack, bytes that are no UTF-8. Its first line says what is wrong.
    """
    try:
        return json.loads(text, parse_constant=_refuse if finite else None)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno}") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError("a number of too many digits" if "digits" in str(error) else str(error)) from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines of `path`, JSON objects, in order; [] without a file. Lines torn by a crash are left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().decode(errors="replace").split("\n"):  # U+2028 and its like end no line here
        try:
            row = parse_json(line, finite=False)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
