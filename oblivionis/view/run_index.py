"""What was read of the runs below a folder, kept for the next start of the window: a file in the user's cache folder.

It does not lie beside the runs: looking at runs writes nothing there, they may be on a disk that cannot be written, and
whoever hands runs over could hand over an index with them that shows others. Each reading is kept with the state of the
files that it was made from (`oblivionis.runs.run_status.Look`), and counts only where they are still in it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from oblivionis.files import write_atomic
from oblivionis.models.cache import cache_root
from oblivionis.runs.run_status import DAMAGED, Glance, Progress, Reading
from oblivionis.version import __version__

_DIGEST = 32


@dataclass(frozen=True, slots=True)
class Kept:
    """A reading, and the digest of the files that it was made from; settled: it holds as long as they have that."""

    digest: bytes
    reading: Reading
    settled: bool = True


class RunIndex:
    """The file for the runs below `root`. What prevents reading or writing it only makes the next start slower."""

    def __init__(self, root: Path) -> None:
        self._root = os.fsencode(root)

    @property
    def path(self) -> Path:
        """Where it is."""
        return cache_root() / "view" / f"{hashlib.sha256(self._root).hexdigest()[:32]}.index"

    def load(self) -> dict[str, Kept]:
        """What was kept, by the names of runs; nothing of a damaged file, of another version's or of another user's."""
        try:
            data = _own_content(self.path)
            if data[:_DIGEST] != self._digest(data[_DIGEST:]):
                return {}
            return {name: _kept(*entry) for name, entry in msgspec.msgpack.decode(data[_DIGEST:]).items()}
        except (OSError, RuntimeError, UnicodeEncodeError):  # RuntimeError: the user has no home
            return {}

    def save(self, kept: Mapping[str, Kept]) -> None:
        """Replace the file. A damaged run is left out: what prevented reading it need not be in its files."""
        packed = {name: entry for name, one in kept.items() if (entry := _packed(one)) is not None}
        try:
            data = msgspec.msgpack.encode(packed)
            write_atomic(self.path, self._digest(data) + data)
        except (OSError, RuntimeError, UnicodeEncodeError):
            return

    def _digest(self, data: bytes) -> bytes:
        """Of the content, with what else it depends on."""
        return hashlib.blake2b(msgspec.msgpack.encode((self._root, program(), data)), digest_size=_DIGEST).digest()


def _own_content(path: Path) -> bytes:
    """The content of a file of this user's. OSError for anything else: the cache folder may be shared."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with open(number, "rb") as file:
        state = os.fstat(number)
        if not stat.S_ISREG(state.st_mode) or (hasattr(os, "geteuid") and state.st_uid != os.geteuid()):
            raise OSError(f"{path} is no file of this user's")
        return file.read()


def program() -> tuple[str, list[tuple[bytes, int, int]]]:
    """The version of the program, and its code files with their states: between two versions they change, too."""
    files = []
    for folder, _, names in os.walk(Path(__file__).parents[1]):
        for path in (os.path.join(folder, name) for name in names if name.endswith(".py")):
            state = os.stat(path)
            files.append((os.fsencode(path), state.st_mtime_ns, state.st_size))
    return __version__, sorted(files)


def _packed(kept: Kept) -> msgspec.Raw | None:
    glance = kept.reading.glance
    if glance.state == DAMAGED:
        return None
    try:
        return msgspec.Raw(msgspec.msgpack.encode((kept.digest, kept.reading.others, glance)))
    except (OverflowError, UnicodeEncodeError):  # numbers and texts that the format does not know
        return None


def _kept(digest: bytes, others: list[str], glance: dict[str, Any]) -> Kept:
    stages = tuple(Progress(**stage) for stage in glance["stages"])
    curve = tuple((x, y) for x, y in glance["curve"])
    return Kept(digest, Reading(Glance(**{**glance, "stages": stages, "curve": curve}), tuple(others)))
