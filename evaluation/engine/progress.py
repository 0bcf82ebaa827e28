"""Progress of long computations, reported without handing a callback down to the loops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[str, str, int, int], None]
"""Called with the name of the part at work ("" where none was named), what it counts, how many are done and how many
there are; from several threads, one at a time."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_part: ContextVar[str] = ContextVar("part", default="")


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Context in which the progress of everything counted is reported.

    Parameters
    ----------
    watcher : Watcher
    """
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def part(name: str) -> Iterator[None]:
    """Context whose progress belongs to a part; within another part that one is reported.

    Parameters
    ----------
    name : str
    """
    token = None if _part.get() else _part.set(name)
    try:
        yield
    finally:
        if token is not None:
            _part.reset(token)


def counter(what: str, total: int) -> Callable[[int], None]:
    """Make a function that counts and reports what is done; any thread may call it.

    Parameters
    ----------
    what : str
        What is counted, in words.
    total : int

    Returns
    -------
    callable (int)
        Adds to the number done.
    """
    watcher, name = _watcher.get(), _part.get()
    if watcher is None:
        return _ignore
    lock, done = threading.Lock(), 0
    watcher(name, what, 0, total)

    def add(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            watcher(name, what, done, total)

    return add


def _ignore(count: int) -> None: ...
