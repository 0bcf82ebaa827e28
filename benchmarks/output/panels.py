"""The drawings of a suite: panels over the values of an axis, cells side by side. Needs matplotlib."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import htpy as h
import matplotlib
from matplotlib.figure import Figure

from oblivionis.reports.svg import FIGURE_STYLE, INK, PAPER, svg_figure

LINES = {"finetune": ("tab:orange", "--", "finetuned"), "retrain": ("tab:green", "-.", "retrained")}
"""How the models are drawn that are no points: colour, dashes, label."""
_WRAP = 3


def metric_figure(values: Any, axes: Sequence[str], paper: Any, metric: str, name: str) -> h.Element:
    """The figure of a metric, called `name`: a panel per value of the first axis, the others side by side in each.

    values: rows of the metric; paper: published numbers or None, as in `SuiteView`.
    """
    return svg_figure(_draw(values, axes, paper, metric), f"m-{metric}", f"{name} of every cell", wide=True)


def _draw(values: Any, axes: Sequence[str], paper: Any, metric: str) -> Figure:
    panels = list(dict.fromkeys(values[axes[0]].astype(str))) if len(axes) > 1 else [""]
    within = list(axes[1:] if len(axes) > 1 else axes)
    unlearned = values[values.stage == "unlearn"]
    labels = list(dict.fromkeys(_labels(unlearned, within)))
    columns = min(_WRAP, len(panels))
    rows = math.ceil(len(panels) / columns)
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(9.6, 2.4 * rows + 0.8), layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axis in grid.flat[len(panels) :]:
            axis.set_visible(False)
        for axis, panel in zip(grid.flat, panels, strict=False):
            here = values if not panel else values[values[axes[0]].astype(str) == panel]
            _panel(axis, here, within, labels)
            if paper is not None:
                _published(axis, paper[paper.metric == metric], axes, panel, within, labels)
            axis.set_title(panel)
            axis.set_xticks(range(len(labels)), labels, rotation=35, ha="right", rotation_mode="anchor")
            axis.tick_params(axis="x", labelbottom=True)
            axis.set_xlim(-0.5, len(labels) - 0.5)
            axis.grid(axis="y", color="0.5", alpha=0.25, linewidth=0.6)
        handles = {
            label: handle for axis in grid.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        if handles:
            figure.legend(handles.values(), handles, loc="outside upper right", ncols=4, frameon=False)
    return figure


def _labels(rows: Any, axes: Sequence[str]) -> list[str]:
    return [" · ".join(map(str, values)) for values in rows[list(axes)].itertuples(index=False)] if axes else []


def _panel(axis: Any, here: Any, within: Sequence[str], labels: Sequence[str]) -> None:
    unlearned = here[here.stage == "unlearn"]
    groups: dict[str, list[float]] = {}
    for label, value in zip(_labels(unlearned, within), unlearned.value, strict=True):
        groups.setdefault(label, []).append(value)
    known = [(i, groups[label]) for i, label in enumerate(labels) if label in groups]
    if known:
        places, values = zip(*known, strict=True)
        bars = [statistics.stdev(value) if len(value) > 1 else 0.0 for value in values]
        means = [statistics.fmean(value) for value in values]
        axis.errorbar(places, means, bars, fmt="o", markersize=5, capsize=3, color="tab:blue", label="unlearned")
    for stage, (color, line, label) in LINES.items():
        reference = here[here.stage == stage].drop_duplicates("run").value
        if not reference.empty:
            axis.axhline(reference.mean(), color=color, linestyle=line, linewidth=1, label=label)


def _published(
    axis: Any, paper: Any, axes: Sequence[str], panel: str, within: Sequence[str], labels: Sequence[str]
) -> None:
    """The paper's numbers of the unlearned models that fall into a panel."""
    if "stage" in paper:
        paper = paper[paper.stage.fillna("unlearn") == "unlearn"]
    if panel and axes[0] in paper:
        paper = paper[paper[axes[0]].isna() | (paper[axes[0]].astype(str) == panel)]
    if any(name not in paper for name in within):
        return
    places = [
        (labels.index(label), value)
        for label, value in zip(_labels(paper, within), paper.value, strict=True)
        if label in labels
    ]
    if places:
        style = {"marker": "D", "markersize": 5, "markerfacecolor": PAPER, "color": INK, "linestyle": "none"}
        axis.plot(*zip(*places, strict=True), label="paper", zorder=3, **style)
