"""The figures of a run's report: how the metrics went over the rounds of each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import htpy as h
import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from oblivionis.config.schema import Config
from oblivionis.erasure.ledger import Ledger
from oblivionis.reports.format import counted
from oblivionis.reports.markup import captioned, explained
from oblivionis.reports.svg import FIGURE_STYLE, PAPER, svg_figure
from oblivionis.runs.directory import RunDirectory

STAGES = {
    "finetune": "finetune: training on all records",
    "retrain": "retrain: the same without the records to forget",
    "unlearn": "unlearn: from the finetuned model, serving deletion requests",
}


MEASURES = {"rouge": "ROUGE-L recall", "prob": "Prob"}


@dataclass(frozen=True)
class Curves:
    """How a stage went: its rows of metrics in their order, the rounds that began with FedTU, and the final metrics of
    the retrained model to draw with them."""

    stage: str
    points: Sequence[Mapping[str, Any]]
    marks: Sequence[int]
    target: Mapping[str, float]

    def drawing(self, measures: Sequence[str] = tuple(MEASURES), paper: str = PAPER) -> Figure:
        """A plot for each of the `measures`, side by side; paper: the colour of what is hollow."""
        return _drawing(self, measures, paper)


def curves_of(run: RunDirectory, oracle: Mapping[str, float]) -> list[Curves]:
    """The stages that were measured more than once. `oracle`: final metrics of the retrained model."""
    rows = [r for r in run.metrics() if r["evaluator"] == "tofu"]
    served = sorted({r.served_round for r in Ledger(run.ledger_path) if r.served_round is not None})
    found = []
    for stage in STAGES:
        points = [r for r in rows if r["stage"] == stage]
        if len(points) > 1:
            marks, target = (served, oracle) if stage == "unlearn" else ([], {})
            found.append(Curves(stage, points, marks, target))
    return found


def curves(run: RunDirectory, config: Config, oracle: Mapping[str, float]) -> list[h.Node]:
    """For each stage forget and retain ROUGE and probability over its rounds, side by side or one below the other.

    `oracle`: final metrics of the retrained model, drawn as lines with the unlearned one.
    """
    found: list[h.Node] = []
    for of in curves_of(run, oracle):
        panels = [
            svg_figure(
                of.drawing([measure]),
                f"{of.stage}-{measure}",
                f"{label} of forget and retain answers over the rounds of {of.stage}",
            )
            for measure, label in MEASURES.items()
        ]
        found += [h.h3[STAGES[of.stage]], captioned(h.div(".panels")[panels], caption_of(config, of.marks))]
    return found or [h.p["No stage was measured more than once (see ", h.code["evaluation.every"], ")."]]


def caption_of(config: Config, marks: Sequence[int]) -> list[h.Node]:
    """What stands below the curves: how they are marked."""
    size = config.evaluation.light.questions_per_set
    asked = f"a sample of {counted(size, 'question')} per set" if size else "all questions"
    caption: list[h.Node] = [f"Filled: after a round, {asked}. Hollow: at the end, with the full profile."]
    if marks:
        began = explained("FedTU")
        caption += [" Dotted: rounds that began with ", began, ". Dashed: the retrained model at its end."]
    return caption


def _drawing(of: Curves, measures: Sequence[str], paper: str) -> Figure:
    """Measures over the rounds. A model right after FedTU stands half a round early."""
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(4.6 * len(measures), 3.0), layout="constrained")
        axes = figure.subplots(1, len(measures), sharex=True, squeeze=False)[0]
        for axis, measure in zip(axes, measures, strict=True):
            for i, served in enumerate(of.marks):
                axis.axvline(served, color="0.6", linestyle=":", linewidth=1, label="_" * (i > 0) + "FedTU")
            for group, color in (("forget", "tab:red"), ("retain", "tab:blue")):
                _line(axis, of.points, f"{group}_{measure}", group, color, paper)
                if of.target.get(f"{group}_{measure}") is not None:
                    axis.axhline(of.target[f"{group}_{measure}"], color=color, linestyle="--", linewidth=0.9)
            axis.set(xlabel="round", ylabel=MEASURES[measure], ylim=(-0.03, 1.03))
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles, labels = axes[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside upper center", ncols=len(handles), frameon=False)
    return figure


def _line(axis: Any, points: Sequence[Mapping[str, Any]], key: str, label: str, color: str, paper: str) -> None:
    """The values of `key` over the rounds; those that are missing are left out."""
    known = [
        (p["round"] - 0.5 * (p["moment"] == "after_unlearn"), p["metrics"][key], p["moment"])
        for p in points
        if p["metrics"].get(key) is not None
    ]
    known.sort(key=lambda p: p[0])
    between = [(x, y) for x, y, moment in known if moment != "end"]
    if between:
        axis.plot(*zip(*between, strict=True), marker="o", markersize=3.5, color=color, label=label)
    ends = [(x, y) for x, y, moment in known if moment == "end"]
    if between and ends:
        axis.plot(*zip(between[-1], ends[-1], strict=True), color=color, linestyle=":")
    for x, y in ends[-1:]:
        axis.plot(x, y, marker="o", markersize=5, color=color, markerfacecolor=paper, linestyle="none")
