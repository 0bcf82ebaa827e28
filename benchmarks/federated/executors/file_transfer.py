"""The files of a run on their way to a machine that does not see them, and back: in pieces, with their hashes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from oblivionis.errors import RunError
from oblivionis.files import sync_folder

PIECE_BYTES = 32 * 2**20
_OF_A_PROCESS = ("running.json", "running.lock")
"""Files of whoever works on the run, which do not travel."""


@dataclass(frozen=True)
class Piece:
    """A part of the file `name` (relative, with slashes); hash: SHA-256 of the whole file, with its last piece."""

    name: str
    data: bytes
    hash: str | None


def pieces(folder: Path) -> Iterator[Piece]:
    """All files below `folder`, each in pieces of `PIECE_BYTES`, of which one is in memory at a time."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder).as_posix()
        if name in _OF_A_PROCESS:
            continue
        digest = hashlib.sha256()
        with file.open("rb") as handle:
            block = handle.read(PIECE_BYTES)
            while True:
                digest.update(block)
                following = handle.read(PIECE_BYTES)
                yield Piece(name, block, None if following else digest.hexdigest())
                if not following:
                    break
                block = following


class Unpacking:
    """A folder that comes in pieces. It takes its place whole, in `settle`, or leaves nothing, in `drop`."""

    def __init__(self, target: Path) -> None:
        self._target = target
        target.parent.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".arriving"))
        self._digest, self._open = hashlib.sha256(), ""

    def take(self, piece: Piece) -> None:
        """The next piece. Raises RunError for one that is damaged, or that belongs to another file."""
        place = PurePosixPath(piece.name)
        if place.is_absolute() or ".." in place.parts:
            raise RunError(f"{piece.name} does not belong into {self._target}")
        file = self._folder / place
        if piece.name != self._open:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._digest, self._open = hashlib.sha256(), piece.name
        with file.open("ab") as handle:
            handle.write(piece.data)
            self._digest.update(piece.data)
            if piece.hash is not None:
                handle.flush()
                os.fsync(handle.fileno())
        if piece.hash is not None and piece.hash != self._digest.hexdigest():
            raise RunError(f"{self._target}: {piece.name} arrived damaged")

    def settle(self) -> None:
        """Everything is there: it replaces what was in its place."""
        shutil.rmtree(self._target, ignore_errors=True)
        os.chmod(self._folder, 0o777 & ~_umask())
        os.replace(self._folder, self._target)
        sync_folder(self._target.parent)

    def drop(self) -> None:
        """Forget what has come."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
