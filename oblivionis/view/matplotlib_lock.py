"""One drawing at a time: matplotlib's settings belong to the whole process, and pages are made in threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

DRAWING = threading.RLock()
"""Held while something is drawn."""
KEPT = 64
T = TypeVar("T")
Make = Callable[[], T]


class Kept:
    """What took long to make, until what it was made of changes; the latest `KEPT` of them."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, tuple[Hashable, object]] = OrderedDict()

    def get(self, key: Hashable, of: Hashable, make: Make[T]) -> T:
        """What was made for `key` while `of` was the same; else `make()`, with nothing else drawn meanwhile."""
        with DRAWING:
            known = self._entries.get(key)
            if known is None or known[0] != of:
                self._entries[key] = known = (of, make())
            self._entries.move_to_end(key)
            while len(self._entries) > KEPT:
                self._entries.popitem(last=False)
            return known[1]  # type: ignore[return-value]
