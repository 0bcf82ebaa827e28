"""Ctrl-C and SIGTERM end a command within seconds, whatever it computes, and leave no process of it behind.

The orderly way comes first: KeyboardInterrupt in the main thread, or what a command makes of the signal. Threads that
go on computing, exit handlers that wait and processes that do not end are given `GRACE_S` seconds. What lasts is on
disk by then, as after a kill, which every file of a run survives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import psutil

GRACE_S = 6.0
HEARD_S = 1.0
"""Longest wait for the thread that listens."""
_CODE = 130


class Stopping:
    """What is known of a stop.

    hint: what to print where the command cannot do it any more; errors: the descriptor that it goes to.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """A command begins."""
        self.asked = threading.Event()
        self.hint = ""
        self.errors = 2
        self._done = threading.Event()
        self._children: dict[int, psutil.Process] = {}

    def ask(self) -> None:
        """A signal came: from now on the time runs."""
        with self._lock:  # once a command has ended, nothing may start: the interpreter is being taken down
            if self.asked.is_set() or self._done.is_set():
                return
            self.asked.set()
        threading.Thread(target=self._wait, name="oblivionis-stop", daemon=True).start()

    def dropped(self) -> None:
        """The signal was meant for less than the command (an answer of a chat): it goes on.

        Who listens for signals may hear of it later than the main thread, and must not take it for the command then.
        """
        self.asked.wait(HEARD_S)
        self.asked.clear()

    def _wait(self) -> None:
        self._remember()
        if self._done.wait(GRACE_S) or not self.asked.is_set():
            return
        with contextlib.suppress(Exception):
            os.write(self.errors, f"\nstopped before all was tidied up{self.hint and f'; {self.hint}'}\n".encode())
        self._end_children()
        os._exit(_CODE)

    def _remember(self) -> None:
        """Processes that belong to this one; those of a parent that ends would be found no more."""

        with contextlib.suppress(psutil.Error):
            self._children |= {child.pid: child for child in psutil.Process().children(recursive=True)}

    def _end_children(self) -> None:
        """All but the one that removes the others' locks from the system, and ends after them by itself."""
        self._remember()
        for child in self._children.values():
            with contextlib.suppress(Exception):
                if not _removes_locks(child):
                    child.kill()

    def finish(self, code: int) -> None:
        """The command has ended: where it was asked to, so does the process, at once and with its children.

        Who listens for signals may hear of one later than the main thread, whose code tells of it; and from here on
        another one has nothing left to stop.
        """
        with _deaf():
            if code == _CODE:
                self.asked.wait(HEARD_S)
            with self._lock:
                self._done.set()
            if not self.asked.is_set():
                return
            self._end_children()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(code or _CODE)


def _removes_locks(child: psutil.Process) -> bool:
    """Whether a process is Python's own `multiprocessing.resource_tracker`; not where that cannot be told."""
    try:
        return any(part.startswith("from multiprocessing.resource_tracker import main") for part in child.cmdline())
    except psutil.Error:
        return False


@contextmanager
def _deaf() -> Iterator[None]:
    """Inside, the main thread is not interrupted by signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


stopping = Stopping()
"""Of this process' command."""


def leave(code: int) -> NoReturn:
    """End the process: threads and exit handlers that hang are not waited for longer than `GRACE_S`.

    Who catches the SystemExit, so that the main thread goes on, is left alone.
    """

    def late() -> None:
        time.sleep(GRACE_S)
        if not threading.main_thread().is_alive():
            os._exit(code)

    threading.Thread(target=late, name="oblivionis-end", daemon=True).start()
    sys.exit(code)


@contextmanager
def signals() -> Iterator[None]:
    """Inside, SIGTERM is like Ctrl-C, and either starts the time; also while the main thread is deep in computing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stopping.begin()
    stopping.errors = errors = _standard_error()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    terminate = signal.getsignal(signal.SIGTERM)
    if terminate is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_listen, args=(reading,), name="oblivionis-signals", daemon=True).start()
    try:
        yield
    finally:
        if terminate is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(before)
        os.close(writing)
        if errors != 2:
            stopping.errors = 2
            os.close(errors)


def _standard_error() -> int:
    """A descriptor of its own, since libraries redirect number 2 for a while; number 2 where it is closed."""
    try:
        return os.dup(2)
    except OSError:
        return 2


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _listen(reading: int) -> None:
    """Until the other end is closed: which signals came."""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while came := pipe.read(64):
            if {signal.SIGINT, signal.SIGTERM} & set(came):
                stopping.ask()
