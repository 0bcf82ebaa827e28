"""Figures of a suite of federated runs: a row of panels per metric, over strategies and unlearning methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import htpy as h
import pandas as pd

from oblivionis.measures import registry
from oblivionis.reports.markup import captioned, explained


def drawn() -> list[str]:
    """The metrics that are drawn where a suite does not name others."""
    return [key for key, metric in registry.catalogue().items() if metric.drawn]


def metric_name(metric: str) -> h.Node:
    """What readers call a metric, linked to what the glossary says of it."""
    known = registry.catalogue().get(metric)
    return explained(known.title if known else metric, registry.reader_name(metric))


def figures(
    cells: pd.DataFrame, axes: Sequence[str], paper: pd.DataFrame | None, metrics: Sequence[str] | None = None
) -> list[h.Node]:
    """A figure for each of `metrics` (None: of `drawn`) that a cell has, a panel per value of the first axis.

    Points are means over seeds, bars their sample standard deviation. `cells`, `axes` and `paper` as in `SuiteView`.
    """
    compared = [axis for axis in axes if axis != "seed"]
    done: Any = cells[cells.status == "done"]
    published = [] if paper is None else list(paper.metric)
    from benchmarks.output import panels  # matplotlib: what only names metrics does without

    found: list[h.Node] = []
    for metric in dict.fromkeys([*(drawn() if metrics is None else metrics), *published]):
        values = done[(done.metric == metric) & done.value.notna()]
        if values[values.stage == "unlearn"].empty:
            continue
        drawing = panels.metric_figure(values, compared, paper, metric, registry.reader_name(metric))
        lines = [label for stage, (_, _, label) in panels.LINES.items() if (values.stage == stage).any()]
        found += [h.h3[metric_name(metric)], captioned(drawing, _caption(values, lines, metric in published))]
    return found or [h.p["Nothing to draw yet."]]


def _caption(values: Any, lines: Sequence[str], published: bool) -> str:
    seeds = values.seed.nunique() if "seed" in values else 1
    spread = f"mean and standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    text = f"Points: unlearned model, {spread}."
    text += f" Lines: {' and '.join(lines)} model, mean over the same." if lines else ""
    return text + (" Diamonds: the paper." if published else "")
