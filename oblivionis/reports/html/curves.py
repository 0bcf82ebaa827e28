"""The figures of a run's report: how the metrics went over the rounds of each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import htpy as h
import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from oblivionis.config.schema import Config
from oblivionis.reports.markup import captioned, explained
from oblivionis.reports.svg import FIGURE_STYLE, PAPER, svg_figure
from oblivionis.requests.ledger import Ledger
from oblivionis.runs.directory import RunDirectory

STAGES = {
    "finetune": "finetune: training on all records",
    "retrain": "retrain: the same without the records to forget",
    "unlearn": "unlearn: from the finetuned model, serving deletion requests",
}


def curves(run: RunDirectory, config: Config, oracle: Mapping[str, float]) -> list[h.Node]:
    """One figure per stage: forget and retain ROUGE and probability over its rounds.

    `oracle`: final metrics of the retrained model, drawn as lines beside the unlearned one.
    """
    found: list[h.Node] = []
    rows = [r for r in run.metrics() if r["evaluator"] == "tofu"]
    served = sorted({r.served_round for r in Ledger(run.ledger_path) if r.served_round is not None})
    for stage, title in STAGES.items():
        points = [r for r in rows if r["stage"] == stage]
        if len(points) > 1:
            marks, target = (served, oracle) if stage == "unlearn" else ([], {})
            label = f"ROUGE-L recall and probability of forget and retain answers over the rounds of {stage}"
            drawing = svg_figure(_drawing(points, marks, target), stage, label)
            found += [h.h3[title], captioned(drawing, _caption(config, marks))]
    return found or [h.p["No stage was measured more than once (see ", h.code["evaluation.every"], ")."]]


def _caption(config: Config, marks: Sequence[int]) -> list[h.Node]:
    size = config.evaluation.light.questions_per_set
    asked = f"a sample of {size} questions per set" if size else "all questions"
    caption: list[h.Node] = [f"Filled: after a round, {asked}. Hollow: at the end, with the full profile."]
    if marks:
        began = explained("FedTU")
        caption += [" Dotted: rounds that began with ", began, ". Dashed: the retrained model at its end."]
    return caption


def _drawing(points: Sequence[Mapping[str, Any]], marks: Sequence[int], target: Mapping[str, float]) -> Figure:
    """ROUGE-L recall and probability over the rounds. A model right after FedTU stands half a round early."""
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(9.6, 3.1), layout="constrained")
        axes = figure.subplots(1, 2, sharex=True)
        for axis, measure, label in ((axes[0], "rouge", "ROUGE-L recall"), (axes[1], "prob", "Prob")):
            for i, served in enumerate(marks):
                axis.axvline(served, color="0.6", linestyle=":", linewidth=1, label="_" * (i > 0) + "FedTU")
            for group, color in (("forget", "tab:red"), ("retain", "tab:blue")):
                _line(axis, points, f"{group}_{measure}", group, color)
                if target.get(f"{group}_{measure}") is not None:
                    axis.axhline(target[f"{group}_{measure}"], color=color, linestyle="--", linewidth=0.9)
            axis.set(xlabel="round", ylabel=label, ylim=(-0.03, 1.03))
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles, labels = axes[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside right upper", frameon=False)
    return figure


def _line(axis: Any, points: Sequence[Mapping[str, Any]], key: str, label: str, color: str) -> None:
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
        axis.plot(x, y, marker="o", markersize=5, color=color, markerfacecolor=PAPER, linestyle="none")
