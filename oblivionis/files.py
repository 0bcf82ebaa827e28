"""Files that are whole or absent: atomic replacement, durable append, and reading that tells what is wrong.

What is read is a regular file: reading a pipe or a terminal could wait for ever, so that is an error.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from oblivionis.errors import FileError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
warned: set[str] = set()
"""What `tell` has said."""


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replace `path` by `data` in one step that survives a crash (temporary file, fsync, rename, folder fsync)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    payload = data.encode() if isinstance(data, str) else data
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with _naming(path), os.fdopen(descriptor, "wb") as handle:
            handle.write(payload)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove_torn(folder: Path) -> None:
    """Remove from `folder` and below what a process that was killed within `write_atomic` left behind."""
    for torn in folder.rglob(".*.tmp"):
        if torn.is_file():
            torn.unlink()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of writing say where: the operating system tells it of names only."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


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
    """Write `value` as `json_text`, atomically."""
    write_atomic(path, json_text(value))


def json_text(value: Any) -> str:
    """`value` as indented JSON. NaN and infinity are refused (ValueError): they are no JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def append_lines(path: Path, rows: Iterable[Any]) -> None:
    """Append one JSON line per row and sync. A line torn by an earlier crash is closed off first."""
    text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    if not text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with _naming(path), open(path, "ab+") as handle:
        if handle.tell() > 0:
            handle.seek(-1, os.SEEK_END)
            if handle.read(1) != b"\n":
                text = "\n" + text
        handle.write(text.encode())
        handle.flush()
        os.fsync(handle.fileno())


def read_bytes(path: Path) -> bytes:
    """What the regular file `path` holds. FileNotFoundError without one; FileError for all else that prevents it."""
    try:
        need_file(path)
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise FileError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def need_file(path: Path) -> None:
    """FileError where `path` is no regular file; OSError, such as FileNotFoundError, where its state cannot be read."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        found = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise FileError(f"{path} cannot be read: expected a file, found {found}")


def parse_json(text: str | bytes, *, finite: bool = True, unique: bool = True) -> Any:
    """The value of a JSON text from outside; a run's own logs may hold NaN and infinity (finite=False).

    Raises ValueError, never anything else, also for what Python's reader takes or chokes on: NaN and infinity, numbers
    beyond float64 or of more than 4,300 digits, nesting beyond its stack, bytes that are no UTF-8, half a character (a
    lone surrogate) and, where `unique`, a key given twice in an object. Its first line says what is wrong.
    """
    pairs = _unique if unique else None
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        if finite:
            value = json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=pairs)
        else:
            value = json.loads(text, object_pairs_hook=pairs)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"{error.msg.removesuffix(' at')} at {line}column {error.colno}") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except UnicodeEncodeError:
        raise ValueError("half a character (a lone surrogate) in a text") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError("a number of too many digits" if "digits" in str(error) else str(error)) from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:20]} is no number that a computer holds")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {json.dumps(twice[:60])} is given twice")
    return found


def checked(value: Any, shape: Any) -> Any:
    """`value`, once it is of the `shape`, a type such as a TypedDict. ValueError says which key is not, and why."""

    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `")
        key = path.rstrip("`").removeprefix("$").removeprefix(".")
        raise ValueError(f"{key}: {_lowered(text)}" if key else _lowered(text)) from None
    except OverflowError:
        raise ValueError("a number of too many digits") from None
    return value


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def read_json(path: Path, shape: Any = dict[str, Any], *, finite: bool = True) -> Any:
    """The JSON value in `path`, of the `shape`. FileNotFoundError without a file; else FileError, with the key."""
    data = read_bytes(path)
    try:
        return checked(parse_json(data, finite=finite), shape)
    except ValueError as error:
        raise FileError(f"{path}: {error}") from None


def read_lines(path: Path, shape: Any = dict[str, Any], *, finite: bool = False) -> list[dict[str, Any]]:
    """All whole lines of `path`, JSON objects of the `shape`, in order; [] without a file.

    A line torn by a crash, the beginning of an object, is left out and reported once (but not where a chained line
    follows it: the chain goes on over it), and so is a file without any line. Any other line that is no such object is
    a FileError, with the line and the key.
    """
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return []
    return parse_lines(path, data, shape, finite=finite)


def parse_lines(path: Path, data: bytes, shape: Any = dict[str, Any], *, finite: bool = False) -> list[dict[str, Any]]:
    """The same of `data`, which were read from `path`."""
    rows: list[dict[str, Any]] = []
    torn: list[int] = []
    lines = data.decode(errors="replace").split("\n")  # U+2028 and its like end no line here
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = checked(parse_json(line, finite=finite), shape)
        except ValueError as error:
            if not is_torn(line):
                raise FileError(f"{path}:{number}: {error}") from None
            torn.append(number)
            continue
        if "prev" in row:
            torn.clear()
        rows.append(row)
    if not rows and not torn:
        tell(f"{path} is empty: a crash, or somebody emptied it")
    for number in torn:
        tell(f"{path}:{number} is torn, by a crash perhaps, and left out")
    return rows


def is_torn(line: str) -> bool:
    """Whether `line`, which is no JSON, is the beginning of a JSON object, as a crash leaves it."""
    line = line.rstrip("\0").rstrip()
    if not line:
        return True  # the file grew, and nothing was written
    if not line.startswith("{"):
        return False
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        return error.pos >= len(line) or not line.endswith("}")
    except (ValueError, RecursionError):
        pass
    return False


def tell(text: str) -> None:
    """Warn of a file or a line that is left out, once."""
    if text not in warned:
        warned.add(text)
        print(f"warning: {text}", file=sys.stderr)
