"""Figures of a suite of federated runs: a row of panels per metric, over strategies and unlearning methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import htpy as h
import pandas as pd

from oblivionis.naming import SETS
from oblivionis.reports import summary as report
from oblivionis.reports.markup import captioned, explained

NAMES = {
    **{f"{key}_{m}": f"{group} {name}" for key, group in SETS.items() for m, name in report.MEASURES.items()},
    **{f"forget_{key}": name for key, name in report.FORGET_ONLY.items()},
    **report.LEAKAGE,
    **report.RULER,
    "model_utility": "Model utility",
    "seconds": "Seconds",
}
"""Metrics as readers know them."""
DRAWN = (
    "forget_rouge",
    "forget_prob",
    "forget_truth_ratio",
    "forget_quality",
    "retain_rouge",
    "retain_prob",
    "model_utility",
    "leakage_mean",
    "ruler_mean_rank",
)
TERMS = NAMES | {f"{key}_{m}": name for key in SETS for m, name in report.MEASURES.items()}
TERMS |= {f"forget_{key}": name for key, name in report.FORGET_ONLY.items()}
"""The word of the glossary for a metric."""


def figures(
    cells: pd.DataFrame, axes: Sequence[str], paper: pd.DataFrame | None, metrics: Sequence[str] = DRAWN
) -> list[h.Node]:
    """A figure for each of `metrics` that a cell has: a panel per value of the first axis, methods side by side.

    Points are means over seeds, bars their sample standard deviation. `cells`, `axes` and `paper` as in `SuiteView`.
    """
    compared = [axis for axis in axes if axis != "seed"]
    done: Any = cells[cells.status == "done"]
    published = [] if paper is None else list(paper.metric)
    from benchmarks.output import panels  # matplotlib: what only names metrics does without

    found: list[h.Node] = []
    for metric in dict.fromkeys([*metrics, *published]):
        mine = done[(done.metric == metric) & done.value.notna()]
        if mine[mine.stage == "unlearn"].empty:
            continue
        name = NAMES.get(metric, metric)
        drawing = panels.metric_figure(mine, compared, paper, metric, name)
        lines = [label for stage, (_, _, label) in panels.LINES.items() if (mine.stage == stage).any()]
        title = h.h3[explained(TERMS.get(metric, metric), name)]
        found += [title, captioned(drawing, _caption(mine, lines, metric in published))]
    return found or [h.p["Nothing to draw yet."]]


def _caption(mine: Any, lines: Sequence[str], published: bool) -> str:
    seeds = mine.seed.nunique() if "seed" in mine else 1
    spread = f"mean and standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    text = f"Points: unlearned model, {spread}."
    text += f" Lines: {' and '.join(lines)} model, mean over the same." if lines else ""
    return text + (" Diamonds: the paper." if published else "")
