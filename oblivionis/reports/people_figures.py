"""The figure of a person audit: how much of each person is memorised, and how strongly, before and after."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oblivionis.audits.people_outcomes import Outcome, Person, PersonAudit, by_strength
from oblivionis.files import write_atomic
from oblivionis.naming import MODELS
from oblivionis.reports.format import short_id
from oblivionis.reports.leakage_figures import FIGURE_STYLE, NO_METADATA

SHOWN = 40
"""People with the most memorised that a figure shows."""
_BEFORE, _AFTER = "0.6", "tab:red"


def write_figures(audit: PersonAudit, folder: Path) -> list[Path]:
    """Write `people` as SVG and PNG into `folder`: the share of memorised phrasings of each person, and the mean z* of
    each memorised fact. Equal audits give equal SVG bytes."""
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = people_figure(audit)
        paths = []
        for kind in ("svg", "png"):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=150, metadata=dict.fromkeys(NO_METADATA[kind]))
            write_atomic(folder / f"people.{kind}", buffer.getvalue())
            paths.append(folder / f"people.{kind}")
    return paths


def before_rate(person: Person) -> float | None:
    """As `Person.rate`, of the model before; None unless all facts are known of it."""
    outcomes = [fact.before for fact in person.facts if fact.before is not None]
    if len(outcomes) < len(person.facts):
        return None
    return sum(outcome.memorized / outcome.phrasings for outcome in outcomes) / len(outcomes)


def people_figure(audit: PersonAudit) -> Figure:
    """What is memorised of each person, before and after."""
    people = sorted(by_strength(audit.people), key=lambda p: -max(p.rate, before_rate(p) or 0))[:SHOWN]
    figure = Figure(figsize=(8.4, 1.4 + 0.28 * len(people)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = range(len(people) - 1, -1, -1)
    after = MODELS.get(audit.stage or "", "this model")
    before = MODELS.get(audit.against_stage or "", "before")
    for place, person in zip(places, people, strict=True):
        earlier = before_rate(person)
        if earlier is not None:
            left.plot([earlier, person.rate], [place, place], color=_BEFORE, linewidth=1)
            left.plot(earlier, place, "o", color=_BEFORE, label=before)
        left.plot(person.rate, place, "o", color=_AFTER, label=after)
        _strengths(right, [f.before for f in person.facts], place + 0.12, _BEFORE, before)
        _strengths(right, [f.outcome for f in person.facts], place - 0.12, _AFTER, after)
    left.set(xlim=(-0.03, 1.03), xlabel="share of phrasings memorised", ylim=(-0.7, len(people) - 0.3))
    left.set_yticks(list(places), [short_id(p.name) for p in people], parse_math=False)
    right.set(xlabel="z* of a memorised fact (mean over its phrasings)")
    right.set_xlim(left=0)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="0.92")
    handles = {label: h for h, label in zip(*left.get_legend_handles_labels(), strict=True)}
    figure.legend([*handles.values()], [*handles], loc="outside lower center", ncols=2, frameon=False)
    return figure


def _strengths(axis: Axes, outcomes: Sequence[Outcome | None], place: float, color: str, label: str) -> None:
    values = [o.strength for o in outcomes if o is not None and o.strength is not None]
    axis.plot(values, [place] * len(values), "o", color=color, markersize=4, label=label)
