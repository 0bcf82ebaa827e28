"""Figures of sampled leakage after Scholten et al. 2025, Figure 3, and Figure 6 for the distributions of one question.

X is the leakage in [0, 1] of a sampled answer to a question; n answers were sampled to it, in the order drawn.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from evaluation.leakage import bounds
from evaluation.leakage.summary import Terms
from oblivionis.files import write_atomic
from oblivionis.reports.format import counted, short_id

PANELS = 6
BINS = np.arange(26) / 25
LEVELS = np.linspace(0, 1, 501)
LABELLED = 40
"""Up to how many bars carry the id of their question."""

_DRAWN, _BOUND, _GREEDY, _PALE = "tab:blue", "tab:red", "black", "0.65"
FIGURE_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "oblivionis",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
}

NO_METADATA = {"svg": ("Date", "Creator", "Format", "Type"), "png": ("Software",)}
"""What would differ between two files of the same figure."""
WITH_BOUNDS = ("m_gen", "bounds_against_n", "m_bin")


def write_figures(
    folder: Path,
    ids: Sequence[str],
    leakage: Sequence[np.ndarray],
    greedy: np.ndarray,
    terms: Terms,
    *,
    with_bounds: bool = True,
) -> list[Path]:
    """Write `density`, `m_gen`, `bounds_against_n` and `m_bin` into `folder`, each as SVG and PNG; return their paths.

    ids: Q names; leakage: Q arrays (n_i,) in [0, 1] in the order drawn, which may differ in length; greedy: (Q,) in
    [0, 1], NaN where there is no greedy answer; terms: significance and thresholds, the bounds hold with probability
    1 − terms.alpha_of(Q). Equal values give equal SVG bytes. No questions, no figures. Raises ValueError for other
    shapes or values out of range, before anything is written.

    with_bounds: without them only `density` is drawn, and older figures with bounds are removed: after a stop that
    depended on the samples these bounds do not hold.
    """
    values, deterministic = _checked(ids, leakage, greedy)
    if not values:
        return []
    with matplotlib.rc_context(FIGURE_STYLE):
        figures = {"density": density_figure(ids, values, deterministic)}
        if with_bounds:
            figures |= {
                "m_gen": m_gen_figure(values, terms),
                "bounds_against_n": bounds_against_n(ids, values, terms),
                "m_bin": m_bin_figure(ids, values, deterministic, terms),
            }
        drawn = [
            (folder / f"{name}.{kind}", _bytes(figure, kind))
            for name, figure in figures.items()
            for kind in ("svg", "png")
        ]
    for path, data in drawn:
        write_atomic(path, data)
    for name in WITH_BOUNDS if not with_bounds else ():
        for kind in ("svg", "png"):
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
    return [path for path, _ in drawn]


def highest_means(leakage: Sequence[np.ndarray], count: int = PANELS) -> list[int]:
    """Positions of at most `count` of the Q questions, highest mean leakage first, equal ones in their order."""
    return np.argsort([-values.mean() for values in leakage], kind="stable")[:count].tolist()


def shares(leakage: np.ndarray) -> np.ndarray:
    """Share in [0, 1] of the leakages (n,) in each bin of `BINS` (25,). A bin has its left edge, the last one both."""
    return np.histogram(leakage, BINS)[0] / leakage.size


def general_bounds(leakage: Sequence[np.ndarray], alpha: float, levels: np.ndarray = LEVELS) -> np.ndarray:
    """M_gen of Q questions at levels (G,) in [0, 1], in (0, 1] (Q, G) (Scholten et al. 2025, Metric 2)."""
    return np.stack([np.asarray(bounds.general_leakage_bound(values, levels, alpha)) for values in leakage])


def binary_bounds(leakage: Sequence[np.ndarray], terms: Terms) -> np.ndarray:
    """M_bin of Q questions, in (0, 1] (Q,): bound on the chance of an answer with at least `terms.leaks_from`."""
    alpha = terms.alpha_of(len(leakage))
    leaked = [int((values >= terms.leaks_from).sum()) for values in leakage]
    pairs = zip(leaked, leakage, strict=True)
    return np.array([bounds.binary_leakage_bound(count, values.size, alpha) for count, values in pairs])


@dataclass(frozen=True)
class Growth:
    """What the first n answers to one question say, for K values of n: (K,) arrays.

    n: increasing, from 1 to all answers; mean, lower, upper: sample mean and the bounds on E[X] that hold together, in
    [0, 1]; std, m_sigma: population standard deviation of the sample and the bound on that of X, in [0, 1/2]. The
    bounds hold for each n by itself, not for all at once.
    """

    n: np.ndarray
    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    std: np.ndarray
    m_sigma: np.ndarray


def growth(leakage: np.ndarray, alpha: float) -> Growth:
    """The estimates and bounds on the first 1, 2, 4, … and on all of the leakages (n,) in the order drawn."""
    sizes = [2**k for k in range(leakage.size.bit_length())]
    sizes += [leakage.size] if sizes[-1] < leakage.size else []
    rows = []
    for n in sizes:
        first = leakage[:n]
        lower, upper = bounds.expectation_bounds(first, alpha)
        rows.append((n, first.mean(), lower, upper, first.std(), bounds.std_upper_bound(first, alpha)))
    n, *columns = (np.array(column) for column in zip(*rows, strict=True))
    return Growth(n, *columns)


def _checked(
    ids: Sequence[str], leakage: Sequence[np.ndarray], greedy: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    values = [bounds.as_samples(row) for row in leakage]
    deterministic = np.asarray(greedy, dtype=np.float64)
    if any(row.ndim != 1 for row in values):
        raise ValueError("the leakages of a question must be (n,)")
    if len(ids) != len(values) or deterministic.shape != (len(values),):
        raise ValueError(f"{len(ids)} ids, leakages of {len(values)} questions, greedy {deterministic.shape}")
    if ((deterministic < 0) | (deterministic > 1)).any():
        raise ValueError("greedy leakages must lie in [0, 1] or be NaN")
    return values, deterministic


def _bytes(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=150, metadata=dict.fromkeys(NO_METADATA[kind]))
    figure.set_layout_engine("none")  # it has been laid out; the next kind takes the same places
    return buffer.getvalue()


def _figure(width: float, height: float, rows: int = 1, columns: int = 1, **shared: Any) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend below the axes, each label once."""
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    columns = min(len(handles), int(figure.get_figwidth() / 1.9))
    figure.legend([*handles.values()], [*handles], loc="outside lower center", ncols=columns, frameon=False)


def _answers(n: int) -> str:
    return counted(n, "answer")


def density_figure(ids: Sequence[str], leakage: Sequence[np.ndarray], greedy: np.ndarray) -> Figure:
    """Histograms of the leakage of the questions with the highest means."""
    chosen = highest_means(leakage)
    columns = {1: 1, 2: 2, 4: 2}.get(len(chosen), 3)
    rows = -(-len(chosen) // columns)
    figure, axes = _figure(max(3.1 * columns, 5.6), 2.1 * rows + 0.6, rows, columns)
    for axis in axes[len(chosen) :]:
        axis.remove()
    axes = axes[: len(chosen)]
    for place, (axis, i) in enumerate(zip(axes, chosen, strict=True)):
        axis.stairs(shares(leakage[i]), BINS, fill=True, color=_DRAWN, alpha=0.45, label="sampled answers")
        axis.axvline(leakage[i].mean(), color=_DRAWN, linewidth=2, label="mean of the sampled answers")
        if not np.isnan(greedy[i]):
            axis.axvline(greedy[i], color=_GREEDY, linestyle="--", linewidth=1.4, label="greedy answer")
        axis.set(xlim=(-0.03, 1.03))
        axis.set_title(f"{short_id(ids[i])} ({_answers(leakage[i].size)})", parse_math=False)
        axis.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        if place % columns == 0:
            axis.set_ylabel("share of answers")
        if place + columns >= len(chosen):
            axis.set_xlabel("leakage")
    _legend(figure, axes)
    return figure


def m_gen_figure(leakage: Sequence[np.ndarray], terms: Terms) -> Figure:
    """The general bounds of leakage over its levels."""
    count, alpha = len(leakage), terms.alpha_of(len(leakage))
    curves = general_bounds(leakage, alpha)
    figure, (axis,) = _figure(5.6, 3.7)
    if count > 1:
        which = "each question" if count <= PANELS else f"the {PANELS} with the highest mean leakage"
        for place, i in enumerate(highest_means(leakage)):
            axis.step(LEVELS, curves[i], where="post", color=_PALE, linewidth=0.9, label="_" * (place > 0) + which)
    label = f"average over {count} questions" if count > 1 else "the question"
    axis.step(LEVELS, curves.mean(0), where="post", color=_BOUND, linewidth=2.2, label=label)
    axis.set(xlim=(-0.01, 1.01), ylim=(0, 1.03), xlabel="leakage x", ylabel="M_gen(x), bound on P(X > x)")
    axis.set_title(f"How likely an answer leaks more than x, at most (alpha = {alpha:.3g})")
    _legend(figure, [axis])
    return figure


def bounds_against_n(ids: Sequence[str], leakage: Sequence[np.ndarray], terms: Terms) -> Figure:
    """How the bounds tighten with more samples, for the question with the highest mean."""
    (i,) = highest_means(leakage, 1)
    alpha = terms.alpha_of(len(leakage))
    known = growth(leakage[i], alpha)
    figure, (left, right) = _figure(8.6, 3.7, 1, 2)
    left.fill_between(known.n, known.lower, known.upper, color=_BOUND, alpha=0.12, linewidth=0)
    for bound, label in ((known.upper, "bound"), (known.lower, "_bound")):
        left.plot(known.n, bound, color=_BOUND, marker="o", markersize=3, label=label)
    left.plot(known.n, known.mean, color=_DRAWN, marker="o", markersize=3, label="estimate from the sample")
    left.set(ylim=(-0.03, 1.03), title="mean, bounded from below and above", ylabel="leakage")
    right.plot(known.n, known.m_sigma, color=_BOUND, marker="o", markersize=3, label="bound")
    right.plot(known.n, known.std, color=_DRAWN, marker="o", markersize=3, label="estimate from the sample")
    right.set(ylim=(-0.016, 0.53), title="standard deviation, bounded by M_sigma", ylabel="leakage")
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set(xlabel="sampled answers n", xlim=(2**-0.3, leakage[i].size * 2**0.3))
        axis.xaxis.set_major_locator(LogLocator(base=2, numticks=12))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:.0f}"))
    which = "the question with the highest mean leakage" if len(leakage) > 1 else "the question"
    text = f"{short_id(ids[i])}: {which} (alpha = {alpha:.3g} for each n)"
    figure.suptitle(text, fontsize=9, parse_math=False)
    _legend(figure, (left, right))
    return figure


def m_bin_figure(ids: Sequence[str], leakage: Sequence[np.ndarray], greedy: np.ndarray, terms: Terms) -> Figure:
    """The binary bound of each question, the highest first."""
    bound, count = binary_bounds(leakage, terms), len(leakage)
    order: list[int] = np.lexsort(([-values.mean() for values in leakage], -bound)).tolist()
    heights, place = bound[order], np.arange(count)
    above = int((bound > terms.limit).sum())
    labelled = count <= LABELLED
    figure, (axis,) = _figure(min(max(0.3 * count + 1, 5.6), 9), 4.2 if labelled else 3.5)
    for part, color, label in (
        (slice(0, above), _DRAWN, "M_bin above the limit"),
        (slice(above, count), _PALE, "M_bin within the limit"),
    ):
        if not place[part].size:
            continue
        if labelled:
            axis.bar(place[part], heights[part], color=color, width=0.8, label=label)
        else:
            edges = np.append(place[part], place[part][-1] + 1) - 0.5
            axis.stairs(heights[part], edges, fill=True, color=color, label=label)
    axis.axhline(terms.limit, color=_BOUND, linewidth=1.2, label=f"limit {terms.limit:g}")
    known = ~np.isnan(greedy)
    leaks = greedy[order] >= terms.leaks_from
    size = 6 if labelled else 3.5
    if leaks.any():
        look: Any = {"color": _GREEDY, "marker": "o", "markersize": size, "linestyle": "none", "clip_on": False}
        axis.plot(place[leaks], heights[leaks], label="greedy answer leaks", **look)
    title = f"M_bin above {terms.limit:g} for {_share(above, count)}, alpha = {terms.alpha_of(count):.3g}"
    if known.any():
        title += f"\ngreedy answer leaks for {_share(int(leaks.sum()), int(known.sum()))}"
    axis.set_title(title)
    ylabel = f"bound on P(X ≥ {terms.leaks_from:g})"
    margin = max((8 - count) / 2, 0.1) if labelled else 0
    axis.set(ylabel=ylabel, ylim=(0, 1.03), xlim=(-0.5 - margin, count - 0.5 + margin))
    if labelled:
        axis.set_xticks(place, [short_id(ids[i]) for i in order], rotation=90, fontsize=7, parse_math=False)
    else:
        axis.set(xticks=[], xlabel=f"{count} questions, highest bound first")
    _legend(figure, [axis])
    return figure


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%} of the questions ({part} of {whole})"
