"""What a suite's results say: RULER's Tables 1 and 3, what the gap is without unlearning, each dataset alone, post-hoc
tests of the methods against each other, and the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from benchmarks.tables import Table, number, p_value
from benchmarks.tabular import analysis, data, plots
from benchmarks.tabular.analysis import Tested, tested
from benchmarks.tabular.experiment import ORACLE, ORIGINAL, PAIR, TWIN
from benchmarks.tabular.plots import label
from benchmarks.tabular.settings import Settings
from oblivionis.files import write_atomic

TABLES_FILE = "tables.md"
TOLERANCE = 0.05
"""An output-level measure passes within this of its target."""
_PRINTED_DATASETS = 3
_BASELINES = {
    ORIGINAL: "original: nothing unlearned",
    TWIN: "oracle retrained: same start, other dropout",
    PAIR: "oracle retrained: other seed",
}


@dataclass(frozen=True)
class Rows:
    """The planned rows of results, with what a reader is to see of them, in order."""

    frame: pd.DataFrame
    titles: Mapping[str, str]
    fractions: Sequence[float]
    methods: Sequence[str]

    def of(self, fraction: float, method: str) -> pd.DataFrame:
        """The rows of a method at a fraction."""
        return self.frame[(self.frame["fraction"] == fraction) & (self.frame["method"] == method)]

    def test(self, fraction: float, method: str, column: str, null: float) -> Tested:
        """`tested` of a column, a group per dataset."""
        rows = self.of(fraction, method)
        return tested(rows[column].to_numpy(), rows["dataset"].to_numpy(), null)


def write(
    settings: Settings, frame: pd.DataFrame, described: Mapping[str, Mapping[str, Any]], folder: Path, console: Console
) -> None:
    """Write tables.md and figures/ into `folder` and print the tables; what the suite does not plan is left out.

    described: what datasets.json says.
    """
    rows = planned(settings, frame)
    few = len(rows.titles) <= _PRINTED_DATASETS
    tables = [
        residuals(rows),
        output_level(rows),
        baselines(rows),
        *(per_dataset(rows, name) for name in rows.titles),
        post_hoc(rows),
    ]
    shown = [table for table in tables if few or not table.title.startswith("Dataset: ")]
    missing = [describe_missing(name, described) for name in settings.datasets if name not in rows.titles]
    sections = [heading(settings, rows, missing), *(table.markdown() for table in tables)]
    write_atomic(folder / TABLES_FILE, "\n".join(sections))
    plots.write(rows.frame, rows.titles, rows.methods, folder / "figures")
    for table in shown:
        console.print(table.rich())
    if not few:
        console.print(f"{len(rows.titles)} tables of single datasets: {folder / TABLES_FILE}", soft_wrap=True)
    for line in missing:
        console.print(f"left out: {line}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def planned(settings: Settings, frame: pd.DataFrame) -> Rows:
    """The rows that the suite plans, of `frame`."""
    kept = frame[
        frame["dataset"].isin(settings.datasets)
        & frame["fraction"].isin(settings.forget_fractions)
        & frame["seed"].isin(settings.seeds)
    ]
    present = set(kept["dataset"])
    titles = {name: data.SOURCES[name].title for name in settings.datasets if name in present}
    return Rows(kept, titles, sorted(set(kept["fraction"])), list(settings.methods))


def describe_missing(name: str, described: Mapping[str, Mapping[str, Any]]) -> str:
    """A dataset without results, and why."""
    return f"{data.SOURCES[name].title} ({described.get(name, {}).get('missing', 'not finished')})"


def heading(settings: Settings, rows: Rows, missing: Sequence[str]) -> str:
    """What the tables are of."""
    own = [title for name, title in rows.titles.items() if not data.in_paper(name)]
    lines = [
        "# RULER on tabular data",
        f"Datasets: {', '.join(rows.titles.values())}."
        + (f" Not among the paper's ten: {', '.join(own)}." if own else ""),
        f"{len(settings.seeds)} seeds; mean over datasets and seeds where nothing else is said.",
    ]
    if missing:
        lines.append("Left out:\n\n" + "\n".join(f"- {line}" for line in missing))
    return "\n\n".join(lines) + "\n"


def residuals(rows: Rows) -> Table:
    """RULER's Table 1: S_gap against 0 and the mean rank against 0.5, per fraction and method."""
    cells: list[Sequence[str] | None] = []
    notes: list[str] = []
    for fraction in rows.fractions:
        for method in rows.methods:
            gap, rank = rows.test(fraction, method, "s_gap", 0.0), rows.test(fraction, method, "mean_rank", 0.5)
            icc = [number(test.icc, 2) for test in (gap, rank)]
            cells.append(
                [_percent(fraction), label(method), number(gap.mean, 4), *_statistics(gap)]
                + [number(rank.mean), *_statistics(rank), "/".join(icc)]
            )
            notes += [note for test in (gap, rank) if (note := test.note) and note not in notes]
        cells.append(None)
    columns = ["forgotten", "method", "S_gap", "z", "p", "r", "mean R", "z", "p", "r", "ICC gap/R"]
    note = " ".join(
        [
            "S_gap: null 0, negative: residual memorisation. R: null 0.5, above: residual memorisation. z and p: linear "
            "mixed model with a random intercept per dataset; a p with W: Wilcoxon. r: rank-biserial correlation of the "
            "same observations as Wilcoxon's: the datasets' means, or the seeds of a single dataset.",
            *notes,
        ]
    )
    return Table("Residuals in the representations (RULER, Table 1)", columns, cells[:-1], note)


def _statistics(test: Tested) -> list[str]:
    p = p_value(test.p) + ("" if test.mixed else " W")
    return [number(test.z, 2), p, f"{number(test.effect, 2)} {test.effect_label}".strip()]


def output_level(rows: Rows) -> Table:
    """RULER's Table 3: membership inference against 0.5 and accuracies against the oracle's, with their verdicts."""
    columns = ["mia", "forget_accuracy", "retain_accuracy", "test_accuracy"]
    cells: list[Sequence[str] | None] = []
    for fraction in rows.fractions:
        oracle = rows.of(fraction, ORACLE)[columns].mean()
        for method in (ORIGINAL, ORACLE, *rows.methods):
            means = rows.of(fraction, method)[columns].mean()
            judged = [_judged(means["mia"], 0.5)]
            for column in columns[1:]:
                judged.append(number(means[column]) if method == ORACLE else _judged(means[column], oracle[column]))
            cells.append([_percent(fraction), label(method), *judged])
        cells.append(None)
    heads = ["forgotten", "model", "MIA", "forget acc.", "retain acc.", "test acc."]
    note = (
        f"✓: within {TOLERANCE} of the target, ✗: not. The target of MIA (balanced accuracy of a threshold on the loss, "
        "forget against test records) is 0.5, that of an accuracy is the oracle's."
    )
    return Table("Output level (RULER, Table 3)", heads, cells[:-1], note)


def _judged(value: float, target: float) -> str:
    return f"{number(value)} {'✓' if abs(value - target) <= TOLERANCE else '✗'}"


def baselines(rows: Rows) -> Table:
    """S_gap, S_oracle and R where nothing was unlearned: of the original, and of retrained oracles (0.A.5)."""
    cells: list[Sequence[str] | None] = []
    for fraction in rows.fractions:
        for model, name in _BASELINES.items():
            gap = rows.test(fraction, model, "s_gap", 0.0)
            found = rows.of(fraction, model)
            spread = found.groupby("dataset")["s_gap"].std(ddof=1).mean()
            low, high = analysis.band(found["s_gap"].to_numpy())
            cells.append(
                [_percent(fraction), name, number(found["s_oracle"].mean(), 4), number(gap.mean, 4), number(spread, 4)]
                + [f"{number(low, 4)} to {number(high, 4)}", p_value(gap.p) + ("" if gap.mixed else " W")]
                + [number(found["mean_rank"].mean())]
            )
        oracle = rows.of(fraction, ORACLE)["mean_rank"].mean()
        cells.append([_percent(fraction), "oracle", "–", "–", "–", "–", "–", number(oracle)])
        cells.append(None)
    columns = ["forgotten", "model", "S_oracle", "S_gap", "SD of seeds", "band", "p", "mean R"]
    note = "All measured against the oracle. The gap of a method says something of unlearning as far as it leaves these."
    return Table("Without unlearning: calibration of the null (RULER, 0.A.5)", columns, cells[:-1], note)


def per_dataset(rows: Rows, name: str) -> Table:
    """A dataset alone: means over its seeds, S_gap with its spread and Wilcoxon's test."""
    own = Rows(rows.frame[rows.frame["dataset"] == name], {name: rows.titles[name]}, rows.fractions, rows.methods)
    cells: list[Sequence[str] | None] = []
    for fraction in own.fractions:
        for method in (ORIGINAL, ORACLE, TWIN, PAIR, *own.methods):
            found = own.of(fraction, method)
            gap = own.test(fraction, method, "s_gap", 0.0)
            means = found[["s_oracle", "s_shift", "mean_rank", "mia", "forget_accuracy", "test_accuracy"]].mean()
            cells.append(
                [_percent(fraction), "oracle, other seed" if method == PAIR else label(method)]
                + [number(means["s_oracle"], 4), f"{number(gap.mean, 4)} ± {number(found['s_gap'].std(ddof=1), 4)}"]
                + [p_value(gap.p), f"{number(gap.effect, 2)} {gap.effect_label}".strip(), number(means["s_shift"], 4)]
                + [number(means[column]) for column in ("mean_rank", "mia", "forget_accuracy", "test_accuracy")]
            )
        cells.append(None)
    columns = ["forgotten", "model", "S_oracle", "S_gap", "p", "r", "S_shift", "mean R", "MIA", "forget acc.", "test acc."]
    note = "S_gap: mean ± standard deviation over the seeds; p and r: Wilcoxon's signed-rank test of the seeds against 0."
    return Table(f"Dataset: {rows.titles[name]}", columns, cells[:-1], note)


def post_hoc(rows: Rows) -> Table:
    """All pairs of methods × measures of a fraction, Wilcoxon over datasets and seeds, Benjamini–Hochberg over all."""
    cells: list[Sequence[str] | None] = []
    for fraction in rows.fractions:
        pairs = analysis.pairs(rows.frame[rows.frame["fraction"] == fraction], rows.methods)
        for pair in pairs:
            cells.append(
                [_percent(fraction), f"{label(pair.first)} – {label(pair.second)}", analysis.MEASURES[pair.measure]]
                + [number(pair.difference, 4), p_value(pair.p), p_value(pair.adjusted), "*" if pair.adjusted < 0.05 else ""]
            )
        cells.append(None)
    columns = ["forgotten", "methods", "measure", "difference", "p", "adjusted p", ""]
    note = (
        "Paired over datasets and seeds; p adjusted by Benjamini and Hochberg over all pairs and measures of a fraction; "
        "*: adjusted p below 0.05."
    )
    return Table("Methods against each other", columns, cells[:-1], note, texts=3)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g} %"
