"""Under Flower's own simulation a dead client process ends the run; its other errors are replies as any."""

from __future__ import annotations

import pytest
from flwr.app import Error, Message, RecordDict

from oblivionis.runtime.simulation_grid import ClientProcessDied
from oblivionis.server.grids import WatchedGrid
from strategies.rounds.memory_grid import MemoryGrid


def to_first() -> Message:
    return Message(RecordDict(), dst_node_id=1000, message_type="train")


def test_a_dead_process_ends_the_run() -> None:
    died = Error(code=0, reason="<class 'ray.exceptions.ActorDiedError'>")
    watched = WatchedGrid(MemoryGrid({p: lambda message: died for p in range(2)}))
    with pytest.raises(ClientProcessDied, match=r"^the process of a client died: error 0: .*ActorDiedError"):
        watched.pull_messages(watched.push_messages([to_first()]))


def test_another_error_is_a_reply() -> None:
    raised = Error(code=2, reason="ActorDiedError")
    watched = WatchedGrid(MemoryGrid({0: lambda message: raised}))
    (reply,) = watched.pull_messages(watched.push_messages([to_first()]))
    assert reply.error.code == 2
