"""Clients of a simulation whose work is of unequal length take turns at the cores."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import Context, Message
from flwr.server.superlink.fleet.vce.backend.raybackend import RayBackend

from strategies import message_keys


class Turns:
    """`count` turns at once; who waits longest comes next. A `threading.Semaphore` lets newcomers overtake."""

    def __init__(self, count: int) -> None:
        self._free, self._lock = count, threading.Lock()
        self._waiting: deque[threading.Event] = deque()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Within, it is the caller's turn."""
        comes = threading.Event()
        with self._lock:
            if self._free:
                self._free -= 1
                comes.set()
            else:
                self._waiting.append(comes)
        comes.wait()
        try:
            yield
        finally:
            with self._lock:
                if self._waiting:
                    self._waiting.popleft().set()
                else:
                    self._free += 1


@contextmanager
def unlearning_in_turns(cores: int) -> Iterator[None]:
    """Context in which at most `cores` simulated clients unlearn at once, in the order in which messages are sent.

    More client processes than cores save time where all clients take equally long, as in training: three clients on two
    cores take 1.5 turns instead of 2. Clients that unlearn take from no time up to ten epochs, and the longest is sent
    to first: with a core to itself it ends earlier, while the others run on the remaining cores.
    """
    turns = Turns(cores)
    process = RayBackend.process_message

    def in_turn(backend: RayBackend, message: Message, context: Context) -> tuple[Message, Context]:
        if message.metadata.message_type != message_keys.UNLEARN:
            return process(backend, message, context)
        with turns.turn():
            return process(backend, message, context)

    RayBackend.process_message = in_turn  # type: ignore[method-assign]
    try:
        yield
    finally:
        RayBackend.process_message = process  # type: ignore[method-assign]
