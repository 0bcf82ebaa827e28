"""Ray while a run needs it, without losing Ctrl-C and SIGTERM to it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_REPAIR_S = 0.02


@contextmanager
def running(**settings: Any) -> Iterator[None]:
    """Between `ray.init` with these settings, whose errors are raised, and `ray.shutdown`.

    Ray takes SIGTERM for itself: in the main thread by a handler that exits with the signal's number, and in any
    thread, past Python, when its core starts by one that prints a stack trace, asks the one before, and aborts three
    seconds later, and when it ends by none at all. So Ray starts and ends in a thread of its own, the main thread puts
    its handlers back meanwhile, and nobody sees the trace. The thread lives as long as Ray: what Ray starts is killed
    when the thread that started it ends.
    """
    import ray

    up, over, down = threading.Event(), threading.Event(), threading.Event()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            with _no_native_errors():
                ray.init(**settings)
        except BaseException as error:
            raised.append(error)
        up.set()
        over.wait()
        try:
            ray.shutdown()
        finally:
            down.set()

    threading.Thread(target=run, name="oblivionis-ray", daemon=True).start()
    try:
        _wait(up)
        if raised:
            raise raised[0]
        yield
    finally:
        over.set()
        _wait(down)


def _wait(event: threading.Event) -> None:
    """Until the event is set; in the main thread, its handlers stay in force, and no alarm of Ray's goes off."""
    done = False
    while not done:
        done = event.wait(_REPAIR_S)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.getsignal(number))
            signal.alarm(0)


@contextmanager
def _no_native_errors() -> Iterator[None]:
    """Inside, what the process writes to its standard error is lost; Ray raises what is worth knowing."""
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)
