"""The tables of a suite: results by rows, columns and groups, beside a paper's numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from benchmarks.federated import papers, results
from benchmarks.federated.matrix import SEED
from benchmarks.federated.settings import DIFFERENCE, OURS, PAPER, Layout, Measure
from oblivionis.config import declared
from oblivionis.config.problems import did_you_mean
from oblivionis.reports.format import short
from oblivionis.reports.table import Marked, Table

FORMATS = {"md": Table.markdown, "latex": Table.latex, "csv": Table.csv, "html": Table.page}
SUFFIXES = {"md": "md", "latex": "tex", "csv": "csv", "html": "html"}
TITLES = {
    "npo_entropy": "NPO + entropy",
    "base": "Base model",
    "finetune": "Finetune",
    "retrain": "Retrain",
    "unlearn": "Unlearn",
    "local": "Local",
    "local_unlearned": "Local, unlearned",
}
_OF_METHOD = ("unlearn", "local_unlearned")
"""Models that depend on the unlearning method; of the others there is one for all methods."""


@dataclass(frozen=True)
class Entry:
    """One number of a table: mean and sample standard deviation over `count` seeds (NaN for one)."""

    mean: float
    std: float = math.nan
    count: int = 0


NONE = Entry(math.nan)
Key = tuple[str, ...]


def build(frame: pd.DataFrame, axes: Sequence[str], layout: Layout) -> Table:
    """The table of `layout`, made of results as `results.collect` describes them.

    Axes that the layout does not name and that have several values become groups of rows, except `seed`: the entries
    are means over the seeds. A number that is not there is a dash.
    """
    done = _where(frame, {"status": results.DONE})
    named = {layout.rows, layout.columns, *layout.groups}
    varying = [axis for axis in axes if axis not in named and axis != SEED and len(_labels(frame, axis)) > 1]
    layout = replace(layout, groups=tuple(a for a in (*layout.groups, *varying) if len(_labels(frame, a)) > 1))
    columns = _labels(frame, layout.columns) if layout.columns else [""]
    show = layout.show if layout.paper else (OURS,)
    rows: list[Sequence[str] | None] = []
    blocks = list(dict.fromkeys(zip(*(frame[a] for a in layout.groups), strict=True))) if layout.groups else [()]
    for block in blocks:
        chosen = _where(done, dict(zip(layout.groups, block, strict=True)))
        theirs = _published(layout, dict(zip(layout.groups, block, strict=True)), frame)
        entries = list(_entries(chosen, frame, layout, columns))
        marks = _marks(layout, columns, [values for _, _, values in entries])
        for (model, value, values), styles in zip(entries, marks, strict=True):
            label = _label(layout, model, value)
            for whose in show:
                cells = []
                for column, measure in itertools.product(columns, layout.measures):
                    ours = values[column, measure.name]
                    paper = theirs.get((model, value, column, measure.name), math.nan)
                    cells.append(_cell(whose, ours, paper, measure, styles.get((column, measure.name))))
                head = [*(title(name) for name in block), label]
                rows.append([*head, *([title(whose)] if len(show) > 1 else []), *cells])
        rows.append(None)
    heads = [*layout.groups, _rows_head(layout), *([""] if len(show) > 1 else [])]
    numbers = [f"{title(c)}\n{m.name}" if c else m.name for c, m in itertools.product(columns, layout.measures)]
    return Table(layout.title, [*heads, *numbers], rows[:-1], _note(frame, layout), texts=len(heads))


def title(label: str) -> str:
    """How a value of an axis or the name of a stage is printed."""
    if label in TITLES:
        return TITLES[label]
    said = [declared.code(kind, label).literals for kind in ("strategy", "unlearning") if label in declared.names(kind)]
    return next((literals["LABEL"] for literals in said if "LABEL" in literals), label)


def _rows_head(layout: Layout) -> str:
    return {"unlearning": "method", "strategy": "aggregator", None: "model"}.get(layout.rows, layout.rows or "model")


def _label(layout: Layout, model: str, value: str) -> str:
    """The head of a row: the method, or the model; where another axis makes the rows, its value and the model."""
    if not value:
        return title(model)
    if layout.rows and layout.rows.partition(".")[0] == "unlearning":
        return f"{title(value)} (local)" if model == "local_unlearned" and "unlearn" in layout.models else title(value)
    return title(value) if len(layout.models) == 1 else f"{title(value)}, {title(model).lower()}"


def _where(frame: pd.DataFrame, wanted: Mapping[str, str]) -> pd.DataFrame:
    chosen = np.ones(len(frame), dtype=bool)
    for column, value in wanted.items():
        chosen &= np.asarray(frame[column] == value)
    return frame.loc[chosen]


def _labels(frame: pd.DataFrame, axis: str) -> list[str]:
    """The labels of an axis in the order in which they appear."""
    return list(dict.fromkeys(map(str, frame[axis])))


def _entries(
    chosen: pd.DataFrame, frame: pd.DataFrame, layout: Layout, columns: Sequence[str]
) -> Iterator[tuple[str, str, dict[tuple[str, str], Entry]]]:
    """The rows of a block: stage, value of the axis `rows`, and entries by column and measure."""
    for model in layout.models:
        per_value = _per_value(layout, model)
        for value in _labels(frame, layout.rows) if per_value and layout.rows else [""]:
            here = _where(chosen, {"stage": model} | ({layout.rows: value} if per_value and layout.rows else {}))
            if here.empty and not per_value:
                continue
            yield (
                model,
                value,
                {
                    (column, measure.name): _entry(
                        _where(here, {layout.columns: column} if layout.columns else {}), measure
                    )
                    for column in columns
                    for measure in layout.measures
                },
            )


def _per_value(layout: Layout, model: str) -> bool:
    """Whether there is such a model for each value of the axis `rows`."""
    return layout.rows is not None and (model in _OF_METHOD or layout.rows.partition(".")[0] != "unlearning")


def _entry(frame: pd.DataFrame, measure: Measure) -> Entry:
    """Mean over the seeds; a stage that several cells share counts once."""
    found = _where(frame, {"metric": measure.metric})
    if found.empty:
        return NONE
    once = found.drop_duplicates(SEED) if SEED in found.columns else found.iloc[:1]
    values = np.asarray(once["value"], dtype=np.float64) * measure.scale
    return Entry(float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else math.nan, len(values))


def _marks(
    layout: Layout, columns: Sequence[str], rows: Sequence[Mapping[tuple[str, str], Entry]]
) -> list[dict[tuple[str, str], str]]:
    """The style of every entry that stands out, judged by what is printed."""
    styles: list[dict[tuple[str, str], str]] = [{} for _ in rows]
    for measure in layout.measures:
        if measure.best is None:
            continue
        lines = [[(n, (column, measure.name)) for column in columns] for n in range(len(rows))]
        if layout.mark_over == "rows":
            lines = [list(line) for line in zip(*lines, strict=True)]
        for line in lines:
            shown = {place: _printed(rows[place[0]][place[1]].mean, measure) for place in line}
            ranked = sorted({v for v in shown.values() if v == v}, reverse=measure.best == "max")
            if len(line) < 2 or not ranked:
                continue
            for (n, key), value in shown.items():
                if value == ranked[0] and measure.style != "none":
                    styles[n][key] = measure.style
                elif len(ranked) > 1 and value == ranked[1] and measure.runner_up != "none":
                    styles[n][key] = measure.runner_up
    return styles


def _printed(value: float, measure: Measure) -> float:
    return float(short(value, measure.digits)) if value == value else math.nan


def unknown_metrics(frame: pd.DataFrame, layout: Layout) -> Iterator[str]:
    """What is wrong with the metrics of `layout` that no model has; nothing while no cell is done."""
    known = list(frame.loc[frame["status"] == results.DONE, "metric"].unique())
    for measure in layout.measures:
        if known and measure.metric not in known:
            hint = did_you_mean(measure.metric, known)
            place = f"tables.{layout.name}.metrics.{measure.name}"
            yield f"{place}: no model has the metric {measure.metric!r}{f'; {hint}' if hint else ''}"


def _cell(whose: str, ours: Entry, paper: float, measure: Measure, style: str | None) -> str:
    if whose == PAPER:
        return short(paper, measure.digits)
    if whose == DIFFERENCE:
        difference = ours.mean - paper
        return "–" if difference != difference else f"{difference:+.{2 if measure.digits is None else measure.digits}f}"
    shown = short(ours.mean, measure.digits)
    if ours.count > 1:
        shown += f" ± {short(ours.std, measure.digits)}"
    return Marked(shown, style) if style else shown


def _published(layout: Layout, block: Mapping[str, str], frame: pd.DataFrame) -> dict[tuple[str, str, str, str], float]:
    """The paper's numbers of a block by stage, value of the axis `rows`, column and measure."""
    if layout.paper is None:
        return {}
    table = papers.read(layout.paper)
    fixed = {
        axis: str(frame[axis].iloc[0]) for axis in table.columns if axis in frame.columns and axis not in results.FIXED
    }
    wanted = {**fixed, **block, **layout.paper_axes}
    for axis in (layout.rows, layout.columns):
        wanted.pop(axis or "", None)
    table = _where(table, {axis: value for axis, value in wanted.items() if axis in table.columns})
    found = {}
    for row in table.to_dict("records"):
        value = str(row.get(layout.rows or "", "")) if _per_value(layout, row["stage"]) else ""
        column = str(row.get(layout.columns or "", ""))
        found[row["stage"], value, column, row["metric"]] = float(row["value"])
    return found


def _note(frame: pd.DataFrame, layout: Layout) -> str:
    parts = [layout.note] if layout.note else []
    if SEED in frame.columns and len(_labels(frame, SEED)) > 1:
        parts.append(f"Mean ± standard deviation over {len(_labels(frame, SEED))} seeds.")
    marks = {m.style: "best" for m in layout.measures if m.best and m.style != "none"}
    over = {"columns": "of its row", "rows": "of its column"}[layout.mark_over]
    for style in marks:
        names = ", ".join(m.name for m in layout.measures if m.best and m.style == style)
        parts.append(f"{'Bold' if style == 'bold' else 'Underlined'}: best {names} {over}.")
    if any(m.runner_up != "none" and m.best for m in layout.measures):
        parts.append("Runner-up: " + ", ".join(sorted({m.runner_up for m in layout.measures if m.best})) + ".")
    if layout.paper:
        parts.append(f"Paper: {papers.source(layout.paper)}.")
    failed = _labels(_where(frame, {"status": results.FAILED}), "cell")
    if failed:
        parts.append(f"Failed: {', '.join(failed)}.")
    return " ".join(parts)
