"""Figures of the experiment after RULER's Figures 5 (right), 6 and 7."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.tabular.experiment import ORACLE, ORIGINAL, TWIN
from benchmarks.tabular.results import Rows, label
from oblivionis.files import write_atomic

_GREYS = {ORIGINAL: "0.25", ORACLE: "0.6", TWIN: "0.6"}
_RC: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def write(rows: Rows, folder: Path) -> list[Path]:
    """Write `shift.png`, `rank.png` and `gap.png` into `folder` and return their paths."""
    with matplotlib.rc_context(_RC):
        figures = {
            "shift": _shift(rows),
            "rank": _boxes(rows, [ORIGINAL, ORACLE, *rows.methods], "mean_rank", "mean percentile rank R", 0.5),
            "gap": _boxes(rows, [TWIN, ORIGINAL, *rows.methods], "s_gap", "calibration gap S_gap", 0.0),
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
    return f"{100 * fraction:.3g} % forgotten"


def _shift(rows: Rows) -> Figure:
    """Mean S_shift over the seeds with its standard deviation: a panel per fraction, a row per dataset."""
    names, methods, colours = list(rows.titles), rows.methods, _colours(rows.methods)
    height = 1.4 + len(names) * (0.12 * len(methods) + 0.12)
    figure = Figure(figsize=(1.6 + 2.7 * len(rows.fractions), height), layout="constrained")
    panels = figure.subplots(1, len(rows.fractions), sharey=True, squeeze=False)[0]
    for panel, fraction in zip(panels, rows.fractions, strict=True):
        for number, method in enumerate(methods):
            found = [rows.values(fraction, method, "s_shift", name) for name in names]
            panel.errorbar(
                [values.mean() if values.size else np.nan for values in found],
                [place + _offset(number, len(methods)) for place in range(len(names))],
                xerr=[values.std() if values.size else np.nan for values in found],
                fmt="o",
                markersize=3.5,
                linewidth=1,
                color=colours[method],
            )
        panel.axvline(0, color="black", linewidth=0.8)
        panel.set_title(_title(fraction))
        panel.ticklabel_format(axis="x", scilimits=(-3, 3))
        panel.locator_params(axis="x", nbins=5)
        panel.grid(axis="y", color="0.93")
        panel.set_axisbelow(True)
    panels[0].set_yticks(range(len(names)), list(rows.titles.values()))
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    figure.supxlabel("representation shift S_shift: away from (−) or towards (+) the oracle", fontsize=9)
    _legend(figure, methods, colours)
    return figure


def _boxes(rows: Rows, models: Sequence[str], column: str, name: str, null: float) -> Figure:
    """Distribution of `column` over the seeds: a panel per fraction, a group of boxes per dataset."""
    names, colours = list(rows.titles), _colours(models)
    width = 1.5 + len(names) * (0.16 * len(models) + 0.3)
    figure = Figure(figsize=(max(7.0, width), 0.8 + 1.9 * len(rows.fractions)), layout="constrained")
    panels = figure.subplots(len(rows.fractions), 1, sharex=True, squeeze=False)[:, 0]
    for panel, fraction in zip(panels, rows.fractions, strict=True):
        for number, model in enumerate(models):
            found = {place: rows.values(fraction, model, column, dataset) for place, dataset in enumerate(names)}
            found = {place: values for place, values in found.items() if values.size}
            places = [place + _offset(number, len(models)) for place in found]
            _draw_boxes(panel, list(found.values()), places, 0.62 / len(models), colours[model])
        panel.axhline(null, color="black", linewidth=0.8, linestyle="--")
        panel.set_title(_title(fraction), loc="left")
        panel.ticklabel_format(axis="y", scilimits=(-3, 3))
    panels[-1].set_xticks(range(len(names)), list(rows.titles.values()), rotation=20 if len(names) > 6 else 0)
    panels[-1].set_xlim(-0.6, len(names) - 0.4)
    figure.supylabel(name, fontsize=9)
    _legend(figure, models, colours)
    return figure


def _offset(number: int, count: int) -> float:
    """Where within [-0.4, 0.4] the one of that number stands among `count`."""
    return 0.8 * (number - (count - 1) / 2) / count


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
    columns = min(len(models), int(figure.get_figwidth() / 1.5))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
