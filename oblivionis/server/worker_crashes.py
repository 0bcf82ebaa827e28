"""Under `flwr run`: a run whose client processes die ends, instead of going on without them."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message

from oblivionis.flower.grids import UNKNOWN_ERROR
from oblivionis.runtime.simulation_grid import ClientProcessDied
from strategies.replies import error_text
from strategies.rounds.grid_proxy import PassingGrid


class WatchedGrid(PassingGrid):
    """Passes everything on to the grid of Flower's own simulation, which tells of a dead process in an error reply.

    Flower would give that process to later clients too. A real client can send such a reply as well: no grid for those.
    """

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """As the grid. Raises ClientProcessDied."""
        found = list(self._grid.pull_messages(message_ids))
        for message in found:
            if message.has_error() and message.error.code == UNKNOWN_ERROR:
                raise ClientProcessDied(f"the process of a client died: {error_text(message)}")
        return found
