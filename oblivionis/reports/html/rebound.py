"""The part of a run's report on its rebound: what came back, in words and as curves."""

from __future__ import annotations

from collections.abc import Sequence

import htpy as h
import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from evaluation.metrics.rebound import Curve, mean_shares
from oblivionis.measures.rebound.report import STAGE, sentences
from oblivionis.measures.rebound.tracker import rebound_curves
from oblivionis.reports.markup import captioned, paragraphs
from oblivionis.reports.svg import FIGURE_STYLE, svg_figure
from oblivionis.runs.directory import RunDirectory

_CAPTION = (
    "Share of what a request forgot (Prob of its records before less right after unlearning) that is back, by rounds "
    "since the one that served it; 0 is the end of that round, when other clients had trained once. Thin: each "
    "request. Thick: their mean; fewer requests reach the later rounds."
)


def section(run: RunDirectory) -> list[h.Node]:
    """The part of `report.html`: sentences and the curves; nothing without measurements."""
    curves = rebound_curves(run.metrics(), STAGE)
    if not curves:
        return []
    return [*paragraphs(sentences(run)), figure_of(curves)]


def figure_of(curves: Sequence[Curve]) -> h.Node:
    """Recovered share by rounds since served; nothing where no request forgot anything."""
    mean = mean_shares(curves)
    if not mean.size:
        return None
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(4.6, 3.0), layout="constrained")
        axis = figure.subplots()
        for curve in curves:
            shares = curve.shares
            if shares is not None:
                axis.plot(range(len(shares)), shares, color="tab:red", linewidth=0.6, alpha=0.5)
        axis.plot(range(len(mean)), mean, color="tab:red", linewidth=2.2, marker="o", markersize=3, label="mean")
        axis.axhline(0.5, color="0.5", linestyle="--", linewidth=0.9, label="half of it")
        axis.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
        low, high = axis.get_ylim()
        axis.set(xlabel="rounds since served", ylabel="share back", ylim=(min(low, -0.05), max(high, 1.03)))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False)
    label = "Share of what each request forgot that is back, by rounds since served"
    return captioned(h.div(".panels")[svg_figure(figure, "rebound", label)], _CAPTION)
