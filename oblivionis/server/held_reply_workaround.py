"""Answers that a SuperNode holds back: a small second message makes it send them.

In Flower 1.41 a SuperNode that was receiving a message when its run ended (the ServerApp or the SuperLink died, or was
stopped) computes an answer that nobody asks for any more. From then on it is one answer behind, in every later run: it
sends an answer only after the *next* message has come, so a server that waits before it sends more waits for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import INFO

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from strategies import message_keys
from strategies.flower_internals import log
from strategies.rounds.grid_proxy import PassingGrid

PATIENCE_S = 20.0
"""How long a node may take before it is nudged. One that merely computes for long answers the nudge afterwards."""
AGAIN_S = 1.0
"""The same for a node that needed a nudge before."""


@dataclass
class _Waiting:
    """A message that a node was sent. A nudge is due at `due`, the one after it `pause` seconds after its answer."""

    message: str
    due: float
    pause: float
    nudge: str | None = None


class NudgingGrid(PassingGrid):
    """Passes everything on to `grid`; nodes whose answers are asked for in vain get a `protocol.NUDGE`.

    At most one is on its way to a node. What comes back for it is dropped. For grids of real nodes, each of which holds
    one message at a time.
    """

    def __init__(self, grid: Grid, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(grid)
        self._clock = clock
        self._waiting: dict[int, _Waiting] = {}
        self._slow: set[int] = set()
        self._count = 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """As `grid`."""
        sent = list(messages)
        ids = list(self._grid.push_messages(sent))
        now = self._clock()
        for message, identifier in zip(sent, ids, strict=False):  # Flower returns none at all for too large ones
            node = message.metadata.dst_node_id
            nudge = self._waiting[node].nudge if node in self._waiting else None
            pause = AGAIN_S if node in self._slow else PATIENCE_S
            self._waiting[node] = _Waiting(identifier, now + pause, pause, nudge)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """As `grid`, without the answers to nudges."""
        asked = set(message_ids)
        nudges = {waiting.nudge: waiting for waiting in self._waiting.values() if waiting.nudge is not None}
        found, now = [], self._clock()
        for message in self._grid.pull_messages([*asked, *nudges]):
            answered = message.metadata.reply_to_message_id
            if answered in nudges:
                waiting = nudges[answered]
                waiting.nudge, waiting.due = None, now + waiting.pause
            else:
                found.append(message)
        came = {message.metadata.reply_to_message_id for message in found}
        for node, waiting in self._waiting.items():
            if waiting.message in asked - came and waiting.nudge is None and now >= waiting.due:
                self._nudge(node, waiting)
        return found

    def _nudge(self, node: int, waiting: _Waiting) -> None:
        self._count += 1
        content = RecordDict({message_keys.CONFIG: ConfigRecord({"nudge": self._count})})
        message = Message(content, dst_node_id=node, message_type=message_keys.NUDGE)
        (waiting.nudge,) = self._grid.push_messages([message]) or (None,)
        waiting.pause = min(2 * waiting.pause, PATIENCE_S)
        if node not in self._slow:
            self._slow.add(node)
            log(INFO, "node %d has not answered for %.0f s: asked whether it holds something back", node, PATIENCE_S)
