"""Figures of the experiment after RULER's Figures 5 (right), 6 and 7."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.tabular.experiment import ORACLE, ORIGINAL, TWIN
from oblivionis.files import write_atomic

LABELS = {
    ORIGINAL: "original",
    ORACLE: "oracle",
    TWIN: "oracle retrained",
    "grad_ascent": "gradient ascent",
    "neg_grad": "NegGrad",
    "fine_tune": "fine-tuning",
    "scrub": "SCRUB",
    "bad_teacher": "bad teacher",
}
_GREYS = {ORIGINAL: "0.25", ORACLE: "0.6", TWIN: "0.6"}
_RC = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def label(method: str) -> str:
    """The method as a reader knows it."""
    return LABELS.get(method, method.replace("_", " "))


def write(frame: pd.DataFrame, titles: Mapping[str, str], methods: Sequence[str], folder: Path) -> list[Path]:
    """Write `shift.png`, `rank.png` and `gap.png` into `folder` and return their paths.

    frame: rows of results; titles: the datasets to draw, in order; methods: those that unlearn, in order.
    """
    with matplotlib.rc_context(_RC):
        figures = {
            "shift": _shift(frame, titles, methods),
            "rank": _boxes(frame, titles, [ORIGINAL, ORACLE, *methods], "mean_rank", "mean percentile rank R", 0.5),
            "gap": _boxes(frame, titles, [TWIN, ORIGINAL, *methods], "s_gap", "calibration gap S_gap", 0.0),
        }
        paths = []
        for name, figure in figures.items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=150)
            paths.append(folder / f"{name}.png")
            write_atomic(paths[-1], buffer.getvalue())
    return paths


def _colours(models: Sequence[str]) -> dict[str, str]:
    methods = [model for model in models if model not in _GREYS]
    return _GREYS | {method: f"C{number}" for number, method in enumerate(methods)}


def _title(fraction: float) -> str:
    return f"{fraction:.3g} of the records forgotten" if fraction < 0.001 else f"{100 * fraction:.3g} % forgotten"


def _shift(frame: pd.DataFrame, titles: Mapping[str, str], methods: Sequence[str]) -> Figure:
    """Mean S_shift over the seeds with its standard deviation: a panel per fraction, a row per dataset."""
    fractions, colours = sorted(frame["fraction"].unique()), _colours(methods)
    height = 1.4 + len(titles) * (0.12 * len(methods) + 0.12)
    figure = Figure(figsize=(1.6 + 2.7 * len(fractions), height), layout="constrained")
    panels = figure.subplots(1, len(fractions), sharey=True, squeeze=False)[0]
    offsets = 0.7 * (np.arange(len(methods)) - (len(methods) - 1) / 2) / max(1, len(methods))
    for panel, fraction in zip(panels, fractions, strict=True):
        for method, offset in zip(methods, offsets, strict=True):
            rows = frame[(frame["fraction"] == fraction) & (frame["method"] == method)].groupby("dataset")["s_shift"]
            mean, spread = rows.mean().reindex(list(titles)), rows.std(ddof=0).reindex(list(titles))
            panel.errorbar(
                mean,
                np.arange(len(titles)) + offset,
                xerr=spread,
                fmt="o",
                markersize=3.5,
                linewidth=1,
                color=colours[method],
            )
        panel.axvline(0, color="black", linewidth=0.8)
        panel.set_title(_title(fraction))
        panel.set_xlabel("← away   S_shift   towards oracle →")
        panel.ticklabel_format(axis="x", scilimits=(-3, 3))
        panel.locator_params(axis="x", nbins=5)
        panel.grid(axis="y", color="0.93")
        panel.set_axisbelow(True)
    panels[0].set_yticks(range(len(titles)), list(titles.values()))
    panels[0].set_ylim(len(titles) - 0.4, -0.6)
    _legend(figure, methods, colours)
    return figure


def _boxes(
    frame: pd.DataFrame, titles: Mapping[str, str], models: Sequence[str], column: str, name: str, null: float
) -> Figure:
    """Distribution of `column` over the seeds: a panel per fraction, a group of boxes per dataset."""
    fractions, colours = sorted(frame["fraction"].unique()), _colours(models)
    width = 1.5 + len(titles) * (0.16 * len(models) + 0.3)
    figure = Figure(figsize=(max(6.0, width), 0.8 + 1.9 * len(fractions)), layout="constrained")
    panels = figure.subplots(len(fractions), 1, sharex=True, squeeze=False)[:, 0]
    for panel, fraction in zip(panels, fractions, strict=True):
        for number, model in enumerate(models):
            rows = frame[(frame["fraction"] == fraction) & (frame["method"] == model)].groupby("dataset")[column]
            values = {d: rows.get_group(d).to_numpy() for d in titles if d in rows.groups}
            places = [list(titles).index(d) + 0.8 * (number - (len(models) - 1) / 2) / len(models) for d in values]
            _draw_boxes(panel, list(values.values()), places, 0.62 / len(models), colours[model])
        panel.axhline(null, color="black", linewidth=0.8, linestyle="--")
        panel.set_title(_title(fraction), loc="left")
        panel.set_ylabel(name)
        panel.ticklabel_format(axis="y", scilimits=(-3, 3))
    panels[-1].set_xticks(range(len(titles)), list(titles.values()), rotation=20 if len(titles) > 4 else 0)
    panels[-1].set_xlim(-0.6, len(titles) - 0.4)
    _legend(figure, models, colours)
    return figure


def _draw_boxes(panel: Axes, values: list[np.ndarray], places: list[float], width: float, colour: str) -> None:
    if not values:
        return
    panel.boxplot(
        values,
        positions=places,
        widths=width,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": colour, "alpha": 0.45, "edgecolor": colour},
        medianprops={"color": colour, "linewidth": 1.5},
        whiskerprops={"color": colour},
        capprops={"color": colour},
        flierprops={"marker": ".", "markersize": 3, "markeredgecolor": colour},
    )


def _legend(figure: Figure, models: Sequence[str], colours: Mapping[str, str]) -> None:
    handles = [Patch(color=colours[model], alpha=0.7, label=label(model)) for model in models]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(models), 7), frameon=False)
