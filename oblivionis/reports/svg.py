"""Figures within a page: matplotlib's drawing as inline SVG, in the page's own colours.

Only what draws imports this module: importing matplotlib takes time.
"""

from __future__ import annotations

import io
import re
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


def svg_figure(figure: Figure, name: str, label: str) -> h.Element:
    """A figure for a page. `label` says what can be seen; `name` must be unique in the page: it keeps the ids apart.

    What matplotlib writes is `Markup`: it has escaped the texts of the figure itself.
    """
    buffer = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context(FIGURE_STYLE):
        figure.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor").replace(PAPER, "var(--paper)")
    prefix = re.sub(r"[^\w-]", "-", name)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    head = Markup('<svg role="img" aria-label="{}"').format(label)
    return h.div(".figure")[head + Markup(svg.removeprefix("<svg"))]
