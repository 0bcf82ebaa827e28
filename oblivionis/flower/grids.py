"""Flower's grids, and what a simulation of many nodes takes of the link state behind its own."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.serverapp import Grid
from flwr.superlink.grid import HttpGrid, InMemoryGrid

__all__ = ["UNKNOWN_ERROR", "HttpGrid", "InMemoryGrid", "deliver_by_node", "partitions"]

UNKNOWN_ERROR: int = ErrorCode.UNKNOWN
"""Flower's error code for a client whose process died, among others."""
PATIENCE_S = 1.0
"""Longest wait for messages: the loop that looks for them hears of its end after that, as Flower's others do."""


def partitions(grid: Grid) -> dict[int, int]:
    """Partition by node id, as the simulation behind `grid` deals them out: in the order in which nodes registered.

    Empty for another grid. A caller makes sure by asking some of the nodes.
    """
    state = _state(grid)
    if state is None:
        return {}
    with state.lock:
        return {node: partition for partition, node in enumerate(state.nodes)}


def deliver_by_node(grid: Grid, patience: float = PATIENCE_S) -> None:
    """Have a simulation look for messages when there are some, and for a node's among that node's.

    Flower's looks at every node ten times a second, and for each of them at all messages that are under way: with
    10,000 nodes and 100 messages, a million looks, and a message waits for a twentieth of a second on average. Here a
    look at the first node lasts until messages are sent, at most `patience` seconds, so that Flower's pause comes
    after they were delivered; and it finds those of all nodes, so that they are worked off in the order in which they
    were sent, not in that of the nodes. What is looked at is the same: Flower still decides by its own code what is
    delivered, and to whom by the message. Another grid stays as it is.
    """
    state = _state(grid)
    if state is None:
        return
    mail = _Mail(state, patience)
    push = grid.push_messages

    def push_messages(messages: Iterable[Message]) -> Iterable[str]:
        try:
            return push(messages)
        finally:
            mail.sent.set()

    with state.lock:
        state.store_message_ins, state.get_message_ins = mail.store, mail.collect  # type: ignore[method-assign]
        grid.push_messages = push_messages  # type: ignore[method-assign]


def _state(grid: Grid) -> InMemoryLinkState | None:
    state = getattr(grid, "state", None)
    return state if isinstance(grid, InMemoryGrid) and isinstance(state, InMemoryLinkState) else None


class _Mail:
    """The ids of the messages that were not delivered yet, by node. `sent`: whether some came since the last pass."""

    def __init__(self, state: InMemoryLinkState, patience: float) -> None:
        self._state, self._store, self._patience = state, state.store_message_ins, patience
        self._first: int | None = None
        self.sent = threading.Event()
        self._waiting: defaultdict[int, list[str]] = defaultdict(list)
        with state.lock:
            for identifier, message in state.message_ins_store.items():
                self._waiting[message.metadata.dst_node_id].append(identifier)

    def store(self, message: Message) -> str | None:
        """As `store_message_ins`."""
        with self._state.lock:
            if (identifier := self._store(message)) is not None:
                self._waiting[message.metadata.dst_node_id].append(identifier)
            return identifier

    def collect(self, node_id: int, limit: int | None, *, run_id: int | None = None) -> list[Message]:
        """As `get_message_ins`, but at the first node only when something is there or nothing comes for a while, and
        then of all nodes, the one first that was sent to first."""
        if self._first is None:  # nodes register after the server began, and before anybody looks
            self._first = next(iter(self._state.nodes), None)
        if node_id != self._first:
            return self._of(node_id, limit, run_id)
        if not self._waiting:
            self.sent.wait(self._patience)
        self.sent.clear()
        with self._state.lock:
            nodes = list(self._waiting)
        return [message for node in nodes for message in self._of(node, limit, run_id)]

    def _of(self, node_id: int, limit: int | None, run_id: int | None) -> list[Message]:
        """The messages of one node."""
        if node_id not in self._waiting:
            return []
        state = self._state
        with state.lock:
            ids = self._waiting.pop(node_id)
            state._check_stored_messages(set(ids))
            own = {i: message for i in ids if (message := state.message_ins_store.get(i)) is not None}
            found = InMemoryLinkState.get_message_ins(_Own(state, own), node_id, limit, run_id=run_id)  # type: ignore[arg-type]
            if left := [i for i, message in own.items() if message.metadata.delivered_at == ""]:
                self._waiting[node_id] = left
            return found


class _Own:
    """A link state that holds the messages of one node alone."""

    def __init__(self, state: InMemoryLinkState, messages: dict[str, Message]) -> None:
        self._of, self.message_ins_store = state, messages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)
