"""What a client kept back of its compressed updates, in its own folder: error feedback that outlives a process.

It was computed on the client's records, so it goes when one of them does: `NodeFolder.bury` and `leave` drop all of it,
and it counts only while the client trains on exactly the records that it came from. Nor does it outlive an exchange in
which others' records were unlearned: it came of a model that knew them (`strategies.message_keys.UNLEARNED_ROUND`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.models.adapters import load_vector, save_vector
from oblivionis.models.errors import ModelError

_KEPT = 2
"""Newest exchanges: a resumed run repeats the last one, and starts from what was left before it."""


class Residuals:
    """Those of one client in one stage of a run, by round. `records`: SHA-256 of the records that it now trains on.

    `since`: what rounds before it left does not count. `current`: whether the client may still train on these records,
    by what lies in its folder when it is called.
    """

    def __init__(
        self,
        node: NodeFolder,
        run: str,
        stage: str,
        records: str,
        *,
        since: int = 0,
        current: Callable[[], bool] = lambda: True,
    ) -> None:
        self._folder, self._records, self._since, self._current = node.residuals_path, records, since, current
        self._name = hashlib.sha256(f"{len(run)}/{run}/{stage}".encode()).hexdigest()[:16]

    def before(self, server_round: int, size: int) -> np.ndarray | None:
        """What was kept back (size,) before that round; None for nothing, or of other records or another model.

        What later rounds left is dropped, because that round is repeated, and what rounds before `since` left.
        """
        rounds = self._rounds()
        for other in [r for r in rounds if not self._since <= r < server_round]:
            rounds.pop(other).unlink(missing_ok=True)
        if not rounds:
            return None
        path = rounds[max(rounds)]
        try:
            vector, _, info = load_vector(path)
        except ModelError:
            vector, info = np.empty(0, np.float32), {}
        if info.get("records") != self._records or vector.shape != (size,):
            for old in rounds.values():
                old.unlink(missing_ok=True)
            return None
        return vector

    def keep(self, server_round: int, rest: np.ndarray) -> None:
        """Keep what that round left, durably; nothing where a request named one of its records meanwhile.

        A training that came too late for its round may end after such a request. Excluding a record writes its
        tombstone, then drops what is kept; this writes what is kept, then checks for tombstones: one of the two sees
        the other.
        """
        path = self._folder / f"{self._name}-{server_round:06d}.safetensors"
        try:
            if self._current():
                save_vector(path, rest, [("rest", rest.shape)], {"records": self._records})
        except FileNotFoundError:  # the folder was dropped while it was written
            return
        if not self._current():
            path.unlink(missing_ok=True)
        rounds = self._rounds()
        for old in sorted(rounds)[:-_KEPT]:
            rounds[old].unlink(missing_ok=True)

    def _rounds(self) -> dict[int, Path]:
        files = self._folder.glob(f"{self._name}-*.safetensors")
        return {int(number): file for file in files if (number := file.stem.rpartition("-")[2]).isdigit()}
