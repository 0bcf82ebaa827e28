"""Hash-chained JSON lines: each line names the hash of the line before it, so that a tampered ledger shows.

The hash of a line is the SHA-256 of its JSON without `hash`, with sorted keys and no white space, in UTF-8. Lines from
before ledgers were chained have neither `prev` nor `hash`; they count as if they had, so that the first chained line
covers them. Who can rewrite a whole file can make a new chain: against that, another party must keep its head.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from oblivionis.errors import RunError
from oblivionis.files import append_lines, is_torn, parse_json, read_bytes

PREV, HASH = "prev", "hash"
GENESIS = "0" * 64
"""What the first line names as the hash before it."""


Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check of every line of a chained file found.

    `entries` are its readable lines; `hashes` has the hash of each in order, `head` is the last (`GENESIS` without
    any). `faults` say where the chain is broken, with the line; `remarks` what is worth knowing but no fault.
    `torn_end`: the last line is the beginning of one, as a kill leaves it; that is among the faults, too.
    """

    path: Path
    entries: tuple[Mapping[str, Any], ...]
    hashes: tuple[str, ...]
    faults: tuple[str, ...]
    remarks: tuple[str, ...]
    torn_end: bool = False

    @property
    def altered(self) -> tuple[str, ...]:
        """The faults that no kill explains."""
        return self.faults[:-1] if self.torn_end else self.faults

    @property
    def head(self) -> str:
        return self.hashes[-1] if self.hashes else GENESIS


def line_hash(entry: Mapping[str, Any]) -> str:
    """The SHA-256 of `entry`, its own `hash` left out, in hexadecimal digits."""
    body = {key: value for key, value in entry.items() if key != HASH}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def linked(entry: Mapping[str, Any], head: str) -> dict[str, Any]:
    """`entry` as the line after the one whose hash is `head`."""
    body = {**entry, PREV: head}
    return {**body, HASH: line_hash(body)}


def head_of(entries: Iterable[Mapping[str, Any]]) -> str:
    """The hash that the line after `entries` has to name."""
    head = GENESIS
    for entry in entries:
        head = _hash_after(entry, head)
    return head


def append_linked(path: Path, entry: Mapping[str, Any], head: str) -> dict[str, Any]:
    """Append `entry` after `head`, durably; returns the line as it was written."""
    return append_all(path, [entry], head)[0]


def append_all(path: Path, entries: Iterable[Mapping[str, Any]], head: str) -> list[dict[str, Any]]:
    """Append `entries` one after another, durably and at once; returns the lines as they were written."""
    lines: list[dict[str, Any]] = []
    for entry in entries:
        lines.append(linked(entry, lines[-1][HASH] if lines else head))
    append_lines(path, lines)
    return lines


class Chain:
    """The end of a chained file that several processes and objects append to.

    `head` and `count`: hash and number of the last line that was read; whoever keeps both can find out later
    whether lines were cut off its end.
    """

    def __init__(self, path: Path, data: bytes = b"") -> None:
        """`data`: what was read of the file already."""
        self.path, self.head, self.count, self._end = path, GENESIS, 0, 0
        self._take_up(data)

    def look(self) -> Lines:
        """The lines that were appended since they were last read, torn ones left out."""
        try:
            with open(self.path, "rb") as handle:
                handle.seek(self._end)
                return self._take_up(handle.read())
        except FileNotFoundError:
            return []

    def append(self, entries: Iterable[Mapping[str, Any]]) -> tuple[Lines, Lines]:
        """Append `entries` durably; returns the lines that others appended before, and these as they were written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(f".{self.path.name}.lock")):
            before = self.look()
            lines = append_all(self.path, entries, self.head)
            self.look()
        return before, lines

    def _take_up(self, data: bytes) -> Lines:
        *whole, rest = data.split(b"\n")
        found = [entry for line in whole if (entry := _parsed(line.decode(errors="replace"))) is not None]
        self._end += len(data) - len(rest)
        if (entry := _parsed(rest.decode(errors="replace"))) is not None:  # only its end of line is missing
            found.append(entry)
            self._end += len(rest)
        for entry in found:
            self.head = _hash_after(entry, self.head)
        self.count += len(found)
        return found


def check_chain(path: Path) -> Checked:
    """Check every line of `path`. RunError when the file cannot be read.

    An altered line, and one that was removed, added or moved, is a fault where it stands. So is a last line that is no
    JSON: a crash tore it, or it was altered; a torn line in the middle, over which the chain goes on, is a remark.
    Lines cut off at the end leave no trace here.
    """
    try:
        lines = read_bytes(path).decode(errors="replace").split("\n")
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    entries: list[Mapping[str, Any]] = []
    hashes: list[str] = []
    faults: list[str] = []
    torn: list[int] = []
    old: list[int] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if (entry := _parsed(line)) is None:
            torn.append(number)
            continue
        head = hashes[-1] if hashes else GENESIS
        if HASH not in entry and PREV not in entry and len(old) == len(entries):
            old.append(number)
        else:
            faults += [f"line {number}: {fault}" for fault in _faults(entry, line, head)]
        entries.append(entry)
        hashes.append(_hash_after(entry, head))
    last = max((number for number, line in enumerate(lines, start=1) if line.strip()), default=0)
    remarks = [f"line {n}: torn by a crash and never part of the chain" for n in torn if n != last]
    if old and len(old) == len(entries):
        faults.append("its lines have no hashes: written by an older version, or the hashes were taken out")
    elif old:
        remarks.append(f"lines up to {old[-1]} were written by an older version; the hash of the next covers them")
    if last in torn:
        faults.append(f"line {last}: cannot be read: torn by a crash, or altered")
    torn_end = last in torn and is_torn(lines[last - 1])
    return Checked(path, tuple(entries), tuple(hashes), tuple(faults), tuple(remarks), torn_end)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        value = parse_json(line, unique=False)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _hash_after(entry: Mapping[str, Any], head: str) -> str:
    given = entry.get(HASH)
    return given if isinstance(given, str) else line_hash({**entry, PREV: head})


def _faults(entry: Mapping[str, Any], line: str, head: str) -> Iterable[str]:
    if HASH not in entry or PREV not in entry:
        yield "has no hash, though lines before it have"
        return
    if entry[HASH] != _own_hash(entry):
        yield "altered: its hash does not fit what it says"
    elif json.dumps(entry, ensure_ascii=False) != line:  # a key given twice, say, which readers may take differently
        yield "altered: it says the same, but not as it was written"
    if entry[PREV] != head:
        yield "does not follow the line before it: one was removed, added, altered or moved"


def _own_hash(entry: Mapping[str, Any]) -> str | None:
    try:
        return line_hash(entry)
    except ValueError:  # NaN and infinity: Python reads them, but no ledger of ours holds them
        return None
