"""`suite.html`: what a suite of federated runs was, what came out, what to doubt, and where each run's report lies."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import htpy as h
import pandas as pd

from benchmarks.output.figures import figures, metric_name
from benchmarks.output.warnings import found_warnings
from oblivionis.files import write_atomic
from oblivionis.reports.format import number
from oblivionis.reports.markup import (
    contents,
    explained,
    facts_list,
    html_page,
    html_table,
    joined,
    section_heading,
    warning_list,
    with_code,
)
from oblivionis.reports.table import Table

FILE = "suite.html"
SECONDS, SEED = "seconds", "seed"


@dataclass(frozen=True)
class SuiteView:
    """What a suite's report is made of.

    folder: of the suite; the cells' `run` is relative to it. cells: one row per cell, model and metric, with the
    columns `cell`, one for each of `axes`, `stage` (whose final model was measured), `status` (done or failed),
    `error`, `run` (of the stage: rows of a stage that cells share name the same run), `metric`, `value`. axes: names of
    the matrix' axes; `seed` is averaged over. paper: the published numbers, with `metric`, `value` and any of the axes
    and `stage` (default: unlearn); an axis that is missing matches every value. facts: label → text for what was run.
    warnings: sentences in addition to those that are found in the cells. metrics: those that are drawn (None:
    `figures.drawn`). frontier: a figure that comes before these.
    """

    title: str
    description: str
    folder: Path
    cells: pd.DataFrame
    axes: Sequence[str]
    tables: Sequence[Table] = ()
    paper: pd.DataFrame | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    metrics: Sequence[str] | None = None
    frontier: h.Node = None

    @property
    def compared(self) -> list[str]:
        """The axes without the seed."""
        return [axis for axis in self.axes if axis != SEED]


def write_suite_html(folder: Path, suite: SuiteView) -> Path:
    """Write `suite.html` into `folder`; it needs no network, and links to the cells' own reports by relative paths.

    Raises ValueError for cells without one of the columns that `SuiteView` names.
    """
    missing = {"cell", *suite.axes, "stage", "status", "error", "run", "metric", "value"} - set(suite.cells.columns)
    if missing:
        raise ValueError(f"the suite's cells lack the columns {', '.join(sorted(missing))}")
    wrong, limits = found_warnings(suite.cells, suite.axes, suite.folder)
    parts = [
        h.h1[suite.title],
        [h.p[with_code(text)] for text in suite.description.split("\n\n") if text],
        _contents(suite),
        warning_list("Warnings", list(dict.fromkeys([*suite.warnings, *wrong]))),
        warning_list("How far the claims reach", limits, limits=True),
        section_heading("run", "What was run", "Cell", "Stage"),
        facts_list([*{**_matrix(suite), **suite.facts}.items()]),
        section_heading("results", "Results", "Retrained model", "Standard deviation (±)"),
        [table.html() for table in suite.tables] or h.p["No tables yet."],
        section_heading("figures", "Figures"),
        suite.frontier,
        figures(suite.cells, suite.axes, suite.paper, suite.metrics),
        _paper(suite),
        section_heading("cells", "Cells"),
        _cells(folder, suite),
        section_heading("cost", "Cost", "Seconds", "Seconds saved"),
        _cost(suite.cells),
    ]
    path = folder / FILE
    write_atomic(path, html_page(suite.title, parts))
    return path


def _contents(suite: SuiteView) -> h.Element:
    paper = ["paper"] if suite.paper is not None else []
    return contents(["run", "results", "figures", *paper, "cells", "cost", "glossary"])


def _matrix(suite: SuiteView) -> dict[str, str]:
    """The values of every axis, and how many cells are done."""
    cells = suite.cells.drop_duplicates("cell")
    failed = set(suite.cells.loc[suite.cells.status == "failed", "cell"])
    unmeasured = set(suite.cells.loc[suite.cells.status == "not measured", "cell"])
    shown = {axis: ", ".join(map(str, dict.fromkeys(cells[axis]))) for axis in suite.axes}
    done = len(cells) - len(failed)
    return {
        **shown,
        "Cells": f"{done} of {len(cells)} done"
        + (f", {len(failed)} failed" if failed else "")
        + (f", {len(unmeasured)} not measured" if unmeasured else ""),
    }


def _cells(folder: Path, suite: SuiteView) -> h.Element:
    """A row per cell: its state, the reports of its stages, its error."""
    rows = []
    for cell, group in suite.cells.groupby("cell", sort=False):
        first = group.iloc[0]
        errors = [str(e) for e in dict.fromkeys(group.error[group.status != "done"].fillna("")) if e]
        failed = (group.status == "failed").any()
        unmeasured = list(dict.fromkeys(group.metric[group.status == "not measured"]))
        state = h.b(".bad")["failed"] if failed else h.b(".bad")["not measured"] if unmeasured else "done"
        rows.append(
            [
                str(cell),
                *(str(first[axis]) for axis in suite.axes),
                state,
                _links(folder, suite.folder, group),
                "; ".join([*([f"{', '.join(unmeasured)} failed"] if unmeasured else []), *errors]),
            ]
        )
    if not rows:
        return h.p["None yet."]
    heads = [explained("Cell", "cell"), *suite.axes, "state", "reports", "error"]
    return html_table(heads, ["", *[""] * len(suite.axes), "who", "", ""], rows, "Cells and their reports")


def _links(folder: Path, suite_folder: Path, group: Any) -> list[h.Node]:
    """Links to the reports of the runs that made a cell's stages; a run without one is named only."""
    parts: list[h.Node] = []
    for run, stages in group.groupby("run", sort=False).stage:
        if not isinstance(run, str) or not run:
            continue
        text = ", ".join(dict.fromkeys(map(str, stages)))
        report = suite_folder / run / "report.html"
        target = Path(os.path.relpath(report, folder)).as_posix()
        parts.append(h.a(href=quote(target))[text] if report.is_file() else text)
    return joined(parts, " · ")


def _cost(cells: Any) -> h.Element:
    """Seconds of every stage, and what it saved that cells share stages."""
    seconds = cells[(cells.metric == SECONDS) & cells.value.notna()]
    if seconds.empty:
        return h.p["No seconds were written down."]
    rows: list[list[h.Node]] = []
    total = saved = 0.0
    for stage, group in seconds.groupby("stage", sort=False):
        once = group.drop_duplicates("run")
        rows.append(
            [
                str(stage),
                str(len(once)),
                str(group.cell.nunique()),
                f"{once.value.mean():.0f}",
                f"{once.value.sum():.0f}",
                f"{group.value.sum() - once.value.sum():.0f}",
            ]
        )
        total, saved = total + once.value.sum(), saved + group.value.sum() - once.value.sum()
    rows.append([h.b["together"], "", "", "", h.b[f"{total:.0f}"], h.b[f"{saved:.0f}"]])
    heads = [
        explained("Stage", "stage"),
        "runs",
        "cells that use them",
        "seconds of one",
        explained("Seconds", "seconds"),
        explained("Seconds saved", "seconds saved"),
    ]
    return html_table(heads, ["who", *["n"] * 5], rows, "What each stage cost")


def _paper(suite: SuiteView) -> h.Node:
    """Our means next to the published numbers."""
    if suite.paper is None:
        return None
    rows = []
    published: Any
    for _, published in suite.paper.iterrows():
        metric = str(published.metric)
        ours = matching(suite.cells, published, suite.compared)
        if ours.empty or not math.isfinite(published.value):
            continue
        mean, spread = ours.mean(), ours.std(ddof=1)
        text = number(mean) + (f" ± {number(spread)}" if len(ours) > 1 else "")
        axes = [str(published[axis]) if _given(published, axis) else "all" for axis in suite.compared]
        less = f"{mean - published.value:+.3f}"
        rows.append([*axes, metric_name(metric), text, str(len(ours)), number(published.value), less])
    heads = [*suite.compared, "measure", "ours", "runs", "paper", "ours − paper"]
    title, classes = "Beside the paper's numbers", [""] * (len(suite.compared) + 1) + ["n"] * 4
    table = html_table(heads, classes, rows, title) if rows else h.p["No common cell."]
    return [section_heading("paper", title, "Standard deviation (±)"), table]


def _given(published: Any, axis: str) -> bool:
    return axis in published.index and isinstance(published[axis], str) and bool(published[axis])


def matching(cells: Any, published: Any, axes: Sequence[str]) -> Any:
    """Our values of the metric, stage and axes of a published number, one per run."""
    stage = published.stage if _given(published, "stage") else "unlearn"
    rows = cells[(cells.metric == published.metric) & (cells.stage == stage) & (cells.status == "done")]
    for axis in axes:
        if _given(published, axis):
            rows = rows[rows[axis].astype(str) == published[axis]]
    return rows.drop_duplicates("run").value.dropna()
