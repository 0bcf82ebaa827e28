"""What stands between the server and Flower's grid, and in which order: see `wrapped`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import INFO

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from oblivionis.config.schema import Config
from oblivionis.errors import RunInterrupted
from oblivionis.flower.grids import UNKNOWN_ERROR, deployed, of_flowers_simulation
from oblivionis.runtime.simulation_grid import ClientProcessDied
from strategies import message_keys
from strategies.flower_internals import log
from strategies.replies import error_text
from strategies.rounds.grids import ChurningGrid, PassingGrid
from strategies.rounds.reply_stream import Pauses

_FIRST_PAUSE = 0.005
_NUMBER = 8
PATIENCE_S = 20.0
"""How long a node may take before it is nudged. One that merely computes for long answers the nudge afterwards."""
AGAIN_S = 1.0
"""The same for a node that needed a nudge before."""


def wrapped(grid: Grid, config: Config, stop: threading.Event, arrived: Callable[[int, int], None]) -> StoppableGrid:
    """The grid as the server uses it.

    Innermost is what makes up for Flower: for a dead process under `flwr run`, for an answer that a SuperNode holds
    back. Around it, messages are lost that shall be lost. Outermost is what waits: a stop is heard whatever else goes
    on, and bytes are counted of the messages that the server itself sends and receives. Around that, each stage has
    the nodes in the order of their partitions (`strategies.rounds.grids.OrderedGrid`).
    """
    if of_flowers_simulation(grid):
        grid = WatchedGrid(grid)
    if deployed(grid):
        grid = NudgingGrid(grid)
    if config.federation.churn:
        grid = ChurningGrid(grid, config.federation.churn, config.seed)
    return StoppableGrid(grid, stop, arrived)


class StoppableGrid(PassingGrid):
    """Passes everything on to `grid`; waiting ends with RunInterrupted as soon as `stop` is set.

    `sent`, `received`: bytes of all messages so far, what arrays, texts and numbers in them take.

    `arrived` is called with (answers so far, messages sent). Asking for answers takes two percent of the waiting time:
    in a simulation, where it costs microseconds, that is every few milliseconds, over a network every half second.
    """

    def __init__(self, grid: Grid, stop: threading.Event, arrived: Callable[[int, int], None]) -> None:
        super().__init__(grid)
        self._stop, self._arrived = stop, arrived
        self.sent = self.received = 0

    def get_node_ids(self) -> Iterable[int]:
        if self._stop.is_set():
            raise RunInterrupted("stopped by Ctrl-C")
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As `grid`."""
        messages = list(messages)
        self.sent += sum(map(size_of, messages))
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """As `grid`. Raises RunInterrupted once `stop` is set."""
        if self._stop.is_set():
            raise RunInterrupted("stopped by Ctrl-C")
        fresh = list(self._grid.pull_messages(message_ids))
        self.received += sum(map(size_of, fresh))
        return fresh

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and wait for their answers, at most `timeout` seconds; returns what came in time."""
        waiting = set(self.push_messages(messages))
        total, received = len(waiting), []
        deadline = None if timeout is None else time.monotonic() + timeout
        pauses, pause = Pauses(), _FIRST_PAUSE
        while waiting:
            asked = time.monotonic()
            fresh = self.pull_messages(waiting)
            if not fresh:
                pause = pauses.after(time.monotonic() - asked)
            else:
                received.extend(fresh)
                waiting.difference_update(m.metadata.reply_to_message_id for m in fresh)
                self._arrived(len(received), total)
            if not waiting or (deadline is not None and time.monotonic() >= deadline):
                break
            self._stop.wait(pause)
        return received


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


@dataclass
class _Waiting:
    """A message that a node was sent. A nudge is due at `due`, the one after it `pause` seconds after its answer."""

    message: str
    due: float
    pause: float
    nudge: str | None = None


class NudgingGrid(PassingGrid):
    """Passes everything on to `grid`; nodes whose answers are asked for in vain get a `message_keys.NUDGE`.

    A SuperNode that is receiving a message when its run ends (the ServerApp or the SuperLink died, or was stopped)
    keeps it: in `flwr.supernode.start_client_internal._pull_and_store_message` a `RunNotRunningException`, which is no
    `Exception`, passes by the clause that deletes message and task. A ClientApp answers it, nobody waits for that, and
    `_push_messages` sends it in the place of the next message's answer, whose own stays until one more comes. So it is
    one answer behind in every later run, and a server that waits before it sends more waits for ever. This is so in
    Flower 1.41 and 1.42; a test fails once it is not.

    At most one nudge is on its way to a node. What comes back for it is dropped. For grids of real nodes, each of which
    holds one message at a time.
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


def size_of(message: Message) -> int:
    """Bytes that the content of a message takes: its arrays, texts and bytes, and eight for each number."""
    if not message.has_content():
        return 0
    content = message.content
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    others = [*content.config_records.values(), *content.metric_records.values()]
    return arrays + sum(_size(value) for record in others for value in record.values())


def _size(value: object) -> int:
    if isinstance(value, list):
        return sum(map(_size, value))
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    return len(value) if isinstance(value, bytes) else _NUMBER
