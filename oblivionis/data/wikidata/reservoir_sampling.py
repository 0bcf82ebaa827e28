"""Uniform samples of streams and sets of numbers, in bounded memory, that can be put away and brought back."""

from __future__ import annotations

import base64
import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_PAGE = 1024


@dataclass(slots=True)
class Reservoir:
    """A uniform sample of a stream (Vitter 1985, algorithm R).

    size: of the sample, at least 1; seen: items offered so far; items: the sample. Every set of `size` offered items is
    equally likely, but their order is not: shuffle them before taking some.
    """

    size: int
    seen: int = 0
    items: list[Any] = field(default_factory=list)

    def offer(self, item: Any, rng: random.Random) -> None:
        """The next item of the stream."""
        self.seen += 1
        if self.seen <= self.size:
            self.items.append(item)
        elif (slot := rng.randrange(self.seen)) < self.size:
            self.items[slot] = item

    def state(self) -> list[Any]:
        """As JSON, if the items are; `Reservoir(*state)` is the same reservoir."""
        return [self.size, self.seen, self.items]


class IdSet:
    """Numbers >= 0 that were seen: one bit each, in pages of 8192."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self._pages: dict[int, bytearray] = {}
        if state is not None:
            bits = zlib.decompress(base64.b85decode(state["bits"]))
            for i, page in enumerate(state["pages"]):
                self._pages[page] = bytearray(bits[i * _PAGE : (i + 1) * _PAGE])

    def add(self, number: int) -> bool:
        """Note `number`; whether it is new."""
        page = self._pages.get(number >> 13)
        if page is None:
            page = self._pages[number >> 13] = bytearray(_PAGE)
        byte, bit = (number & 8191) >> 3, 1 << (number & 7)
        new = not page[byte] & bit
        page[byte] |= bit
        return new

    def state(self) -> dict[str, Any]:
        """As JSON; `IdSet(state)` is the same set."""
        bits = zlib.compress(b"".join(self._pages.values()), 1)
        return {"pages": list(self._pages), "bits": base64.b85encode(bits).decode()}
