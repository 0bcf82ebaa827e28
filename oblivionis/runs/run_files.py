"""Files of a run that match patterns, and their states, with one look at each folder: a folder may hold thousands of
runs, and what was read of one is true until such a file changes, comes or goes."""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec


class Seen(NamedTuple):
    """A file or folder of a run, with the state of what a link leads to: when it was last written, and last changed in
    any way, in ns since the epoch; its bytes; its number on the disk (all 0 for a broken link). name: from the run, as
    the operating system has it; wanted: it matches a whole pattern, and is no folder on the way alone."""

    name: bytes
    is_link: bool
    wanted: bool
    written: int = 0
    changed: int = 0
    size: int = 0
    inode: int = 0


@dataclass(frozen=True, slots=True)
class _Level:
    """What is looked for in a folder: names and patterns, and what below them."""

    wanted: bool
    names: Mapping[bytes, _Level]
    patterns: tuple[tuple[re.Pattern[bytes], _Level], ...]


def seen(folder: Path, patterns: tuple[str, ...]) -> list[Seen]:
    """What of `folder` the patterns name, as `Path.glob` finds it, and the folders on the way."""
    found: list[Seen] = []
    _walk(os.path.join(os.fsencode(folder), b""), b"", _levels(patterns), found)
    return found


def matching(folder: Path, patterns: tuple[str, ...]) -> list[str]:
    """The names that match a pattern, in the order of paths."""
    names = {os.fsdecode(one.name) for one in seen(folder, patterns) if one.wanted}
    return sorted(names, key=lambda name: name.split("/"))


@functools.lru_cache(4096)
def covered(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether `matching` finds a file by this very name."""
    parts = name.split("/")
    ways = (pattern.split("/") for pattern in patterns)
    return not {"", ".", ".."} & set(parts) and any(
        len(way) == len(parts) and all(map(fnmatch.fnmatchcase, parts, way)) for way in ways
    )


def at(folder: Path, name: str) -> Seen:
    """The state of the file `name` of a run; all 0 where there is none."""
    encoded = os.fsencode(name)
    return _at(os.path.join(os.fsencode(folder), encoded), encoded, wanted=True) or Seen(encoded, False, True)


def digest(files: Iterable[Seen]) -> bytes:
    """16 bytes that are others as soon as one of `files` is written, replaced or gone, or one more is there.

    The time of change (ctime) is among the states: unlike that of writing, no program can set it.
    """
    return hashlib.blake2b(msgspec.msgpack.encode(sorted(files)), digest_size=16).digest()


@functools.cache
def _levels(patterns: tuple[str, ...]) -> _Level:
    """The patterns as a tree of folders."""
    tree: dict[str, dict] = {}
    for pattern in patterns:
        place = tree
        for part in pattern.split("/"):
            place = place.setdefault(part, {})
        place[""] = {}
    return _level(tree)


def _level(tree: Mapping[str, dict]) -> _Level:
    below = {part: _level(of) for part, of in tree.items() if part}
    names = {os.fsencode(part): level for part, level in below.items() if "*" not in part}
    wild = [(re.compile(os.fsencode(fnmatch.translate(part))), level) for part, level in below.items() if "*" in part]
    return _Level("" in tree, names, tuple(wild))


def _walk(folder: bytes, prefix: bytes, level: _Level, found: list[Seen]) -> None:
    try:
        names = os.listdir(folder)
    except OSError:  # a folder may let its files be read by their names alone
        names = list(level.names)
    for part in names:
        exact = level.names.get(part)
        if exact is not None:
            _take(folder + part, prefix + part, exact, found)
        for pattern, below in level.patterns:
            if pattern.match(part) and not _take(folder + part, prefix + part, below, found):
                found.append(Seen(prefix + part, True, below.wanted))  # a broken link; or it is gone by now


def _take(path: bytes, name: bytes, level: _Level, found: list[Seen]) -> bool:
    """Add a file that is there, and what is looked for below it."""
    one = _at(path, name, wanted=level.wanted)
    if one is None:
        return False
    found.append(one)
    if level.names or level.patterns:
        _walk(path + b"/", name + b"/", level, found)
    return True


def _at(path: bytes, name: bytes, *, wanted: bool) -> Seen | None:
    """A file that is there; links are followed."""
    try:
        state = os.lstat(path)
        if link := stat.S_ISLNK(state.st_mode):
            state = os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None
    return Seen(name, link, wanted, state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino)
