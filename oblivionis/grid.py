"""A Flower grid that can be told to stop while it waits, and that reports answers as they arrive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from oblivionis.errors import RunInterrupted

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.5
_POLLING_SHARE = 0.02


class StoppableGrid(Grid):
    """Passes everything on to `grid`; waiting ends with RunInterrupted as soon as `stop` is set.

    `arrived` is called with (answers so far, messages sent). Asking for answers takes two percent of the waiting time:
    in a simulation, where it costs microseconds, that is every few milliseconds, over a network every half second.
    """

    def __init__(self, grid: Grid, stop: threading.Event, arrived: Callable[[int, int], None]) -> None:
        self._grid, self._stop, self._arrived = grid, stop, arrived

    def set_run(self, run) -> None:
        self._grid.set_run(run)

    @property
    def run(self):
        return self._grid.run

    def create_message(self, *args, **kwargs) -> Message:
        return self._grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        if self._stop.is_set():
            raise RunInterrupted("stopped by Ctrl-C")
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and wait for their answers, at most `timeout` seconds; returns what came in time."""
        waiting = set(self.push_messages(list(messages)))
        total, received = len(waiting), []
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _SHORTEST_PAUSE
        while waiting:
            if self._stop.is_set():
                raise RunInterrupted("stopped by Ctrl-C")
            asked = time.monotonic()
            fresh = list(self.pull_messages(waiting))
            if not fresh:
                cost = time.monotonic() - asked
                pause = min(max(cost / _POLLING_SHARE, _SHORTEST_PAUSE), _LONGEST_PAUSE)
            else:
                received.extend(fresh)
                waiting.difference_update(m.metadata.reply_to_message_id for m in fresh)
                self._arrived(len(received), total)
            if not waiting or (deadline is not None and time.monotonic() >= deadline):
                break
            self._stop.wait(pause)
        return received
