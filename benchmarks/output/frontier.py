"""Methods by what serving a demand costs and what it leaves, and which of them no other one beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oblivionis.reports.format import number


@dataclass(frozen=True)
class Point:
    """A method: what a demand costs, and a metric, higher the better, before all demands and after them.

    spread: the standard deviation of the last over seeds, 0 for one; exact: its models are those of a federation that
    never had the records.
    """

    label: str
    cost: float
    before: float
    after: float
    spread: float = 0.0
    exact: bool = False


def frontier_of(points: Sequence[Point]) -> list[Point]:
    """Those that leave more than every one that costs no more, the cheapest first (the Pareto frontier)."""
    found: list[Point] = []
    for point in sorted(points, key=lambda p: (p.cost, -p.after)):
        if not found or point.after > found[-1].after:
            found.append(point)
    return found


def in_words(points: Sequence[Point], unit: str) -> str:
    """The frontiers of all points, and of the exact ones where these are some, each in a sentence."""
    exact = [point for point in points if point.exact]
    among = {"On the frontier": points} | ({"Of the exact ones": exact} if 0 < len(exact) < len(points) else {})
    sentences = []
    for begin, of in among.items():
        on = [f"{p.label} ({number(p.cost)} {unit}: {number(p.after)})" for p in frontier_of(of)]
        sentences.append(f"{begin}, the cheapest first: {', '.join(on)}.")
    return " ".join(sentences)
