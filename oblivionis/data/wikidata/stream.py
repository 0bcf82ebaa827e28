"""The lines of a Wikidata dump, decompressed piece by piece: gzip and bzip2 of one or many members, or plain JSON.

Neither compression can be entered in the middle of a member. To go on at a `Position` the reader seeks to the last
member that begins before it and decompresses what lies between without looking at it: hardly anything for a bzip2 file
of many members, everything so far for a gzip file of one. Plain files count as members of `CHUNK` bytes.
"""

from __future__ import annotations

import bz2
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path
from typing import BinaryIO, NamedTuple

BLOCK = 1 << 18
"""Bytes of the file that are read at a time."""
CHUNK = 1 << 20
"""Most bytes of JSON that are decompressed at a time."""
MAX_LINE = 64 << 20
"""Longest line in bytes that is kept; Wikidata's longest entities have some MB."""
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "Zstandard", b"PK": "zip"}


class DumpError(ValueError):
    """A file cannot be used as a dump; the message says why."""


class DamagedDump(DumpError):
    """A dump cannot be read to its end, but up to a place; the message says where and what to do."""


class Position(NamedTuple):
    """Before a line of a dump.

    line: lines before it; offset: bytes of JSON before it; member: where in the file the last compressed member that
    starts before it lies; member_offset: bytes of JSON before that member.
    """

    line: int = 0
    offset: int = 0
    member: int = 0
    member_offset: int = 0


BEGINNING = Position()


class Member(NamedTuple):
    """A compressed stream in a dump: its first byte in the file, and the bytes of JSON before it."""

    start: int
    offset: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Some whole lines.

    lines: without their newline, None for one longer than `MAX_LINE`; end: the position after them; read: bytes of the
    file read so far; unterminated: whether the last line, and with it the dump, ended without newline.
    """

    lines: list[bytes | None]
    end: Position
    read: int
    unterminated: bool = False


@dataclass(frozen=True)
class Dump:
    """A dump file. format: gzip, bzip2 or json; size: bytes."""

    path: Path
    format: str
    size: int

    @classmethod
    def open(cls, path: Path) -> Dump:
        """Read the beginning of `path`. Raises DumpError where it cannot be read or has another format."""
        try:
            with open(path, "rb") as file:
                start = file.read(max(map(len, _MAGIC)))
                size = file.seek(0, SEEK_END)
        except FileNotFoundError:
            raise DumpError(
                f"{path}: file not found; expected a Wikidata JSON dump (.json.gz, .json.bz2, .json)"
            ) from None
        except OSError as error:
            raise DumpError(f"{path}: cannot be read ({error.strerror})") from None
        if not start:
            raise DumpError(f"{path} is empty; expected a Wikidata JSON dump")
        form = next((name for magic, name in _MAGIC.items() if start.startswith(magic)), "json")
        if form not in ("gzip", "bzip2", "json"):
            raise DumpError(f"{path} is packed with {form}; expected gzip, bzip2 or plain JSON")
        return cls(path, form, size)

    def fingerprint(self, length: int = 1 << 20) -> str:
        """SHA-256 of the first `length` bytes of the file, which tell dumps apart. Raises DumpError."""
        try:
            with open(self.path, "rb") as file:
                return hashlib.sha256(file.read(length)).hexdigest()
        except OSError as error:
            raise DumpError(f"{self.path}: cannot be read ({error.strerror})") from None

    def batches(self, start: Position = BEGINNING) -> Iterator[Batch]:
        """The lines from `start` on; batches without lines tell of progress towards it, and in very long lines.

        Raises DamagedDump, after the whole lines before the place, where the file is damaged or ends too early, and
        where it cannot be read any more.
        """
        try:
            with open(self.path, "rb") as file:
                yield from self._batches(file, start)
        except OSError as error:
            raise DamagedDump(f"{self.path}: cannot be read ({error.strerror or error})") from error

    def _batches(self, file: BinaryIO, start: Position) -> Iterator[Batch]:
        position, partial, at = start, _Partial(), start.member_offset
        for chunk, offset, member in self._chunks(file, start):
            at = offset + len(chunk)
            if at <= start.offset:
                yield Batch([], start, file.tell())
                continue
            *ended, rest = chunk[max(0, start.offset - offset) :].split(b"\n")
            lines: list[bytes | None] = list(ended)
            if ended:
                lines[0] = partial.ended(ended[0])
                position = Position(position.line + len(ended), at - len(rest), *member)
            partial.add(rest)
            yield Batch(lines, position, file.tell())
        if at < start.offset:
            raise DamagedDump(
                f"{self.path} has {at} bytes of JSON; expected more than {start.offset}, where it was left"
            )
        if partial.bytes:
            end = position._replace(line=position.line + 1, offset=at)
            yield Batch([partial.ended(b"")], end, self.size, unterminated=True)

    def _chunks(self, file: BinaryIO, start: Position) -> Iterator[tuple[bytes, int, Member]]:
        """Pieces of the JSON, each with its offset there and the member that it belongs to."""
        file.seek(start.member)
        if self.format != "json":
            yield from self._decompressed(file, start.member_offset)
            return
        offset = start.member
        while chunk := file.read(CHUNK):
            yield chunk, offset, Member(offset, offset)
            offset += len(chunk)

    def _decompressed(self, file: BinaryIO, offset: int) -> Iterator[tuple[bytes, int, Member]]:
        data, member = b"", Member(0, 0)
        decoder: _Decoder | None = None
        while True:
            if not data and (decoder is None or decoder.needs_input):
                data = file.read(BLOCK)
                if not data:
                    break
            if decoder is None:
                data = data.lstrip(b"\0")  # padding after a gzip member
                if not data:
                    continue
                decoder = _Decoder(self.format)
                member = Member(file.tell() - len(data), offset)
            try:
                chunk, data = decoder.decode(data)
            except (zlib.error, OSError, EOFError) as error:
                raise DamagedDump(
                    f"{self.path} is damaged: its {self.format} data cannot be decompressed after {file.tell()} bytes "
                    f"of the file and {offset} of JSON ({error}); get it again"
                ) from None
            if decoder.ended:
                decoder = None
            if chunk:
                yield chunk, offset, member
                offset += len(chunk)
        if decoder is not None:
            raise DamagedDump(
                f"{self.path} is cut off: it ends in the middle of its {self.format} data, after {self.size} bytes of "
                f"the file and {offset} of JSON; fetch the rest of it"
            )


class _Decoder:
    """One member of a gzip or bzip2 file, decompressed at most `CHUNK` bytes at a time."""

    def __init__(self, form: str) -> None:
        self._zlib = zlib.decompressobj(wbits=31) if form == "gzip" else None
        self._bz2 = bz2.BZ2Decompressor()

    def decode(self, data: bytes) -> tuple[bytes, bytes]:
        """Bytes of JSON, and what is left of `data`: to be decoded next, or of the next member."""
        if self._zlib is None:
            chunk = self._bz2.decompress(data, CHUNK)
            return chunk, self._bz2.unused_data if self._bz2.eof else b""
        chunk = self._zlib.decompress(data, CHUNK)
        return chunk, self._zlib.unused_data if self._zlib.eof else self._zlib.unconsumed_tail

    @property
    def ended(self) -> bool:
        return self._bz2.eof if self._zlib is None else self._zlib.eof

    @property
    def needs_input(self) -> bool:
        return self._zlib is not None or self._bz2.needs_input


class _Partial:
    """The beginning of a line whose end has not been read; what is longer than `MAX_LINE` is counted, not kept."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.bytes = 0

    def add(self, piece: bytes) -> None:
        self.bytes += len(piece)
        if self.bytes > MAX_LINE:
            self._pieces = []
        elif piece:
            self._pieces.append(piece)

    def ended(self, piece: bytes) -> bytes | None:
        """The line that `piece` completes, None where it is too long; the next line begins."""
        self.add(piece)
        line = None if self.bytes > MAX_LINE else b"".join(self._pieces)
        self._pieces, self.bytes = [], 0
        return line
