"""A second process that measures at the same time as the server's: a pass of a small model keeps one core busy.

It is forked from the process that client processes are forked from, so that it has the libraries at once, runs this
file as a script, assembles the model for itself, and measures each global model that it is sent by `MOVED`'s
evaluators while the server's own process runs the others.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from evaluation.hook import EvaluationError, Report
from oblivionis import seeds
from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.errors import OblivionisError
from oblivionis.measures.assessor import Assessor
from oblivionis.models.assembly import assemble
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.models.hardware import Machine, server_threads
from oblivionis.runs.progress import Events
from oblivionis.server import forked_workers

logger = logging.getLogger(__name__)

MOVED = {False: ("leakage",), True: ("wikimem",)}
"""After a round and at a stage's end: about half of the seconds of the embedded default's evaluation."""
_LOOK_S = 0.1
"""Between two looks for an answer: an interruption is heard between them."""


class SecondEvaluator:
    """The server's end of the process; `oblivionis.measures.assessor.RemoteEvaluator`.

    here, there: the threads that measure in each of the two.
    """

    def __init__(self, connection: Connection, here: int, there: int, events: Events) -> None:
        self._connection, self._here, self._there, self._events = connection, here, there, events
        self._asked, self._lost = 0, False

    def begin(self, vector: np.ndarray, *, full: bool) -> frozenset[str]:
        if self._lost:
            return frozenset()
        self._asked += 1
        try:
            self._connection.send((self._asked, vector, full))
        except OSError:
            self._lose()
            return frozenset()
        torch.set_num_threads(self._here)
        return frozenset(MOVED[full])

    def end(self) -> Report | None:
        try:
            answered, found = 0, None
            while answered < self._asked:  # answers that an evaluation which was broken off did not wait for
                while not self._connection.poll(_LOOK_S):
                    pass
                answered, found = self._connection.recv()
        except (OSError, EOFError):
            self._lose()
            return None
        if isinstance(found, Exception):
            raise found
        assert found is not None
        for name, error in found.failed.items():
            logger.error("evaluator %s failed: %s", name, error)  # as where it runs here
        return found

    def _lose(self) -> None:
        self._lost = True
        torch.set_num_threads(self._here + self._there)
        self._events.warning("the second process that measures has ended (short of memory?); one goes on alone")


@contextmanager
def second_evaluator(config: Config, address: str | None, events: Events) -> Iterator[SecondEvaluator | None]:
    """The process, forked by the fork server at `address`; None where there shall be none, or nobody forks."""
    here, there = server_threads(config, Machine.here())
    if there == 0 or address is None:
        yield None
        return
    ours, theirs = socket.socketpair()
    with ExitStack() as stack:
        mine, found = stack.enter_context(Connection(ours.detach())), None
        with suppress(OSError):
            with theirs, open(os.devnull, "r+b") as nothing:
                files = [theirs.fileno(), nothing.fileno(), nothing.fileno()]
                stack.enter_context(forked_workers.script(address, [__file__], files))
            mine.send((configuration.to_yaml(config), there))
            found = SecondEvaluator(mine, here, there, events)
        yield found


def _serve(connection: Connection) -> None:
    """Measure what is sent until nobody is left to send."""
    settings, threads = connection.recv()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    config = configuration.from_yaml(settings)
    assembled = assemble(config.model, seeds.derive(config.seed, "adapter"))
    names = sorted({name for moved in MOVED.values() for name in moved})
    assessor = Assessor(assembled, corpus_of(config), config, assembled.flat.numpy(), names)
    while True:
        number, vector, full = connection.recv()
        found: Any
        try:
            found = assessor.measure(vector, full=full, names=MOVED[full]).report
        except (OblivionisError, EvaluationError) as error:
            found = error
        connection.send((number, found))


if __name__ == "__main__":
    with suppress(EOFError, OSError):
        _serve(Connection(os.dup(0)))
