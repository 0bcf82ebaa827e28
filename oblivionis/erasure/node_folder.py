"""What a client keeps on its own disk: the tombstones of records never to be trained on again, and whether it left."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypedDict

from oblivionis.errors import FileError
from oblivionis.files import append_lines, read_json, read_lines, write_json


class _Buried(TypedDict):
    record_id: str
    request_id: str


class _Tombstone(_Buried, total=False):
    content: str


class _Left(TypedDict):
    request_id: str


class NodeFolder:
    """A client's own folder. It survives restarts of the client process and of the whole federation."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def tombstones_path(self) -> Path:
        return self.path / "tombstones.jsonl"

    def tombstones(self) -> frozenset[str]:
        """Ids of all records that were asked to be forgotten here."""
        return frozenset(self.buried())

    def buried(self) -> dict[str, str]:
        """The request that buried each record, by record id."""
        return dict(self.tombstone_lines())

    def tombstone_lines(self) -> list[tuple[str, str]]:
        """Record id and request of every tombstone, in the order in which they were put up."""
        return [(row["record_id"], row["request_id"]) for row in read_lines(self.tombstones_path, _Tombstone)]

    def contents(self) -> dict[str, tuple[str, str]]:
        """By what it says (`oblivionis.data.twins.content_key`) the id of each buried record, and of its request."""
        rows = read_lines(self.tombstones_path, _Tombstone)
        return {row["content"]: (row["record_id"], row["request_id"]) for row in rows if "content" in row}

    def bury(self, record_ids: Iterable[str], request_id: str, contents: Mapping[str, str] | None = None) -> None:
        """Add tombstones, durably, before the call returns. Ids that are buried already are left as they are.

        contents: by id what the records say (`oblivionis.data.twins.content_key`), by which they are known again.
        What was kept back of updates that the records took part in is dropped, before and after: a training that is
        still going on keeps nothing once it can see the tombstones.
        """
        self.drop_residuals()
        known = self.tombstones()
        now = time.time()
        said = contents or {}
        rows = [
            {"record_id": i, "request_id": request_id, "time": now, **({"content": said[i]} if i in said else {})}
            for i in record_ids
            if i not in known
        ]
        append_lines(self.tombstones_path, rows)
        self.drop_residuals()

    @property
    def residuals_path(self) -> Path:
        """Where lies what compressed updates kept back (`oblivionis.client.compression_residuals`)."""
        return self.path / "residuals"

    def drop_residuals(self) -> None:
        """Drop all that was kept back of updates; nothing where there is none."""
        while self.residuals_path.is_dir():
            try:
                shutil.rmtree(self.residuals_path)
            except OSError as error:  # a training wrote there meanwhile
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise

    @property
    def left_path(self) -> Path:
        return self.path / "left.json"

    def leave(self, request_id: str) -> None:
        """Note, durably, that this client left the federation by `request_id`; a second call changes nothing."""
        self.drop_residuals()
        if not self.left_path.exists():
            write_json(self.left_path, {"request_id": request_id, "time": time.time()})
        self.drop_residuals()

    def left_by(self) -> str | None:
        """The request by which this client left, None while it takes part. A damaged mark is a mark: "unknown"."""
        try:
            return read_json(self.left_path, _Left)["request_id"]
        except FileNotFoundError:
            return None
        except FileError:
            return "unknown"
