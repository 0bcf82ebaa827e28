"""Figures of a suite of federated runs: a row of panels per metric, over strategies and unlearning methods."""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Sequence
from typing import Any

import matplotlib
import pandas as pd
from markupsafe import Markup
from matplotlib import pyplot as plt

from oblivionis.assessment import evaluators
from oblivionis.reports.markup import FIGURE_STYLE, INK, PAPER, explained, svg_figure


def drawn() -> list[str]:
    """The metrics that are drawn where a suite does not name others."""
    return [key for key, metric in evaluators.catalogue().items() if metric.drawn]


def metric_name(metric: str) -> Markup:
    """What readers call a metric, linked to what the glossary says of it."""
    known = evaluators.catalogue().get(metric)
    return Markup(explained(known.title if known else metric, evaluators.reader_name(metric)))


_LINES = {"finetune": ("tab:orange", "--", "finetuned"), "retrain": ("tab:green", "-.", "retrained")}
_WRAP = 3


def figures(
    cells: pd.DataFrame, axes: Sequence[str], paper: pd.DataFrame | None, metrics: Sequence[str] | None = None
) -> list[str]:
    """A figure for each of `metrics` (None: of `drawn`) that a cell has, a panel per value of the first axis.

    Points are means over seeds, bars their sample standard deviation. `cells`, `axes` and `paper` as in `SuiteView`.
    """
    compared = [axis for axis in axes if axis != "seed"]
    done: Any = cells[cells.status == "done"]
    published = [] if paper is None else list(paper.metric)
    found = []
    for metric in dict.fromkeys([*(drawn() if metrics is None else metrics), *published]):
        mine = done[(done.metric == metric) & done.value.notna()]
        if mine[mine.stage == "unlearn"].empty:
            continue
        label = f"{evaluators.reader_name(metric)} of every cell"
        drawing = svg_figure(_draw(mine, compared, paper, metric), f"m-{metric}", label)
        figure = f"<figure>{drawing}<figcaption>{_caption(mine, metric in published)}</figcaption></figure>"
        found.append(f"<h3>{metric_name(metric)}</h3>{figure}")
    return found or ["<p>Nothing to draw yet.</p>"]


def _caption(mine: Any, published: bool) -> str:
    seeds = mine.seed.nunique() if "seed" in mine else 1
    spread = f"mean and standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    lines = [label for stage, (_, _, label) in _LINES.items() if (mine.stage == stage).any()]
    text = f"Points: unlearned model, {spread}."
    text += f" Lines: {' and '.join(lines)} model, mean over the same." if lines else ""
    return html.escape(text + (" Diamonds: the paper." if published else ""))


def _draw(mine: Any, axes: Sequence[str], paper: Any, metric: str) -> Any:
    panels = list(dict.fromkeys(mine[axes[0]].astype(str))) if len(axes) > 1 else [""]
    within = list(axes[1:] if len(axes) > 1 else axes)
    unlearned = mine[mine.stage == "unlearn"]
    labels = list(dict.fromkeys(_labels(unlearned, within)))
    columns = min(_WRAP, len(panels))
    rows = math.ceil(len(panels) / columns)
    with matplotlib.rc_context(FIGURE_STYLE):
        size = (9.6, 2.4 * rows + 0.8)
        figure, grid = plt.subplots(
            rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
        )
        for axis in grid.flat[len(panels) :]:
            axis.set_visible(False)
        for axis, panel in zip(grid.flat, panels, strict=False):
            here = mine if not panel else mine[mine[axes[0]].astype(str) == panel]
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
    for stage, (color, line, label) in _LINES.items():
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
