"""The worker processes of a simulation: whether one died is what Ray says, not what a client's reply says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from oblivionis.flower.grids import UNKNOWN_ERROR
from oblivionis.flower.names import ACTOR
from strategies.errors import FederationError
from strategies.replies import error_text
from strategies.rounds.grid_proxy import PassingGrid

_FULL = re.compile(r"OutOfMemory.* was ([\d.]+) ?GB / ([\d.]+) ?GB", re.DOTALL)


class ActorDied(FederationError):
    """A simulation worker process crashed. Flower would give it to later clients too: stop, and resume the run."""

    def as_text(self) -> str:
        """Whose process died, why, and what to do."""
        who, _, error = str(self).partition(": error")
        full = _FULL.search(error)
        why = (
            f"Ray ended it because {full[1]} of the machine's {full[2]} GB were in use, by this and all other programs"
            if full
            else "it was killed, crashed or ran out of memory"
        )
        return (
            f"{who}: {why}. If memory is short, let fewer clients run at a time with a larger "
            "federation.client_cpus and federation.client_processes=1"
        )


class WatchedGrid(PassingGrid):
    """Passes everything on to `grid`, and ends a run whose worker processes die.

    Flower tells of one in an error reply, which any client can send as well. It counts only where `dead` says so, too.
    `partition`: whose node a node id is, None where nobody knows yet.
    """

    def __init__(self, grid: Grid, dead: Callable[[], int] | None = None) -> None:
        super().__init__(grid)
        self._dead = dead_workers if dead is None else dead
        self.partition: Callable[[int], int | None] = lambda node: None

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """As `grid`. Raises ActorDied for an error that comes of a dead worker."""
        found = list(self._grid.pull_messages(message_ids))
        for message in found:
            if message.has_error() and message.error.code == UNKNOWN_ERROR and self._dead():
                client = self.partition(message.metadata.src_node_id)
                whose = "a worker process" if client is None else f"the worker process of client {client}"
                raise ActorDied(f"{whose} died: {error_text(message)}")
        return found


def dead_workers() -> int:
    """How many of the processes that Flower started for clients have died, as Ray's own records say."""
    import ray
    from ray._private import state

    if not ray.is_initialized():
        return 0
    actors = state.actors(job_id=ray.JobID.from_hex(ray.get_runtime_context().get_job_id()), actor_state_name="DEAD")
    return sum(actor["ActorClassName"] == ACTOR for actor in actors.values())
