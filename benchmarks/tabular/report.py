"""What a suite's results say: RULER's Tables 1 and 3, what the gap is without unlearning, each dataset alone, and the
methods against each other; with the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from benchmarks.output.terminal import say
from benchmarks.tabular import data, plots
from benchmarks.tabular.experiment import ORACLE, ORIGINAL, PAIR, TWIN
from benchmarks.tabular.results import Rows, label
from benchmarks.tabular.settings import Settings
from evaluation.ruler import statistics
from oblivionis.files import write_atomic
from oblivionis.reports.format import fixed, p_value
from oblivionis.reports.table import Table

TABLES_FILE = "tables.md"
PRINTED_DATASETS = 3
"""With more datasets than these the tables of single ones are in the file only."""
_ACCURACIES = ("forget_accuracy", "retain_accuracy", "test_accuracy")
_MEASURES = {"s_gap": "S_gap", "mean_rank": "mean R", "mia": "MIA", "retain_accuracy": "retain acc."}


@dataclass(frozen=True)
class Tested:
    """A mean against its null, by the mixed model, or by Wilcoxon's test where that is singular or has one dataset.

    z, icc: NaN without a mixed model; signed_rank: Wilcoxon's test of the datasets' means, or of one dataset's seeds.
    """

    mean: float
    z: float
    p: float
    icc: float
    note: str
    signed_rank: statistics.SignedRank

    @classmethod
    def of(cls, values: np.ndarray, groups: Sequence[str], null: float) -> Tested:
        """values (n,), one per seed and dataset; groups (n,): the datasets."""
        mean = float(values.mean())
        if len(set(groups)) == 1:
            test = statistics.signed_rank(values, null)
            return cls(mean, np.nan, test.p, np.nan, "", test)
        fit = statistics.mixed_model(values, groups, null)
        if fit.z is None or fit.p is None or fit.icc is None:
            return cls(mean, np.nan, fit.signed_rank.p, np.nan, fit.note, fit.signed_rank)
        return cls(mean, fit.z, fit.p, fit.icc, "", fit.signed_rank)

    @property
    def cells(self) -> list[str]:
        """z, p (with a W if it is Wilcoxon's), and the rank-biserial correlation, positive above the null."""
        p = p_value(self.p) + (" W" if np.isnan(self.z) else "")
        return [fixed(self.z, 2), p, f"{self.signed_rank.signed:+.2f} {self.signed_rank.label}"]


def write(
    settings: Settings, frame: pd.DataFrame, described: Mapping[str, Mapping[str, Any]], folder: Path, console: Console
) -> None:
    """Write tables.md and figures/ into `folder` and print the tables; what the suite does not plan is left out.

    described: what datasets.json says.
    """
    rows = planned(settings, frame)
    common = [gaps(rows), ranks(rows), output_level(rows), baselines(rows)]
    single = [single_dataset(rows.alone(name)) for name in rows.titles]
    pairs = [post_hoc(rows)] if len(rows.methods) > 1 else []
    missing = [_missing(name, described) for name in settings.datasets if name not in rows.titles]
    sections = [_heading(rows, missing), *(table.markdown() for table in [*common, *single, *pairs])]
    write_atomic(folder / TABLES_FILE, "\n".join(sections))
    plots.write(rows, folder / "figures")
    few = len(single) <= PRINTED_DATASETS
    for table in [*common, *(single if few else []), *map(_significant, pairs)]:
        console.print(table.rich())
    if not few:
        say(console, f"a table for each of the {len(single)} datasets: {folder / TABLES_FILE}")
    if missing:
        names = ", ".join(data.SOURCES[name].title for name in settings.datasets if name not in rows.titles)
        say(console, f"left out, reasons in {TABLES_FILE}: {names}", "yellow")


def planned(settings: Settings, frame: pd.DataFrame) -> Rows:
    """The rows of `frame` that the suite plans."""
    kept = frame.loc[
        frame["dataset"].isin(settings.datasets)
        & frame["fraction"].isin(settings.forget_fractions)
        & frame["seed"].isin(settings.seeds)
    ]
    present = set(kept["dataset"])
    titles = {name: data.SOURCES[name].title for name in settings.datasets if name in present}
    return Rows(kept, titles, sorted(set(kept["fraction"])), list(settings.methods))


def gaps(rows: Rows) -> Table:
    """The left half of RULER's Table 1: S_gap against 0, per fraction and method."""
    note = (
        "S_gap: null 0; negative: residual memorisation, positive: over-correction. z, p: linear mixed model with a "
        "random intercept per dataset, p by Student's t with one degree of freedom less than datasets; W: "
        "Wilcoxon's test instead. r: rank-biserial correlation of what that "
        "test takes, the datasets' means, or the seeds of a single dataset."
    )
    return _tested(rows, "Calibration gap (RULER, Table 1)", "s_gap", 0.0, 4, note)


def ranks(rows: Rows) -> Table:
    """The right half of RULER's Table 1: the mean rank against 0.5, per fraction and method."""
    note = "R: null 0.5; above: residual memorisation, below: over-displacement. Otherwise as above."
    return _tested(rows, "Mean percentile rank (RULER, Table 1)", "mean_rank", 0.5, 3, note)


def _tested(rows: Rows, title: str, column: str, null: float, digits: int, note: str) -> Table:
    cells: list[Sequence[str] | None] = []
    notes = [note]
    for fraction in rows.fractions:
        for method in rows.methods:
            test = _test(rows, fraction, method, column, null)
            cells.append([_percent(fraction), label(method), fixed(test.mean, digits), *test.cells, fixed(test.icc, 2)])
            if test.note:
                notes.append(f"{_percent(fraction)}, {label(method)}: {test.note}.")
        cells.append(None)
    heads = ["forget", "method", _MEASURES[column], "z", "p", "r", "ICC"]
    return Table(title, heads, cells[:-1], " ".join(notes))


def _test(rows: Rows, fraction: float, method: str, column: str, null: float) -> Tested:
    groups = rows.values(fraction, method, "dataset").tolist()
    return Tested.of(rows.values(fraction, method, column), groups, null)


def output_level(rows: Rows) -> Table:
    """RULER's Table 3: membership inference against 0.5 and accuracies against the oracle's, with their verdicts."""
    cells: list[Sequence[str] | None] = []
    for fraction in rows.fractions:
        targets = [0.5, *(rows.mean(fraction, ORACLE, column) for column in _ACCURACIES)]
        for method in (ORIGINAL, ORACLE, *rows.methods):
            means = [rows.mean(fraction, method, column) for column in ("mia", *_ACCURACIES)]
            judged = [_judged(value, target) for value, target in zip(means, targets, strict=True)]
            if method == ORACLE:
                judged[1:] = map(fixed, means[1:])
            cells.append([_percent(fraction), label(method), *judged])
        cells.append(None)
    heads = ["forget", "model", "MIA", "forget acc.", "retain acc.", "test acc."]
    note = (
        f"✓: within {statistics.TOLERANCE} of the target, ✗: not. The target of MIA (balanced accuracy of a threshold "
        "on the loss that tells forget from test records) is 0.5, that of an accuracy is the oracle's."
    )
    return Table("Output level (RULER, Table 3)", heads, cells[:-1], note)


def _judged(value: float, target: float) -> str:
    return f"{fixed(value)} {'✓' if abs(value - target) <= statistics.TOLERANCE + 1e-12 else '✗'}"


def baselines(rows: Rows) -> Table:
    """S_oracle, S_gap and R where nothing was unlearned: of the original, and of oracles retrained (0.A.5)."""
    cells: list[Sequence[str] | None] = []
    for fraction in rows.fractions:
        for model in (ORIGINAL, ORACLE, TWIN, PAIR):
            rank = fixed(rows.mean(fraction, model, "mean_rank"))
            if model == ORACLE:
                cells.append([_percent(fraction), label(model), "–", "–", "–", "–", rank])
                continue
            test = _test(rows, fraction, model, "s_gap", 0.0)
            similar = fixed(rows.mean(fraction, model, "s_oracle"), 4)
            cells.append([_percent(fraction), label(model), similar, fixed(test.mean, 4), *test.cells[1:], rank])
        cells.append(None)
    heads = ["forget", "model", "S_oracle", "S_gap", "p", "r", "mean R"]
    note = (
        f"Against the oracle. {label(TWIN)}: retrained from the same initial weights with other dropout masks; "
        f"{label(PAIR)}: from other weights. What a method's gap says of its unlearning is where it differs from these."
    )
    return Table("Nothing unlearned: calibration of the null (RULER, 0.A.5)", heads, cells[:-1], note)


def single_dataset(rows: Rows) -> Table:
    """The one dataset of `rows`: means over its seeds, S_gap with its spread and Wilcoxon's test."""
    cells: list[Sequence[str] | None] = []
    bands = []
    for fraction in rows.fractions:
        for method in (ORIGINAL, ORACLE, TWIN, PAIR, *rows.methods):
            shift, *others = (rows.mean(fraction, method, column) for column in ("s_shift", "mean_rank", "mia"))
            gap = _gap_cells(rows, fraction, method)
            cells.append([_percent(fraction), label(method), *gap, fixed(shift, 4), *map(fixed, others)])
        cells.append(None)
        retrained = rows.values(fraction, TWIN, "s_gap")
        if len(retrained) >= 3 and np.ptp(retrained) > 0:
            band = statistics.noise_band(retrained)
            bands.append(f"[{fixed(band.low, 4)}, {fixed(band.high, 4)}] ({_percent(fraction)})")
    heads = ["forget", "model", "S_gap", "SD", "p", "r", "S_shift", "mean R", "MIA"]
    note = "S_gap: mean and standard deviation of the seeds; p, r: Wilcoxon's signed-rank test of the seeds against 0."
    if bands:
        note += (
            " With 95 % probability, if it varies normally, S_gap of one more oracle retrained from the same weights "
            f"is in {', '.join(bands)}."
        )
    return Table(f"{next(iter(rows.titles.values()))} alone", heads, cells[:-1], note)


def _gap_cells(rows: Rows, fraction: float, method: str) -> list[str]:
    if method == ORACLE:
        return ["–", "–", "–", "–"]
    values = rows.values(fraction, method, "s_gap")
    test = statistics.signed_rank(values)
    spread = float(values.std(ddof=1)) if len(values) > 1 else np.nan
    return [fixed(float(values.mean()), 4), fixed(spread, 4), p_value(test.p), f"{test.signed:+.2f}"]


def post_hoc(rows: Rows) -> Table:
    """All pairs of methods × measures of a fraction: Wilcoxon, adjusted by Benjamini and Hochberg over all of them.

    As in the other tables the test takes the datasets' means, or the seeds of a single dataset.
    """
    cells: list[Sequence[str] | None] = []
    for fraction in rows.fractions:
        values = {m: {column: _paired(rows, fraction, m, column) for column in _MEASURES} for m in rows.methods}
        for pair in statistics.post_hoc(values):
            difference = float((values[pair.first][pair.metric] - values[pair.second][pair.metric]).mean())
            found = [f"{difference:+.4f}", f"{pair.test.signed:+.2f}", p_value(pair.p_adjusted)]
            names = f"{label(pair.first)} – {label(pair.second)}"
            mark = "*" if pair.p_adjusted < 0.05 else ""
            cells.append([_percent(fraction), names, _MEASURES[pair.metric], *found, mark])
        cells.append(None)
    heads = ["forget", "methods", "measure", "difference", "r", "adjusted p", ""]
    note = (
        f"Difference: first less second. Wilcoxon's test of {_observations(rows)}, p adjusted by Benjamini and "
        "Hochberg over all pairs and measures of a fraction; *: below 0.05."
    )
    return Table("Methods against each other", heads, cells[:-1], note, texts=3)


def _paired(rows: Rows, fraction: float, method: str, column: str) -> np.ndarray:
    if len(rows.titles) == 1:
        return rows.values(fraction, method, column)
    return np.array([rows.values(fraction, method, column, name).mean() for name in rows.titles])


def _observations(rows: Rows) -> str:
    """What a Wilcoxon test takes, and whether that can be enough: the least p of m pairs is 2^(1 − m)."""
    single = len(rows.titles) == 1
    count = len(set(rows.frame["seed"])) if single else len(rows.titles)
    name = "seeds" if single else "datasets' means"
    return f"{count} {name}" + (f" (too few: p is at least {2.0 ** (1 - count):.2g})" if count < 6 else "")


def _significant(table: Table) -> Table:
    """`post_hoc` without the pairs that do not differ significantly; they are counted in the note."""
    groups = [row for row in table.rows if row is None or row[-1]]
    tests, found = (sum(row is not None for row in rows) for rows in (table.rows, groups))
    if not found:
        return replace(table, rows=[], note=f"None of {tests} tests tells two methods apart. {table.note}")
    note = f"{found} of {tests} tests tell two methods apart; all are in {TABLES_FILE}. {table.note}"
    return replace(table, rows=groups, note=note)


def _heading(rows: Rows, missing: Sequence[str]) -> str:
    """What the tables are of."""
    own = [title for name, title in rows.titles.items() if not data.in_paper(name)]
    seeds = len(set(rows.frame["seed"]))
    lines = [
        "# RULER on tabular data",
        f"{', '.join(rows.titles.values())}; {seeds} seed{'' if seeds == 1 else 's'}."
        + (f" Not among the paper's ten datasets: {', '.join(own)}." if own else ""),
    ]
    if missing:
        lines.append("Left out:\n\n" + "\n".join(f"- {line}" for line in missing))
    return "\n\n".join(lines) + "\n"


def _missing(name: str, described: Mapping[str, Mapping[str, Any]]) -> str:
    """A dataset without results, and why."""
    return f"{data.SOURCES[name].title} ({described.get(name, {}).get('missing', 'not finished')})"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g} %"
