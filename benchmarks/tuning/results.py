"""What a tuning found: the best values as YAML, every trial as CSV, the table, and the frontier as a figure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from omegaconf import OmegaConf
from optuna.trial import TrialState
from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.tuning.objective import MEASURES, Oracle
from benchmarks.tuning.space import Dimension
from benchmarks.tuning.study import Search
from oblivionis.config.compose import tree_of
from oblivionis.files import write_atomic, write_json
from oblivionis.reports.format import fixed, number
from oblivionis.reports.svg import FIGURE_STYLE, INK

RESULT, TABLE, FIGURE, TUNED = "result.json", "trials.csv", "frontier.svg", "tuned.yaml"
TITLES = {
    "probability": "Prob",
    "truth_ratio": "truth ratio",
    "membership": "AUC",
    "leakage": "leakage",
}
OWNERS = {"probability": "tofu", "truth_ratio": "tofu", "membership": "membership", "leakage": "leakage"}
"""The evaluator of each measure."""
COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:cyan")


@dataclass(frozen=True)
class Entry:
    """A trial, or the untuned settings (`trial` None): its values by key, and what `running.judged` says of it."""

    trial: int | None
    values: Mapping[str, Any]
    judged: Mapping[str, Any]

    @property
    def feasible(self) -> bool:
        """Whether enough utility is left."""
        return self.judged["violation"] <= 0

    @property
    def rank(self) -> tuple[float, float]:
        """The smaller, the better: enough utility first, then the distance."""
        return max(0.0, self.judged["violation"]), self.judged["distance"]


@dataclass(frozen=True)
class Found:
    """What came of one method: its space and its untuned settings, every trial, and the best of all."""

    method: str
    space: Sequence[Dimension]
    untuned: Entry
    trials: Sequence[Entry]
    search: Search
    keys: Mapping[str, Any]

    @property
    def best(self) -> Entry:
        """The tuned settings: of all that were tried, the untuned ones among them, the nearest with enough utility."""
        return min((self.untuned, *self.trials), key=lambda entry: entry.rank)

    @property
    def budget(self) -> dict[str, float]:
        """What the search took: trials by outcome; exchanges, passes and seconds of all of them."""
        states = {
            s.name.lower(): len(self.search.trials(s))
            for s in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        }
        attributes = [t.user_attrs for t in self.search.trials(TrialState.COMPLETE, TrialState.PRUNED)]
        names = ("exchanges", "client_epochs", "seconds")
        return {**states, **{name: round(sum(t.get(name, 0) for t in attributes), 3) for name in names}}


def entries(search: Search) -> list[Entry]:
    """The trials that finished."""
    return [Entry(t.number, dict(t.params), t.user_attrs) for t in search.trials(TrialState.COMPLETE)]


def frontier(found: Sequence[Entry]) -> list[Entry]:
    """Those that no other beats in both distance and utility, by distance."""
    ordered = sorted(found, key=lambda e: (e.judged["distance"], -e.judged["utility_share"]))
    kept: list[Entry] = []
    for entry in ordered:
        if not kept or entry.judged["utility_share"] > kept[-1].judged["utility_share"]:
            kept.append(entry)
    return kept


def write(folder: Path, found: Sequence[Found], facts: Mapping[str, Any], heads: Mapping[str, Mapping]) -> None:
    """Write the result, the trials, the figure, and each method's `tuned.yaml`.

    facts: what the result says in addition to the methods; heads: what each `tuned.yaml` begins with, by method.
    """
    write_json(folder / RESULT, {**facts, "methods": {f.method: _plain(f) for f in found}})
    write_atomic(folder / TABLE, trials_csv(found))
    write_atomic(folder / FIGURE, drawn(found, facts["least_utility"]))
    for each in found:
        write_atomic(folder / each.method / TUNED, tuned_yaml(each, facts, heads[each.method]))


def _plain(found: Found) -> dict[str, Any]:
    def entry(e: Entry) -> dict[str, Any]:
        return {"trial": e.trial, "values": dict(e.values), **e.judged}

    return {
        "space": {d.path: d.plain() for d in found.space},
        "budget": found.budget,
        "untuned": entry(found.untuned),
        "tuned": entry(found.best),
        "frontier": [e.trial for e in frontier((found.untuned, *found.trials))],
    }


def trials_csv(found: Sequence[Found]) -> str:
    """A row per trial of every method: state, distance, utility, measures, what it took, and its values as JSON."""
    out = io.StringIO()
    measures = [f"{kind}_{m}" for m in MEASURES for kind in ("measure", "distance")]
    took = ["rounds", "exchanges", "client_epochs", "seconds"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["method", "trial", "state", "distance", "utility", "utility_share", *measures, *took, "values", "error"]
    )

    def row(method: str, trial: str | int, state: str, judged: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        parts = [judged.get(f"{kind}s", {}).get(m, "") for m in MEASURES for kind in ("measure", "distance")]
        head = [judged.get(name, "") for name in ("distance", "utility", "utility_share")]
        last = [judged.get(name, "") for name in took]
        error = judged.get("error") or "; ".join(
            f"{name} failed: {why}" for name, why in judged.get("failed", {}).items()
        )
        writer.writerow([method, trial, state, *head, *parts, *last, json.dumps(values), error])

    for each in found:
        row(each.method, "untuned", "complete", each.untuned.judged, each.untuned.values)
        for trial in each.search.trials():
            row(each.method, trial.number, trial.state.name.lower(), trial.user_attrs, trial.params)
    return out.getvalue()


def tuned_yaml(found: Found, facts: Mapping[str, Any], head: Mapping[str, Any]) -> str:
    """The best settings as an experiment, with what they were chosen by in its first lines."""
    best, budget, share = found.best, found.budget, f"{facts['least_utility']:.0%}"
    which = "the untuned settings: no trial was better" if best.trial is None else f"trial {best.trial}"
    spent = budget["complete"] + budget["pruned"]
    lines = [
        f"{found.method}, tuned: {which}. {spent} trials, {budget['pruned']} of them stopped early; "
        f"{effort_in_words(budget)}.",
        f"Distance from the retrained model {best.judged['distance']:.2f} standard errors, untuned "
        f"{found.untuned.judged['distance']:.2f}; utility {best.judged['utility_share']:.0%} of the retrained model's.",
        *([] if best.feasible else [f"NOT ENOUGH UTILITY: {share} were asked for, and no trial has them."]),
        f"Chosen on other records than those that this experiment forgets: those about {', '.join(facts['subjects'])}.",
    ]
    tree = {**head, **tree_of({**found.keys, **best.values})}
    return "".join(f"# {line}\n" for line in lines) + OmegaConf.to_yaml(OmegaConf.create(_escaped(tree)))


def effort_in_words(budget: Mapping[str, float]) -> str:
    """What the trials asked of the clients; passes where they go through what is to be forgotten."""
    passes = f", {budget['client_epochs']:g} passes over a request's records" if budget["client_epochs"] else ""
    return f"{budget['exchanges']:g} exchanges{passes}"


def _escaped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _escaped(entry) for name, entry in value.items()}
    return value.replace("${", "\\${") if isinstance(value, str) else value


def table(found: Sequence[Found], oracle: Oracle, least: float) -> Table:
    """The untuned settings of each method next to the tuned ones, and the retrained model with standard errors."""
    shown = [measure for measure in MEASURES if measure in oracle.values]
    caption = f"Distance in standard errors of the retrained model.\n!: less than {least:.0%} of its utility."
    title = "On the tuning's own requests: how far from the retrained model?"
    made = Table(title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    made.add_column("", no_wrap=True)
    for name in ("distance", *(TITLES[m] for m in shown), "utility"):
        made.add_column(name, justify="right", min_width=5)
    for each in found:
        for name, entry in (("untuned", each.untuned), ("tuned", each.best)):
            judged, worse = entry.judged, not entry.feasible
            style = "bold" if name == "tuned" and not worse else "yellow" if worse else ""
            failed = judged.get("failed", {})
            measures = [_cell(m, judged["measures"].get(m), failed) for m in shown]
            share = f"{judged['utility_share']:.0%}{'!' if worse else ''}"
            failures = f" ({', '.join(failed)} failed)" if failed else ""
            made.add_row(f"{each.method} {name}{failures}", fixed(judged["distance"], 2), *measures, share, style=style)
        made.add_section()
    made.add_row("retrained", "0", *(number(oracle.values[m]) for m in shown), "100%")
    made.add_row("standard error", "1", *(number(oracle.errors[m]) for m in shown), "")
    return made


def _cell(measure: str, value: float | None, failed: Mapping[str, str]) -> str:
    """A measure, or why there is none: its evaluator failed, or it says nothing of the model."""
    return "failed" if value is None and OWNERS[measure] in failed else number(value)


def drawn(found: Sequence[Found], least: float) -> str:
    """The figure as SVG: a point per trial, distance against utility, with each method's frontier."""
    with matplotlib.rc_context({**FIGURE_STYLE, "svg.fonttype": "path"}):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.subplots()
        for place, each in enumerate(found):
            color = COLORS[place % len(COLORS)]
            every = (each.untuned, *each.trials)
            axes.scatter(*_points(each.trials), s=16, color=color, alpha=0.6, linewidths=0)
            line = _points(frontier(every))
            axes.step(*line, where="post", color=color, linewidth=1, label=each.method)
            axes.scatter(*_points([each.untuned]), s=44, marker="D", facecolors="none", edgecolors=color)
            axes.scatter(*_points([each.best]), s=90, marker="*", color=color, zorder=3)
        axes.axhline(least, color="0.5", linewidth=0.8, linestyle="--")
        axes.annotate(
            "utility that is asked for",
            (0.5, least),
            xycoords=("axes fraction", "data"),
            ha="center",
            va="top",
            color="0.4",
            fontsize=8,
        )
        axes.scatter([0], [1], marker="P", s=70, color=INK, zorder=3, clip_on=False)
        axes.annotate("retrained", (0, 1), xytext=(8, 5), textcoords="offset points", fontsize=8)
        axes.set(
            xlabel="distance from the retrained model, standard errors",
            ylabel="utility, share of the retrained model's",
        )
        axes.set_xlim(left=0)
        axes.set_title("diamond: untuned, star: tuned, line: frontier")
        axes.legend(frameon=False, loc="lower right")
        axes.grid(color="0.5", alpha=0.25, linewidth=0.6)
        buffer = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", metadata=nothing, facecolor="white")
    return buffer.getvalue()


def _points(found: Sequence[Entry]) -> tuple[list[float], list[float]]:
    return [e.judged["distance"] for e in found], [e.judged["utility_share"] for e in found]
