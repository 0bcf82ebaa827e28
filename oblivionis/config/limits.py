"""Limits of a configuration key: what it means, its choices and its range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class About:
    """What the schema says of one key. The limits bind a number, or the length of a text or a list.

    `repeats`: a list may have an entry more than once. `words`: entries of a list that may also stand without one.
    """

    help: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    repeats: bool = False
    words: tuple[str, ...] = ()

    def allows(self, value: float) -> bool:
        """Whether a number lies within the limits."""
        return not (
            (self.at_least is not None and value < self.at_least)
            or (self.above is not None and value <= self.above)
            or (self.at_most is not None and value > self.at_most)
            or (self.below is not None and value >= self.below)
        )

    def range(self, name: str = "value") -> str:
        """The limits in words, such as `0 < value <= 1`; empty when there are none."""
        low = f"{_number(self.at_least)} <= " if self.at_least is not None else ""
        low = f"{_number(self.above)} < " if self.above is not None else low
        high = f" <= {_number(self.at_most)}" if self.at_most is not None else ""
        high = f" < {_number(self.below)}" if self.below is not None else high
        if low and not high:
            sign, limit = (">=", self.at_least) if self.above is None else (">", self.above)
            return f"{name} {sign} {_number(limit)}"
        return f"{low}{name}{high}" if low or high else ""


def _number(value: float | None) -> str:
    return str(int(value)) if value is not None and value == int(value) else str(value)


def about(meaning: str, **limits: Any) -> dict[str, About]:
    """Metadata of a dataclass field; the keywords are those of `About`."""
    return {"about": About(meaning, **limits)}
