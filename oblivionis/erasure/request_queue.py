"""Pending requests in the order in which they are served where not all of them are served at once."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Turn = tuple[int, int, int, str]
"""Number by which clients take turns, failed attempts, round from which on it may be served, id: the smallest comes
first."""


class Queue:
    """Turns in order. A turn that holds no more is dropped when it comes up: every step is logarithmic."""

    def __init__(self) -> None:
        self._heap: list[Turn] = []

    def add(self, turn: Turn) -> None:
        """Enter a turn; twice is as once."""
        heapq.heappush(self._heap, turn)

    def first(self, most: int, holds: Callable[[Turn], bool], takes: Callable[[str], bool]) -> list[str]:
        """The first `most` ids, in order, that `takes` takes of the turns that hold; all of these stay in the queue."""
        seen: list[Turn] = []
        chosen: list[str] = []
        while self._heap and len(chosen) < most:
            turn = heapq.heappop(self._heap)
            if (seen and turn == seen[-1]) or not holds(turn):
                continue
            seen.append(turn)
            if takes(turn[-1]):
                chosen.append(turn[-1])
        for turn in seen:
            heapq.heappush(self._heap, turn)
        return chosen
