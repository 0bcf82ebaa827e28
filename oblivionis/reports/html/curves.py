"""The main figure of a run's report: what the models know over the rounds of each stage, and what is left to know."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import htpy as h
import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from oblivionis.config.schema import Config
from oblivionis.erasure.ledger import Ledger
from oblivionis.measures.audit_numbers import MOMENTS
from oblivionis.reports.client_tables import audits
from oblivionis.reports.format import counted
from oblivionis.reports.markup import captioned, explained
from oblivionis.reports.run_summary import spread
from oblivionis.reports.svg import FIGURE_STYLE, PAPER, path_of_lines, path_of_segments, svg_figure
from oblivionis.runs.directory import RunDirectory, named_metrics

STAGES = {
    "finetune": "finetune: training on all records",
    "retrain": "retrain: the same without the records to forget",
    "unlearn": "unlearn: from the finetuned model, serving deletion requests",
}


MEASURES = {"rouge": "ROUGE-L recall", "prob": "Prob"}
FORGET, RETAIN = "tab:red", "tab:blue"
SERVED = "requests served"
MOST_MARKED, MOST_DOTS, MOST_AUDITS = 40, 60, 200
"""Rounds with requests that have a line from top to bottom each, points of a curve that have a dot each, and requests
whose audits are drawn: a figure does not grow with a long run."""


@dataclass(frozen=True)
class Quantity:
    """What is measured of both groups of questions: the evaluator, its two metrics, the axis, the other group."""

    evaluator: str
    forget: str
    retain: str
    label: str
    other: str = "retain"

    def keys(self) -> dict[str, str]:
        """The two metrics by the word in the legend."""
        return {"forget": self.forget, self.other: self.retain}


QUANTITIES = {
    "prob": Quantity("tofu", "forget_prob", "retain_prob", MEASURES["prob"]),
    "rouge": Quantity("tofu", "forget_rouge", "retain_rouge", MEASURES["rouge"]),
    "knowmem": Quantity("muse", "knowmem_forget", "knowmem_retain", "KnowMem"),
    "questions": Quantity("rwku", "forget_questions", "neighbor_questions", "questions answered", "neighbours"),
    "choices": Quantity("choices", "forget", "utility", "right answers", "utility"),
}
"""In the order in which one becomes the main figure: the first that was measured."""


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
        panels = [(self, QUANTITIES[measure], "") for measure in measures]
        return _drawing(panels, (4.6 * len(measures), 3.0), paper)


def curves_of(run: RunDirectory, oracle: Mapping[str, float], evaluator: str = "tofu", least: int = 2) -> list[Curves]:
    """The stages that were measured at least so many times. `oracle`: final metrics of the retrained model."""
    rows = [r for r in run.metrics() if r["evaluator"] == evaluator]
    served = sorted({r.served_round for r in Ledger(run.ledger_path) if r.served_round is not None})
    found = []
    for stage in STAGES:
        points = [r for r in rows if r["stage"] == stage]
        if len(points) >= least:
            marks, target = (served, oracle) if stage == "unlearn" else ([], {})
            found.append(Curves(stage, points, marks, target))
    return found


def curves(run: RunDirectory, config: Config, oracle: Mapping[str, float]) -> list[h.Node]:
    """The main figure: forget and retain answers over the rounds of all stages, side by side.

    `oracle`: final metrics of the retrained model, dashed in the unlearned one's panel. Where the server measured
    nothing, because the records are with the clients, what these measured; a sentence where nobody measured anything.
    """
    for name in QUANTITIES:
        if drawn := course(run, config, oracle, name):
            return [drawn]
    measured = audits(run)
    if drawn := audit_figure(measured):
        return [captioned(drawn, audit_caption(measured))]
    return [h.p["No curves: no forget or retain answers were measured."]]


def course(run: RunDirectory, config: Config, oracle: Mapping[str, float], name: str) -> h.Node:
    """The figure of one of `QUANTITIES`; nothing where it was not measured."""
    quantity, found = QUANTITIES[name], measured_stages(run, oracle, name)
    if not found:
        return None
    drawn = _drawn(json.dumps([vars(of) | {"points": _alone(of.points, quantity)} for of in found]), name)
    return captioned(drawn, caption_of(config, found, quantity))


def measured_stages(run: RunDirectory, oracle: Mapping[str, float], name: str) -> list[Curves]:
    """The stages in which one of `QUANTITIES` was measured."""
    quantity = QUANTITIES[name]
    return [of for of in curves_of(run, oracle, quantity.evaluator, 1) if _measured(of, quantity)]


def _alone(points: Sequence[Mapping[str, Any]], quantity: Quantity) -> list[dict[str, Any]]:
    """The points without what the figure of `quantity` does not show."""
    keys = quantity.keys().values()
    return [{**p, "metrics": {key: p["metrics"][key] for key in keys if key in p["metrics"]}} for p in points]


@functools.lru_cache(maxsize=64)
def _drawn(stages: str, name: str) -> h.Element:
    """The drawing of `Curves` in JSON: pages are asked for again and again, and drawing takes most of their time."""
    quantity, found = QUANTITIES[name], [Curves(**of) for of in json.loads(stages)]
    words = " and ".join(_words(found, quantity))
    label = f"{quantity.label} of {words} answers over the rounds of {_listed([of.stage for of in found])}"
    return svg_figure(course_figure(found, quantity), f"course-{name}", label)


def course_figure(found: Sequence[Curves], quantity: Quantity, paper: str = PAPER) -> Figure:
    """A panel per stage, with one axis of values."""
    return _drawing([(of, quantity, of.stage) for of in found], (4.9, 3.1), paper)


def _listed(stages: Sequence[str]) -> str:
    *others, last = stages
    return f"{', '.join(others)} and {last}" if others else last


def caption_of(config: Config, found: Sequence[Curves], quantity: Quantity = QUANTITIES["prob"]) -> list[h.Node]:
    """What stands below the curves: how those that are there are marked."""
    size = config.evaluation.light.questions_per_set
    asked = f"a sample of {counted(size, 'question')} per set" if size else "all questions"
    points = [p for of in found for p in of.points if _has(p, quantity)]
    moments = {p["moment"] == "end" for p in points}
    words = " and ".join(_words(found, quantity))
    caption: list[h.Node] = [explained(quantity.label), f" of the answers to {words} questions. "]
    caption += [f"Filled: during the stage, {asked}. "] if False in moments else []
    caption += ["Hollow: at the end, with the full profile. "] if True in moments else []
    if any(of.marks for of in found):
        caption += ["Dotted from top to bottom: rounds that began with ", explained("FedTU"), ". "]
    if any(_levels(of, quantity) for of in found):
        caption += ["Dashed: the ", explained("Retrained model", "retrained model"), " at its end."]
    return caption


def _words(found: Sequence[Curves], quantity: Quantity) -> list[str]:
    """Which of the two groups were measured, by the word in the legend."""
    metrics = [point["metrics"] for of in found for point in of.points]
    return [word for word, key in quantity.keys().items() if any(_finite(m.get(key)) is not None for m in metrics)]


def _has(point: Mapping[str, Any], quantity: Quantity) -> bool:
    return any(_finite(point["metrics"].get(key)) is not None for key in quantity.keys().values())


def _measured(of: Curves, quantity: Quantity) -> bool:
    return any(_has(point, quantity) for point in of.points)


def _levels(of: Curves, quantity: Quantity) -> dict[str, float]:
    """Where the retrained model lies, by the word in the legend."""
    found = {
        word: _finite(of.target.get(next(iter(named_metrics(quantity.evaluator, {key: 0})))))
        for word, key in quantity.keys().items()
    }
    return {word: value for word, value in found.items() if value is not None}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _drawing(panels: Sequence[tuple[Curves, Quantity, str]], size: tuple[float, float], paper: str) -> Figure:
    """A panel for each stage or measure, with its title. A model right after FedTU stands half a round early."""
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        wide = [1.5 if title == "unlearn" else 1.0 for *_, title in panels]
        axes = figure.subplots(1, len(panels), squeeze=False, width_ratios=wide)[0]
        shown: dict[str, Line2D] = {}
        for number, (axis, (of, quantity, title)) in enumerate(zip(axes, panels, strict=True)):
            shown |= _panel(axis, of, quantity, paper)
            axis.set(xlabel="round", ylim=(-0.03, 1.03), title=title)
            axis.xaxis.set_major_locator(MaxNLocator(4 if title else "auto", integer=True))
            if not title or number == 0:
                axis.set_ylabel(quantity.label)
            else:
                axis.set_yticklabels([])
        handles = [shown[word] for word in dict.fromkeys((*_WORDS, *shown)) if word in shown]
        if handles:
            labels = [str(handle.get_label()) for handle in handles]
            figure.legend(handles, labels, loc="outside upper center", ncols=len(handles), frameon=False)
    return figure


_WORDS = ("forget", "retain", "retrained", SERVED)


def _panel(axis: Axes, of: Curves, quantity: Quantity, paper: str) -> dict[str, Line2D]:
    """Draw a stage; what is to be explained of it, by the word in the legend."""
    shown: dict[str, Line2D] = {}
    if of.marks:
        high = 1.0 if len(of.marks) <= MOST_MARKED else 0.05
        style: Any = {"color": "0.6", "linestyle": ":" if high == 1 else "-", "linewidth": 1, "label": SERVED}
        segments = path_of_segments([(r, 0.0, high) for r in of.marks])
        (shown[SERVED],) = axis.plot(*segments, transform=axis.get_xaxis_transform(), gid=f"{of.stage}-FedTU", **style)
    levels = _levels(of, quantity)
    for (word, key), color, marker in zip(quantity.keys().items(), (FORGET, RETAIN), "os", strict=True):
        style = {"color": color, "label": word, "gid": f"{of.stage}-{word}"}
        if _line(axis, of.points, key, style, marker, paper):
            shown[word] = Line2D([], [], color=color, marker=marker, markersize=3.5, label=word)
        if word in levels:
            axis.axhline(levels[word], color=color, linestyle="--", linewidth=0.9, gid=f"{of.stage}-{word}-retrained")
            shown["retrained"] = Line2D([], [], color="0.5", linestyle="--", linewidth=0.9, label="retrained")
    return shown


def _line(
    axis: Axes, points: Sequence[Mapping[str, Any]], key: str, style: Mapping[str, Any], marker: str, paper: str
) -> bool:
    """The values of `key` over the rounds; those that are missing are left out. Whether there is any."""
    known = [
        (p["round"] - 0.5 * (p["moment"] == "after_unlearn"), p["metrics"][key], p["moment"])
        for p in points
        if _finite(p["metrics"].get(key)) is not None
    ]
    known.sort(key=lambda p: p[0])
    between = [(x, y) for x, y, moment in known if moment != "end"]
    ends = [(x, y) for x, y, moment in known if moment == "end"]
    if between:
        size = 3.5 if len(between) <= MOST_DOTS else 0
        axis.plot(*zip(*between, strict=True), marker=marker, markersize=size, **style)
    if between and ends:
        axis.plot(*zip(between[-1], ends[-1], strict=True), color=style["color"], linestyle=":")
    for x, y in ends[-1:]:
        hollow: Any = {"color": style["color"], "markerfacecolor": paper, "linestyle": "none", "markersize": 5}
        axis.plot(x, y, marker=marker, gid=f"{style['gid']}-end", **hollow)
    return bool(known)


def audit_figure(measured: Sequence[Mapping[str, Any]]) -> h.Node:
    """What clients measured of their own records before and after their exchange and at the end: a line per request;
    nothing where no client did."""
    places, few = list(MOMENTS), _spread_out(measured)
    drawn: dict[str, Line2D] = {}
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(4.9, 3.1), layout="constrained")
        axis = figure.subplots()
        for key, word, color, marker in (
            ("request_prob", "of the request", FORGET, "o"),
            ("retain_prob", "kept", RETAIN, "s"),
        ):
            x, y = path_of_lines([_known(audit, key) for audit in few])
            if x:
                size = 3.5 if len(few) <= MOST_DOTS else 0
                style: Any = {"color": color, "marker": marker, "markersize": size, "linewidth": 0.9, "label": word}
                (drawn[word],) = axis.plot(x, y, gid=f"audits-{key}", **style)
        axis.set(ylim=(-0.03, 1.03), ylabel=MEASURES["prob"], xlim=(-0.3, len(places) - 0.7))
        axis.set_xticks(range(len(places)), places)
        figure.legend(list(drawn.values()), list(drawn), loc="outside upper center", ncols=2, frameon=False)
    label = "Prob of the records of each request and of the kept ones, before and after the exchange and at the end"
    return svg_figure(figure, "audits", label) if drawn else None


def _known(audit: Mapping[str, Any], key: str) -> list[tuple[float, float]]:
    """Place and value of the moments at which a client measured `key`."""
    values = [(place, _finite(audit.get(moment, {}).get(key))) for place, moment in enumerate(MOMENTS)]
    return [(float(place), value) for place, value in values if value is not None]


def _telling(measured: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The audits with a number that the figure shows."""
    return [audit for audit in measured if any(_known(audit, key) for key in ("request_prob", "retain_prob"))]


def _spread_out(measured: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """At most `MOST_AUDITS` of the audits that say anything, evenly spread."""
    telling = _telling(measured)
    return [telling[place] for place in spread(len(telling), MOST_AUDITS)]


def audit_caption(measured: Sequence[Mapping[str, Any]]) -> list[h.Node]:
    """How many requests the figure of the audits is about, and who measured them."""
    shown, count = len(_spread_out(measured)), len(_telling(measured))
    each = counted(count, "audited request") if shown == count else f"{shown} of {counted(count, 'audited request')}"
    return [
        explained("Prob"),
        f" of a client's own records before and after its exchange and at the end, a line for each of {each}. The "
        "clients measured it; the server does not have the records.",
    ]
