"""The tables of a suite: results by rows, columns and groups, next to a paper's numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.federated import papers, results
from benchmarks.federated.matrix import SEED
from benchmarks.federated.settings import DIFFERENCE, OURS, PAPER, Layout, Measure
from oblivionis.config import extension_traits
from oblivionis.config.problems import did_you_mean
from oblivionis.measures import registry
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
OF_METHOD = ("unlearn", "local_unlearned")
"""Models that depend on the unlearning method; of the others there is one for all methods."""


@dataclass(frozen=True)
class Entry:
    """One number of a table: mean and sample standard deviation over `count` seeds (NaN for one); `failed`: seeds whose
    value is missing because an evaluator failed."""

    mean: float
    std: float = math.nan
    count: int = 0
    failed: int = 0


NONE = Entry(math.nan)
Rows = Sequence[Mapping[str, Any]]


def build(found: pa.Table, axes: Sequence[str], layout: Layout) -> Table:
    """The table of `layout`, made of the results of a suite.

    Axes that the layout does not name and that have several values become groups of rows, except `seed`: the entries
    are means over the seeds. A number that is not there is a dash.
    """
    every: Rows = found.to_pylist()
    shown = [row for row in every if row["status"] in (results.DONE, results.NOT_MEASURED)]
    named = {layout.rows, layout.columns, *layout.groups}
    varying = [axis for axis in axes if axis not in named and axis != SEED and len(_labels(every, axis)) > 1]
    layout = replace(layout, groups=tuple(a for a in (*layout.groups, *varying) if len(_labels(every, a)) > 1))
    columns = _labels(every, layout.columns) if layout.columns else [""]
    show = layout.show if layout.paper else (OURS,)
    rows: list[Sequence[str] | None] = []
    marked: dict[str, set[str]] = {}
    blocks = list(dict.fromkeys(tuple(row[axis] for axis in layout.groups) for row in every)) if layout.groups else [()]
    for block in blocks:
        chosen = _where(shown, dict(zip(layout.groups, block, strict=True)))
        theirs = _published(layout, dict(zip(layout.groups, block, strict=True)), every)
        entries = list(_entries(chosen, every, layout, columns))
        marks = _marks(layout, columns, [values for _, _, values in entries])
        for (_, name), style in itertools.chain.from_iterable(styles.items() for styles in marks):
            marked.setdefault(style, set()).add(name)
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
    return Table(layout.title, [*heads, *numbers], rows[:-1], _note(every, layout, marked), texts=len(heads))


def title(label: str) -> str:
    """How a value of an axis or the name of a stage is printed."""
    if label in TITLES:
        return TITLES[label]
    said = [
        extension_traits.code(kind, label).literals
        for kind in ("strategy", "unlearning")
        if label in extension_traits.names(kind)
    ]
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


def _where(rows: Rows, wanted: Mapping[str, str]) -> Rows:
    return [row for row in rows if all(row[column] == value for column, value in wanted.items())]


def _labels(rows: Rows, axis: str) -> list[str]:
    """The labels of an axis in the order in which they appear."""
    return list(dict.fromkeys(row[axis] for row in rows))


def _entries(
    chosen: Rows, every: Rows, layout: Layout, columns: Sequence[str]
) -> Iterator[tuple[str, str, dict[tuple[str, str], Entry]]]:
    """The rows of a block: stage, value of the axis `rows`, and entries by column and measure."""
    for model in layout.models:
        per_value = _per_value(layout, model)
        for value in _labels(every, layout.rows) if per_value and layout.rows else [""]:
            in_row = _where(chosen, {layout.rows: value} if per_value and layout.rows else {})
            here = _where(in_row, {"stage": model})
            if not here and not per_value:
                continue
            entries = {}
            for column in columns:
                at = {layout.columns: column} if layout.columns else {}
                failed = _failed(_where(in_row, at))
                for measure in layout.measures:
                    found = _where(here, {"metric": measure.metric, "status": results.DONE, **at})
                    found = [row for row in found if row["value"] is not None]
                    entries[column, measure.name] = _entry(found, measure, model, failed)
            yield model, value, entries


def _per_value(layout: Layout, model: str) -> bool:
    """Whether there is such a model for each value of the axis `rows`."""
    return layout.rows is not None and (model in OF_METHOD or layout.rows.partition(".")[0] != "unlearning")


def _failed(rows: Rows) -> dict[str | None, set[tuple[str, str]]]:
    """By seed the stages whose model evaluators failed on, and these."""
    found: dict[str | None, set[tuple[str, str]]] = {}
    for row in _where(rows, {"status": results.NOT_MEASURED}):
        found.setdefault(row.get(SEED), set()).add((row["stage"], row["metric"]))
    return found


def _entry(
    found: Rows, measure: Measure, model: str, failed: Mapping[str | None, Collection[tuple[str, str]]]
) -> Entry:
    """Mean over the seeds; a stage that several cells share counts once."""
    first = {row.get(SEED): row["value"] for row in reversed(found)}
    unmeasured = [s for s, of in failed.items() if s not in first and registry.not_measured(measure.metric, model, of)]
    if not first:
        return replace(NONE, failed=len(unmeasured))
    values = np.asarray([first[seed] for seed in dict.fromkeys(row.get(SEED) for row in found)], dtype=np.float64)
    values *= measure.scale
    std = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    return Entry(float(values.mean()), std, len(values), len(unmeasured))


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
            entries = {place: rows[place[0]][place[1]] for place in line}
            shown = {p: math.nan if e.failed else _printed(e.mean, measure) for p, e in entries.items()}
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


def unknown_metrics(found: pa.Table, layout: Layout) -> Iterator[str]:
    """What is wrong with the metrics of `layout` that no model has; nothing while no cell is done."""
    rows = found.to_pylist()
    known = _labels(_where(rows, {"status": results.DONE}), "metric")
    failed = _labels(_where(rows, {"status": results.NOT_MEASURED}), "metric")
    for measure in layout.measures:
        if known and measure.metric not in known and registry.evaluator_of(measure.metric) not in failed:
            hint = did_you_mean(measure.metric, known)
            place = f"tables.{layout.name}.metrics.{measure.name}"
            yield f"{place}: no model has the metric {measure.metric!r}{f'; {hint}' if hint else ''}"


def _cell(whose: str, ours: Entry, paper: float, measure: Measure, style: str | None) -> str:
    if whose == PAPER:
        return short(paper, measure.digits)
    if whose == DIFFERENCE:
        difference = ours.mean - paper
        return "–" if difference != difference else f"{difference:+.{2 if measure.digits is None else measure.digits}f}"
    if ours.failed and not ours.count:
        return Marked("failed", "alarm")
    shown = short(ours.mean, measure.digits)
    if ours.count > 1:
        shown += f" ± {short(ours.std, measure.digits)}"
    if ours.failed:
        return Marked(f"{shown} ({ours.failed} failed)", "alarm")
    return Marked(shown, style) if style else shown


def _published(layout: Layout, block: Mapping[str, str], every: Rows) -> dict[tuple[str, str, str, str], float]:
    """The paper's numbers of a block by stage, value of the axis `rows`, column and measure."""
    if layout.paper is None:
        return {}
    table = papers.read(layout.paper)
    ours = every[0] if every else {}
    fixed = {axis: ours[axis] for axis in table[0] if axis in ours and axis not in results.FIXED}
    wanted = {**fixed, **block, **layout.paper_axes}
    for axis in (layout.rows, layout.columns):
        wanted.pop(axis or "", None)
    found = {}
    for row in _where(table, {axis: value for axis, value in wanted.items() if axis in table[0]}):
        value = row.get(layout.rows or "", "") if _per_value(layout, row["stage"]) else ""
        column = row.get(layout.columns or "", "")
        found[row["stage"], value, column, row["metric"]] = row["value"]
    return found


def _note(every: Rows, layout: Layout, marked: Mapping[str, Collection[str]]) -> str:
    """What stands below a table; marked: by style the measures of which a number has it."""
    parts = [layout.note] if layout.note else []
    if every and SEED in every[0] and len(_labels(every, SEED)) > 1:
        parts.append(f"Mean ± standard deviation over {len(_labels(every, SEED))} seeds.")
    over = {"columns": "of its row", "rows": "of its column"}[layout.mark_over]
    for style in dict.fromkeys(m.style for m in layout.measures):
        names = [m.name for m in layout.measures if m.style == style and m.name in marked.get(style, ())]
        if names:
            parts.append(f"{'Bold' if style == 'bold' else 'Underlined'}: best {', '.join(names)} {over}.")
    if seconds := sorted({m.runner_up for m in layout.measures if m.name in marked.get(m.runner_up, ())}):
        parts.append(f"Runner-up: {', '.join(seconds)}.")
    if layout.paper:
        parts.append(f"Paper: {papers.source(layout.paper)}.")
    shown = {m.metric: m.name for m in layout.measures}
    notes: dict[str, dict[str, None]] = {}
    for row in _where(every, {"status": results.DONE}):
        if row["error"] and row["metric"] in shown and row["stage"] in layout.models:
            notes.setdefault(row["error"], {})[shown[row["metric"]]] = None
    parts += [f"{', '.join(names)}: {note}." for note, names in notes.items()]
    failed = _labels(_where(every, {"status": results.FAILED}), "cell")
    if failed:
        parts.append(f"Failed: {', '.join(failed)}.")
    unmeasured = _where(every, {"status": results.NOT_MEASURED})
    if unmeasured:
        named = dict.fromkeys(f"{row['cell']} ({row['metric']} in {row['stage']})" for row in unmeasured)
        parts.append(f"Not measured, the evaluator failed: {', '.join(named)}.")
    return " ".join(parts)
