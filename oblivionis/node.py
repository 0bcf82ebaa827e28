"""What a client keeps on its own disk: the tombstones of records that it must never train on again."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from oblivionis.files import append_lines, read_lines


class NodeFolder:
    """A client's own folder. It survives restarts of the client process and of the whole federation."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def tombstones_path(self) -> Path:
        return self.path / "tombstones.jsonl"

    def tombstones(self) -> frozenset[str]:
        """Ids of all records that were asked to be forgotten here."""
        return frozenset(row["record_id"] for row in read_lines(self.tombstones_path))

    def bury(self, record_ids: Iterable[str], request_id: str) -> None:
        """Add tombstones, durably, before the call returns. Ids that are buried already are left as they are."""
        known = self.tombstones()
        now = time.time()
        rows = [{"record_id": i, "request_id": request_id, "time": now} for i in record_ids if i not in known]
        append_lines(self.tombstones_path, rows)
