"""A figure for each family of measures that has one: leakage, RULER, WikiMem, membership."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import htpy as h
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oblivionis.measures import registry
from oblivionis.measures.membership.report import p_values
from oblivionis.naming import MODELS
from oblivionis.reports.format import counted
from oblivionis.reports.markup import captioned
from oblivionis.reports.svg import FIGURE_STYLE, INK, PAPER, path_of_segments, svg_figure
from oblivionis.runs.directory import RunDirectory

Metrics = Mapping[str, Mapping[str, float]]
SHOWN = ("finetune", "unlearn", "retrain")
COLOURS = {"finetune": "0.5", "unlearn": "tab:red", "retrain": "tab:blue"}
BINS = 16
MOST = 200
"""Of more questions a figure shows so many, evenly spread by their order."""


def figure_of(name: str, run: RunDirectory, metrics: Metrics) -> h.Node:
    """The figure of the measure `name` with its caption; nothing where it has none, or nothing was measured."""
    draw = _FIGURES.get(name)
    return None if draw is None else draw(run, metrics)


def _logs(run: RunDirectory, metrics: Metrics, name: str) -> dict[str, Any]:
    """What the logs of the finished stages hold of a measure, by stage."""
    logs = {stage: (run.evaluation_log(stage) or {}).get(name) for stage in SHOWN if stage in metrics}
    return {stage: log for stage, log in logs.items() if log}


def _latest(logs: Mapping[str, Any]) -> str:
    return next(stage for stage in ("unlearn", "finetune", "retrain") if stage in logs)


def leakage(run: RunDirectory, metrics: Metrics) -> h.Node:
    """Of each question the mean leakage of its sampled answers, between the two bounds on it; the worst first."""
    logs = _logs(run, metrics, "leakage")
    if not logs:
        return None
    stage = _latest(logs)
    rows = {i: row for i, row in logs[stage].items() if _all_finite(*map(row.get, ("mu_lower", "mean", "mu_upper")))}
    ids = sorted(rows, key=lambda i: -rows[i]["mean"])
    ids = ids[:: -(-len(ids) // MOST)] if ids else []
    if not ids:
        return None
    figure, axis = _figure()
    places = np.arange(len(ids))
    lower, mean, upper = ([rows[i][key] for i in ids] for key in ("mu_lower", "mean", "mu_upper"))
    edges = np.append(places, len(ids)) - 0.5
    band: Any = {"color": COLOURS[stage], "alpha": 0.18, "linewidth": 0, "gid": "leakage-band", "label": "bounds"}
    axis.stairs(upper, edges, baseline=lower, fill=True, **band)
    axis.plot(places, mean, "o", color=COLOURS[stage], markersize=3.5, gid=f"leakage-{stage}", label=MODELS[stage])
    oracle = logs.get("retrain", {}) if stage != "retrain" else {}
    others = [(place, oracle.get(i, {}).get("mean")) for place, i in enumerate(ids)]
    both = [(place, value) for place, value in others if _all_finite(value)]
    if both:
        style: Any = {"color": COLOURS["retrain"], "markersize": 4, "markerfacecolor": PAPER, "linestyle": "none"}
        axis.plot(*zip(*both, strict=True), marker="s", gid="leakage-retrain", label=MODELS["retrain"], **style)
    axis.set(xlabel="questions, highest mean first", ylabel="leakage", ylim=(-0.03, 1.03))
    axis.set_xticks([])
    _legend(figure, axis)
    one = rows[ids[0]].get("samples")
    sampled = f" of {counted(int(one), 'sampled answer')}" if _all_finite(one) else ""
    few = f"{counted(len(ids), 'question')}" + (f" of {len(rows)}" if len(ids) < len(rows) else "")
    caption = (
        f"Dots: mean leakage{sampled} to each of {few}, in the {MODELS[stage]} model. Band: between the two bounds on "
        "the expected leakage."
    )
    more = " Hollow: the same questions in the retrained model." if both else ""
    return captioned(
        svg_figure(figure, "leakage", f"Leakage of each forget question in the {MODELS[stage]} model with its bounds"),
        caption + more,
    )


def ruler(run: RunDirectory, metrics: Metrics) -> h.Node:
    """Where the forget records lie: the percentile rank of each, model by model."""
    groups = {stage: list(log.values()) for stage, log in _logs(run, metrics, "ruler").items()}
    return _strips(
        "ruler",
        groups,
        "rank of each forget record",
        "A tick for each forget record: how near it lies to its nearest retained record, as a percentile of how near "
        "those lie to each other. Diamond: mean. Dashed: 0.5, where they blend in; to the right of it residual "
        "memorisation, to the left pushed away.",
    )


def wikimem(run: RunDirectory, metrics: Metrics) -> h.Node:
    """Where the true values of the people to forget rank among those of others: each phrasing, model by model."""
    groups = {
        stage: [rank for fact in log.get("forget", {}).get("facts", ()) for rank in fact.get("ranks", ())]
        for stage, log in _logs(run, metrics, "wikimem").items()
    }
    return _strips(
        "wikimem",
        groups,
        "values that score higher than the true one",
        "A tick for each phrasing of a fact about people to forget: the share of other people's values that score at "
        "least as high as the true one. 0: it ranks first. Diamond: mean. Dashed: 0.5, chance.",
    )


def _strips(name: str, groups: Mapping[str, Sequence[float]], xlabel: str, caption: str) -> h.Node:
    """A row of ticks between 0 and 1 for each model that has any."""
    known = {stage: [v for v in values if _all_finite(v)] for stage, values in groups.items()}
    known = {stage: values for stage, values in known.items() if values}
    if not known:
        return None
    figure, axis = _figure(1.1 + 0.45 * len(known))
    for place, (stage, values) in enumerate(reversed(known.items())):
        ticks = path_of_segments([(value, place - 0.28, place + 0.28) for value in sorted(set(values))])
        axis.plot(*ticks, color=COLOURS[stage], linewidth=1, alpha=0.75, gid=f"{name}-{stage}")
        mean: Any = {"marker": "D", "color": COLOURS[stage], "markeredgecolor": INK, "markersize": 6}
        axis.plot(float(np.mean(values)), place, gid=f"{name}-{stage}-mean", **mean)
    axis.axvline(0.5, color="0.5", linestyle="--", linewidth=0.9)
    axis.set(xlim=(-0.03, 1.03), ylim=(-0.6, len(known) - 0.4), xlabel=xlabel)
    axis.set_yticks(range(len(known)), [f"{MODELS[s]} ({len(v)})" for s, v in reversed(known.items())])
    label = f"{xlabel[:1].upper()}{xlabel[1:]}, model by model"
    return captioned(svg_figure(figure, name, label), caption)


def membership(run: RunDirectory, metrics: Metrics) -> h.Node:
    """How an attack scores the records to forget and those that nobody trained on: two densities per model."""
    logs = _logs(run, metrics, "membership")
    attack = _attack(logs, metrics)
    scores = {stage: _scores(log.get(attack)) for stage, log in logs.items()} if attack else {}
    scores = {stage: pair for stage, pair in scores.items() if all(pair)}
    if not scores:
        return None
    everything = [value for pair in scores.values() for group in pair for value in group]
    edges = np.linspace(min(everything), max(everything) + 1e-9, BINS + 1)
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(4.9, 2.4), layout="constrained")
        axes = figure.subplots(1, len(scores), squeeze=False, sharex=True, sharey=True)[0]
        for axis, (stage, pair) in zip(axes, scores.items(), strict=True):
            for values, word, color in zip(pair, ("forget", "holdout"), ("tab:red", "0.5"), strict=True):
                shares = np.histogram(values, edges)[0] / len(values)
                style: Any = {"color": color, "label": word, "gid": f"membership-{stage}-{word}"}
                axis.stairs(shares, edges, fill=True, alpha=0.3, **style)
                axis.stairs(shares, edges, color=color, linewidth=1)
            axis.set(title=MODELS[stage], xlabel="score")
        axes[0].set_ylabel("share of records")
        _legend(figure, axes[0])
    title = registry.catalogue()[f"membership_auc_{attack}"].title
    members, others = next(iter(scores.values()))
    caption = (
        f"How the attack {title.removeprefix('AUC, ')} scores {counted(len(members), 'record')} to be forgotten and "
        f"{len(others)} of the holdout, which nobody trained on. The farther apart, the better it tells them; the goal "
        "is the picture of a retrained model."
    )
    label = "Scores of forget and holdout records, model by model"
    return captioned(svg_figure(figure, "membership", label), caption)


def _attack(logs: Mapping[str, Any], metrics: Metrics) -> str | None:
    """The attack that tells the unlearned model from the retrained one best, else the first that there is."""
    tested = {key: p for key, p in p_values(metrics).items() if _all_finite(p)}
    best = [min(tested, key=tested.__getitem__).removeprefix("membership_auc_")] if tested else []
    known = [key.removeprefix("membership_auc_") for key in registry.catalogue() if key.startswith("membership_auc_")]
    return next((name for name in (*best, *known) if any(name in log for log in logs.values())), None)


def _scores(of: Mapping[str, Any] | None) -> tuple[list[float], list[float]]:
    """The scores of members and of others."""
    groups = ((of or {}).get(name) or {} for name in ("members", "others"))
    members, others = ([value for value in group.values() if _all_finite(value)] for group in groups)
    return members, others


def _all_finite(*values: float | None) -> bool:
    return all(value is not None and math.isfinite(value) for value in values)


def _figure(height: float = 2.7) -> tuple[Figure, Axes]:
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(4.9, height), layout="constrained")
        return figure, figure.subplots()


def _legend(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(handles), frameon=False)


_FIGURES: Mapping[str, Callable[[RunDirectory, Metrics], h.Node]] = {
    "leakage": leakage,
    "ruler": ruler,
    "wikimem": wikimem,
    "membership": membership,
}
