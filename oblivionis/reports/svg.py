"""Figures within a page: matplotlib's drawing as inline SVG, in the page's own colours.

Only what draws imports this module: importing matplotlib takes time.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import htpy as h
import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

INK, PAPER = "#010203", "#040506"
"""Colours of a figure that become the page's own, so that it can be read on light and on dark."""
FIGURE_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "oblivionis",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), INK
    ),
}


_STYLE = re.compile(r'style="([^"]*)"')
_FONT = re.compile(r"(?:(?P<style>italic|oblique) )?(?:(?P<weight>\w+) )?(?P<size>[\d.]+px) .+")
_JOINS = 'stroke-linejoin="round" stroke-linecap="butt"'
"""What matplotlib's own style element says of every element."""


def svg_figure(figure: Figure, name: str, label: str, *, wide: bool = False) -> h.Element:
    """A figure for a page. `label` says what can be seen; `name` must be unique in the page: it keeps the ids apart.

    What matplotlib writes is `Markup`: it has escaped the texts of the figure itself. It comes without styles, as
    attributes, so that it can be shown where a policy forbids them, and in the page's own font.
    wide: on a phone it is moved rather than made small.
    """
    buffer = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context(FIGURE_STYLE):
        figure.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor").replace(PAPER, "var(--paper)")
    svg = _STYLE.sub(_attributes, re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL))
    prefix = re.sub(r"[^\w-]", "-", name)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    head = Markup(f'<svg role="img" {_JOINS} aria-label="{{}}"').format(label)
    around = h.div(".wide.figure", tabindex="0") if wide else h.div(".figure")
    return around[head + Markup(svg.removeprefix("<svg"))]


def _attributes(style: re.Match[str]) -> str:
    """The properties of a style attribute as attributes of their own; its font, but for family, in parts."""
    given = dict(part.strip().split(": ", 1) for part in style[1].split(";") if part.strip())
    font = _FONT.fullmatch(given.pop("font", ""))
    given |= {f"font-{name}": value for name, value in font.groupdict().items() if value} if font else {}
    given.pop("font-family", None)
    return " ".join(f'{name}="{value}"' for name, value in given.items())


Path = tuple[list[float], list[float]]
"""The x and the y of a path in pieces: one element of a drawing, however many there are."""


def path_of_lines(lines: Iterable[Sequence[tuple[float, float]]]) -> Path:
    """Lines through points (x, y) as one path; a line without points is left out."""
    x: list[float] = []
    y: list[float] = []
    for points in filter(None, lines):
        x += [*([math.nan] if x else []), *(point[0] for point in points)]
        y += [*([math.nan] if y else []), *(point[1] for point in points)]
    return x, y


def path_of_segments(segments: Iterable[tuple[float, float, float]]) -> Path:
    """Upright segments (x, from, to) as one path."""
    return path_of_lines([[(x, low), (x, high)] for x, low, high in segments])
