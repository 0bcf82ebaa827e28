"""What a suite's measurements say: tables on the terminal and as files, a figure, and `suite.html`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console

from benchmarks.meta import results
from benchmarks.meta.metrics import JUDGES
from benchmarks.meta.models import JUDGED, LABELS, OTHERS, STATES
from benchmarks.meta.settings import Settings
from benchmarks.meta.statistics import Estimate
from benchmarks.meta.verdicts import Verdict, verdicts
from benchmarks.output.terminal import say
from oblivionis.files import write_atomic
from oblivionis.reports.format import fixed
from oblivionis.reports.table import Table

TABLES = "tables"
Cells = Callable[[Verdict], Iterable[str]]
SHOWN = {"forget_prob": "forget Prob", "forget_rouge": "forget ROUGE-L", "retain_prob": "retain Prob"}
"""Metrics by which a reader sees what the models are like."""


def write(settings: Settings, frame: pd.DataFrame, folder: Path, console: Console) -> None:
    """Print the tables; write them into `tables/` as Markdown and CSV, the figure, and `suite.html`."""
    from benchmarks.meta import page  # matplotlib: what only makes tables does without

    found = verdicts(frame, settings.intervals)
    tables = tables_of(settings, frame, found)
    for name, table in tables.items():
        write_atomic(folder / TABLES / f"{name}.md", table.markdown())
        write_atomic(folder / TABLES / f"{name}.csv", table.csv())
        console.print()
        console.print(table.rich())
    file = page.write(settings, list(tables.values()), found, folder)
    say(console, f"report: {file}; tables as Markdown and CSV: {folder / TABLES}")


def tables_of(settings: Settings, frame: pd.DataFrame, found: Sequence[Verdict]) -> dict[str, Table]:
    """By the name of their file: in short, the models, who tells them apart, after attacks, agreement, signs."""
    return {
        "summary": _summary(found),
        "models": _models(frame),
        "knows": _knows(found, settings),
        "attacks": _attacks(found),
        "agreement": _agreement(found),
        "directions": _directions(),
    }


def _summary(found: Sequence[Verdict]) -> Table:
    def cells(verdict: Verdict) -> Iterator[str]:
        yield f"{verdict.values} of {verdict.models}"
        yield _text(verdict.aucs[0])
        yield _hardest(verdict)
        yield from (fixed(e.value, 2) for e in verdict.aucs[1:])
        yield from (fixed(e.value, 2) for e in verdict.accuracies)
        yield _text(verdict.tau)

    heads = ["values", "AUC", "AUC, hardest", *(f"AUC\n{state}" for state in STATES[1:])]
    heads += [*(f"balanced accuracy\n{state}" for state in STATES), "τ-b"]
    note = "AUC, hardest: against those models that do not know which are told apart worst. All else as below."
    return _table("In short", heads, found, cells, note)


def _hardest(verdict: Verdict) -> str:
    """The least AUC against a kind of model that does not know, with the kind where another has a larger one."""
    known = [(e.value, LABELS[model]) for e, model in zip(verdict.by_kind, OTHERS, strict=True) if e.value == e.value]
    if not known:
        return "–"
    least, model = min(known)
    return fixed(least, 2) + (f" ({model})" if max(known)[0] > least else "")


def _models(frame: pd.DataFrame) -> Table:
    values = results.values_of(frame)
    rows: list[Sequence[str] | None] = []
    for place, model in enumerate(JUDGED):
        for state, name in enumerate(STATES):
            parts = [values[metric][:, place, state] for metric in SHOWN if metric in values]
            rows.append([LABELS[model], name, *(f"{fixed(p.mean(), 2)} ± {fixed(p.std(ddof=1), 2)}" for p in parts)])
        rows.append(None)
    count = frame["federation"].nunique()
    heads = ["model", "state", *(head for metric, head in SHOWN.items() if metric in values)]
    return Table("The models", heads, rows[:-1], f"Mean ± standard deviation over {count} federations.")


def _knows(found: Sequence[Verdict], settings: Settings) -> Table:
    def cells(verdict: Verdict) -> Iterator[str]:
        yield f"{verdict.values} of {verdict.models}"
        yield from map(_text, [verdict.aucs[0], *verdict.by_kind, verdict.within])

    heads = ["values", "all", *(LABELS[model] for model in OTHERS), "same federation"]
    note = (
        "AUC: probability that a model that knows the forget records is rated above one that does not, before any "
        "attack, over models of all federations; same federation: over models of one. 0.5: chance; below: the metric "
        f"moves against what is expected of it. In brackets {100 * settings.intervals.confidence:g} % of "
        f"{settings.intervals.resamples} bootstrap resamples of whole federations; [1.00, 1.00] says that no "
        "model here was out of order. values: models, in all states, in which the metric is defined."
    )
    return _table("Who knows? AUC of every metric", heads, found, cells, note)


def _attacks(found: Sequence[Verdict]) -> Table:
    def cells(verdict: Verdict) -> Iterator[str]:
        yield from map(_text, [*verdict.aucs, *verdict.accuracies])

    heads = [f"{what}\n{state}" for what in ("AUC", "balanced accuracy") for state in STATES]
    note = (
        "AUC: among models in the same state. Balanced accuracy: half the sum of the rates at which models that know "
        "and models that do not are told as such, by a threshold that was chosen on the plain models of all other "
        "federations; 0.5: chance."
    )
    return _table("After quantisation and relearning", heads, found, cells, note)


def _agreement(found: Sequence[Verdict]) -> Table:
    def cells(verdict: Verdict) -> Iterator[str]:
        yield _text(verdict.tau)
        yield str(verdict.pairs)

    ranked = len(JUDGED) * len(STATES)
    note = (
        f"Mean Kendall τ-b of two federations' orders of their {ranked} models in all states. 1: the same order, 0: "
        f"none; {_perfect():.2f}: what a metric has that puts those that know first and orders the rest by chance."
    )
    return _table("Agreement between federations", ["τ-b", "pairs"], found, cells, note)


def _perfect() -> float:
    """Expected τ of two orders that agree on who knows and are independent within."""
    know, rest = len(STATES), (len(JUDGED) - 1) * len(STATES)
    return know * rest / ((know + rest) * (know + rest - 1) / 2)


def _directions() -> Table:
    rows = [[j.family, j.label, "higher" if j.sign > 0 else "lower", j.why] for j in JUDGES]
    return Table("What is expected of a model that knows", ["family", "metric", "value", "because"], rows, texts=4)


def _table(title: str, heads: Sequence[str], found: Sequence[Verdict], cells: Cells, note: str) -> Table:
    rows: list[Sequence[str] | None] = []
    for verdict in found:
        if rows and rows[-1] is not None and rows[-1][0] != verdict.judge.family:
            rows.append(None)
        rows.append([verdict.judge.family, verdict.judge.label, *cells(verdict)])
    return Table(title, ["family", "metric", *heads], rows, note)


def _text(found: Estimate) -> str:
    if np.isnan(found.value):
        return "–"
    return f"{fixed(found.value, 2)} [{fixed(found.low, 2)}, {fixed(found.high, 2)}]"
