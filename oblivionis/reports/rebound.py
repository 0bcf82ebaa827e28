"""The rebound of a run for its reader: a sentence for the terminal, a section with its figure for the report."""

from __future__ import annotations

import html
import statistics
from collections.abc import Sequence

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

from evaluation.metrics.rebound import LEAST_FORGOTTEN, Curve, mean_shares, rebound_metrics
from oblivionis.assessment import evaluators
from oblivionis.assessment.evaluators.rebound import MEASURES
from oblivionis.assessment.rebound import rebound_curves
from oblivionis.reports.format import number
from oblivionis.reports.markup import FIGURE_STYLE, section_heading, svg_figure
from oblivionis.runs.directory import RunDirectory

STAGE = "unlearn"


def sentences(run: RunDirectory) -> list[str]:
    """A line per measure on what came back while the others trained on; nothing where nothing was measured."""
    rows = run.metrics()
    return [_sentence(name, curves) for name in MEASURES if (curves := rebound_curves(rows, STAGE, name))]


def _sentence(measure: str, curves: Sequence[Curve]) -> str:
    found, name = rebound_metrics(curves), evaluators.catalogue()[MEASURES[measure]].title
    count = int(found["requests"])
    if not count:
        return f"Rebound of {name}: no request forgot anything (at least {LEAST_FORGOTTEN:g})."
    known = [c for c in curves if c.shares is not None and len(c.later)]
    after = statistics.median(len(c.later) - 1 for c in known)
    back = count - round(found["censored_share"] * count)
    life = found.get("half_life_median")
    text = (
        f"Rebound of {name}: {count} request{'s' * (count != 1)} forgot {number(found['forgotten'])} on average; "
        f"{found['share_back_at_end']:.0%} of it is back at the end (median {after:g} rounds later); half of it came "
        f"back for {back} of {count}"
    )
    return text + (f", median half-life {life:g} rounds." if life is not None else ".")


def section(run: RunDirectory) -> list[str]:
    """The part of `report.html`: sentences, the curves, and a table of the requests; nothing without measurements."""
    curves = rebound_curves(run.metrics(), STAGE)
    if not curves:
        return []
    caption = (
        "Share of what a request forgot (Prob of its records before less right after unlearning) that is back, by "
        "rounds since the one that served it; 0 is the end of that round, when other clients had trained once. Thin: "
        "each request. Thick: their mean; fewer requests reach the later rounds."
    )
    drawing = _drawing(curves)
    figure = f"<figure>{drawing}<figcaption>{html.escape(caption)}</figcaption></figure>" if drawing else ""
    return [
        section_heading("rebound", "What comes back"),
        *(f"<p>{html.escape(line)}</p>" for line in sentences(run)),
        figure,
    ]


def _drawing(curves: Sequence[Curve]) -> str:
    """Recovered share by rounds since served as SVG; empty where no request forgot anything."""
    mean = mean_shares(curves)
    if not mean.size:
        return ""
    with matplotlib.rc_context(FIGURE_STYLE):
        figure, axis = plt.subplots(figsize=(6.4, 3.1), layout="constrained")
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
        return svg_figure(figure, "rebound", "Share of what each request forgot that is back, by rounds since served")
