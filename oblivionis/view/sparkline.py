"""Drawings without axes for tables and cards: how a probability went, and how far a suite's cells are from the best."""

from __future__ import annotations

from collections.abc import Sequence

import htpy as h

WIDTH, HEIGHT, MARGIN = 120.0, 30.0, 3.0
"""Of a curve, in its own units."""
TALL = 44.0
"""The height of a cloud of points, which is as wide."""


def sparkline(points: Sequence[tuple[float, float]], level: float | None, label: str) -> h.Node:
    """Values from 0 to 1 at x, which ascend, as inline SVG; nothing of less than two. Curves of all runs have one
    height, so that they can be compared. level: a dashed line; label: what a reader hears."""
    if len(points) < 2:
        return None
    first, last = points[0][0], points[-1][0]
    width = last - first or 1.0
    places = [(_round(MARGIN + (x - first) / width * (WIDTH - 2 * MARGIN)), height(y)) for x, y in points]
    line = "M" + "L".join(f"{x:g} {y:g}" for x, y in places)
    dashed = h.path(".level", d=f"M0 {height(level):g}H{WIDTH:g}") if level is not None and level == level else None
    x, y = places[-1]
    return h.svg(".spark", viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", aria_label=label)[
        dashed, h.path(d=line), h.circle(cx=f"{x:g}", cy=f"{y:g}", r="2.5")
    ]


def scatter(points: Sequence[tuple[float, float]], best: Sequence[tuple[float, float]], label: str) -> h.Node:
    """Points as inline SVG, those of `best` joined and full; nothing without any. x from 0, y from the lowest one."""
    if not points:
        return None
    right = max(x for x, _ in points) or 1.0
    low, top = min(y for _, y in points), max(y for _, y in points)

    def place(x: float, y: float) -> tuple[float, float]:
        up = (y - low) / (top - low) if top > low else 0.5
        return _round(MARGIN + x / right * (WIDTH - 2 * MARGIN)), _round(TALL - MARGIN - up * (TALL - 2 * MARGIN))

    line = "M" + "L".join(f"{x:g} {y:g}" for x, y in (place(*point) for point in best))
    dots = [
        h.circle(class_={"best": point in set(best)}, cx=f"{x:g}", cy=f"{y:g}", r="1.7")
        for point in points
        for x, y in (place(*point),)
    ]
    return h.svg(".dots", viewBox=f"0 0 {WIDTH:g} {TALL:g}", role="img", aria_label=label)[h.path(d=line), dots]


def height(value: float) -> float:
    """Where a value stands in the drawing, 0 at its foot and 1 at its top."""
    return _round(HEIGHT - MARGIN - min(1.0, max(0.0, value)) * (HEIGHT - 2 * MARGIN))


def _round(place: float) -> float:
    return round(place, 2)
