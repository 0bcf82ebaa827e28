"""A Flower grid that can be stopped while it waits, and that reports answers as they arrive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from oblivionis.errors import RunInterrupted
from strategies.rounds.grid_proxy import PassingGrid
from strategies.rounds.reply_stream import Pauses

_FIRST_PAUSE = 0.005
_NUMBER = 8


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
