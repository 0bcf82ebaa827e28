"""The figure of cost against utility: what serving a demand costs, and what it leaves. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.output.frontier import Point, frontier_of
from oblivionis.reports.svg import FIGURE_STYLE, INK

_EXACT, _OTHER, _PALE = "tab:blue", "tab:orange", "0.6"
_LINE_POINTS = 9.0


def draw(points: Sequence[Point], cost: str, metric: str) -> Figure:
    """The figure. cost, metric: what the axes are called. Equal points give an equal figure."""
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(9.6, 5.4), layout="constrained")
        axis = figure.subplots()
        axis.set_xscale("log")
        for point in points:
            axis.plot([point.cost] * 2, [point.before, point.after], color=_PALE, linewidth=0.8, zorder=1)
            axis.plot(point.cost, point.before, "_", color=_PALE, markersize=9, zorder=1)
            style = {"color": _EXACT if point.exact else _OTHER, "markersize": 6, "capsize": 3, "elinewidth": 0.8}
            axis.errorbar(point.cost, point.after, point.spread or None, fmt="o" if point.exact else "s", **style)
        for among, (color, line, _) in _frontiers(points):
            on = frontier_of(among)
            axis.step(
                [p.cost for p in on], [p.after for p in on], line, where="post", color=color, linewidth=0.9, zorder=0
            )
        axis.set_xlabel(cost)
        axis.set_ylabel(metric)
        axis.margins(x=0.22, y=0.08)
        axis.grid(color="0.5", alpha=0.25, linewidth=0.6)
        figure.legend(handles=_legend(points), loc="outside upper right", ncols=5, frameon=False)
        figure.draw_without_rendering()
        _name(axis, points)
    return figure


def _frontiers(points: Sequence[Point]) -> list[tuple[Sequence[Point], tuple[str, Any, str]]]:
    """Of all points, and of the exact ones where these are some: each with its colour, dashes and label."""
    exact, every = [point for point in points if point.exact], (points, (INK, "-", "frontier"))
    return [every, (exact, (_EXACT, "--", "frontier of exact ones"))] if 0 < len(exact) < len(points) else [every]


def _legend(points: Sequence[Point]) -> list[Line2D]:
    kinds = {point.exact for point in points}
    exact = Line2D([], [], color=_EXACT, marker="o", linestyle="none", label="exact, after the demands")
    other = Line2D([], [], color=_OTHER, marker="s", linestyle="none", label="approximate, after the demands")
    before = Line2D([], [], color=_PALE, marker="_", linewidth=0.8, label="before them")
    lines = [Line2D([], [], color=c, linestyle=d, linewidth=0.9, label=name) for _, (c, d, name) in _frontiers(points)]
    return [*([exact] if True in kinds else []), *([other] if False in kinds else []), before, *lines]


def _name(axis: Any, points: Sequence[Point]) -> None:
    """The points' labels, each right of its point and above those that would lie on it."""
    scale = 72 / axis.figure.dpi
    taken: list[tuple[float, float, float]] = []
    for point in sorted(points, key=lambda p: (p.after, p.cost, p.label)):
        x, y = (float(value) * scale for value in axis.transData.transform((point.cost, point.after)))
        start, end, level = x + 6, x + 10 + 4.2 * len(point.label), y
        for left, right, height in sorted(taken, key=lambda of: of[2]):
            if left < end and start < right and abs(level - height) < _LINE_POINTS:
                level = height + _LINE_POINTS
        taken.append((start, end, level))
        axis.annotate(
            point.label,
            (point.cost, point.after),
            (6, level - y),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
        )


def svg(figure: Figure) -> bytes:
    """The figure as a file of its own: black on nothing."""
    buffer = io.BytesIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context(FIGURE_STYLE):
        figure.savefig(buffer, format="svg", metadata=nothing)
    return buffer.getvalue()
