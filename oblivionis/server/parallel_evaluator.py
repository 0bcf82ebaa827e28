"""A second process that measures at the same time as the server's: a pass of a small model keeps one core busy.

It is forked from the process that client processes are forked from, so that it has the libraries at once, assembles the
model for itself, and measures each global model that it is sent by `MOVED`'s evaluators while the server's own process
runs the others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch

from evaluation.hook import EvaluationError, Report
from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.errors import OblivionisError
from oblivionis.measures.assessor import Assessor
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.models.hardware import Machine, server_threads
from oblivionis.models.shard_merges import assemble_served
from oblivionis.runs.progress import Events
from oblivionis.runtime.fork_server import ForkServer
from oblivionis.runtime.transfer import Channel

logger = logging.getLogger(__name__)

MOVED = {False: ("leakage",), True: ("wikimem",)}
"""After a round and at a stage's end: about half of the seconds of the embedded default's evaluation."""

_LOOK_S = 1.0
"""After so many seconds a wait for the other process begins anew."""


class SecondEvaluator:
    """The server's end of the process; `oblivionis.measures.assessor.RemoteEvaluator`.

    here, there: the threads that measure in each of the two.
    """

    def __init__(self, channel: Channel, here: int, there: int, events: Events) -> None:
        self._channel, self._here, self._there, self._events = channel, here, there, events
        self._asked, self._lost = 0, False

    def begin(self, vector: np.ndarray, *, full: bool) -> frozenset[str]:
        if self._lost:
            return frozenset()
        self._asked += 1
        try:
            self._channel.send((self._asked, vector, full))
        except OSError:
            self._lose()
            return frozenset()
        torch.set_num_threads(self._here)
        return frozenset(MOVED[full])

    def end(self) -> Report | None:
        try:
            answered, found = 0, None
            while answered < self._asked:  # answers that an evaluation which was broken off did not wait for
                self._wait()
                answered, found = self._channel.receive()
        except (OSError, EOFError):
            self._lose()
            return None
        if isinstance(found, Exception):
            raise found
        assert found is not None
        for name, error in found.failed.items():
            logger.error("evaluator %s failed: %s", name, error)  # as where it runs here
        return found

    def _wait(self) -> None:
        """Until there is something to receive; a signal that comes just before a wait is heard at its end."""
        while not wait([self._channel.fileno()], _LOOK_S):
            pass

    def _lose(self) -> None:
        self._lost = True
        torch.set_num_threads(self._here + self._there)
        self._events.warning("the second process that measures has ended (short of memory?); one goes on alone")


@contextmanager
def second_evaluator(config: Config, forks: ForkServer, events: Events) -> Iterator[SecondEvaluator | None]:
    """The process, forked by `forks`; None where there shall be none, or it does not begin."""
    here, there = server_threads(config, Machine.here())
    if there == 0:
        yield None
        return
    process = None
    with suppress(OSError):
        process = forks.fork(f"{__name__}:serve", "evaluator")
        process.channel.send((configuration.to_yaml(config), there))
    try:
        yield None if process is None else SecondEvaluator(process.channel, here, there, events)
    finally:
        if process is not None:
            process.kill()


def serve(channel: Channel) -> None:
    """Measure what is sent until nobody is left to send."""
    settings, threads = channel.receive()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    config = configuration.from_yaml(settings)
    assembled = assemble_served(config)
    base = assembled.flat.numpy() if assembled.start is None else assembled.start
    names = sorted({name for moved in MOVED.values() for name in moved})
    assessor = Assessor(assembled, corpus_of(config), config, base, names)
    while True:
        number, vector, full = channel.receive()
        found: Any
        try:
            found = assessor.measure(vector, full=full, names=MOVED[full]).report
        except (OblivionisError, EvaluationError) as error:
            found = error
        channel.send((number, found))
