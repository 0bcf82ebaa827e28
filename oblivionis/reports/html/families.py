"""The families of measures, each folded to a line with its first number: figure, table, what it says in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import htpy as h

from evaluation.metrics.retrained_comparison import Verdict
from oblivionis.config.schema import Config
from oblivionis.measures import registry
from oblivionis.measures.membership import report as membership_report
from oblivionis.measures.ruler import report as ruler_report
from oblivionis.measures.tofu import report as tofu_report
from oblivionis.naming import MODELS
from oblivionis.reports import attacks as attack_report
from oblivionis.reports import run_summary as report
from oblivionis.reports import verdicts
from oblivionis.reports.format import number
from oblivionis.reports.html import person_pages
from oblivionis.reports.html import rebound as rebound_section
from oblivionis.reports.html.curves import course, measured_stages
from oblivionis.reports.html.measure_figures import figure_of
from oblivionis.reports.markup import meant, paragraphs, section
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.failed_evaluators import Failure, failures

TITLES = {
    "tofu": "Answers: how likely, how close, how useful",
    "leakage": "Leakage of sampled answers",
    "ruler": "RULER: where the records lie",
    "wikimem": "WikiMem: facts about people",
    "membership": "Membership inference",
    "muse": "MUSE: texts",
    "rwku": "RWKU: probes",
    "choices": "Multiple choice",
    "fluency": "Fluency",
    "lm_eval": "Tasks of lm-eval",
}
"""What a family of measures is called; another one by its own name."""
LATEST = ("unlearn", "finetune", "retrain", "local_unlearned", "local", "base")
"""The model that a reader wants to know of first, and what stands in for it."""
Metrics = Mapping[str, Mapping[str, float]]
T = TypeVar("T")


@dataclass(frozen=True)
class _Judged:
    """What is known of a run's models but their metrics: verdicts, final failures, notes on metrics by stage."""

    run: RunDirectory
    config: Config
    verdicts: Mapping[str, Verdict]
    failed: Sequence[Failure]
    notes: Mapping[str, Mapping[str, str]]


def sections(run: RunDirectory, config: Config, metrics: Metrics) -> dict[str, h.Node]:
    """The folded families that have anything to show, by the names of their sections."""
    failed = [failure for failure in failures(run) if failure.final and failure.stage in metrics]
    found = verdicts.find_verdicts(run, config.evaluation.truth_ratio)
    judged = _Judged(run, config, found, failed, report.stage_notes(run))
    names = dict.fromkeys((*registry.measures(), *(failure.evaluator for failure in failed)))
    families = {f"measure-{name}": _family(name, metrics, judged) for name in names}
    others = {
        "rebound": ("What comes back", rebound_section.section(run)),
        "attacks": ("Attacks", attack_report.section(run)),
        "people": ("People", person_pages.section(run)),
    }
    families |= {name: section(name, title, content) if content else None for name, (title, content) in others.items()}
    return {name: part for name, part in families.items() if part is not None}


def _family(name: str, metrics: Metrics, judged: _Judged) -> h.Node:
    """A family: its figure, what it says in words, its rows of the comparison; nothing where nothing was measured."""
    own = {stage: _own(name, of) for stage, of in metrics.items()}
    failed = [failure for failure in judged.failed if failure.evaluator == name]
    notes = {stage: _own(name, of) for stage, of in judged.notes.items()}
    doubt = tofu_report.inconclusive_reason(judged.run) if name == "tofu" else ""
    how = {"doubted": ("forget_quality",) if doubt else (), "failed": failed, "notes": notes}
    title = TITLES.get(name, name)
    table = report.comparison(own, f"{title}, the final models side by side", verdicts.marks(judged.verdicts), **how)
    if not table.rows:
        return None
    legends = [report.LEGEND if "retrain" in metrics else report.NO_ORACLE] if name == "tofu" else []
    content = [
        meant("Retrained model", "Over-unlearned (↓)") if name == "tofu" else None,
        figure_of(name, judged.run, metrics),
        paragraphs(_words(name, metrics, judged), "verdict"),
        table.html_table(),
        paragraphs(report.note_lines(notes)),
        _further_course(judged, metrics) if name == "tofu" else None,
        paragraphs([*legends, *([doubt] if doubt else []), *report.legends(own)], "legend"),
    ]
    return section(f"measure-{name}", title, content, _headline(own) or h.span(".bad")["failed"])


def _own(name: str, of: Mapping[str, T]) -> dict[str, T]:
    """Those of a stage's metrics that belong to a measure."""
    return {key: value for key, value in of.items() if registry.evaluator_of(key) == name}


def _words(name: str, metrics: Metrics, judged: _Judged) -> list[str]:
    """What the numbers of a measure say."""
    if name == "tofu":
        return verdicts.sentences(judged.verdicts)
    if name == "ruler":
        return ruler_report.sentences(judged.run)
    return membership_report.sentences(metrics) if name == "membership" else []


def _further_course(judged: _Judged, metrics: Metrics) -> h.Node:
    """The course by the measure that is not the main figure's."""
    oracle = metrics.get("retrain", {})
    return course(judged.run, judged.config, oracle, "rouge") if measured_stages(judged.run, oracle, "prob") else None


def _headline(own: Metrics) -> str:
    """The first row in short: the latest model's value, and the retrained one's."""
    stage = next((s for s in LATEST if own.get(s)), None)
    if stage is None:
        return ""
    shown = report.rows({stage: own[stage]}) or [("", "", "", [None])]
    key, group, measure, (value,) = shown[0]
    if value is None:
        return ""
    oracle = own.get("retrain", {}).get(key) if stage != "retrain" else None
    there = f", {MODELS['retrain']} {number(oracle)}" if oracle is not None else ""
    return f"{group}, {measure}: {MODELS[stage]} {number(value)}{there}"
