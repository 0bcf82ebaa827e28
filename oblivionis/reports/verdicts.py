"""What it means that the unlearned model knows less, or more, of the forget questions than the retrained one."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from evaluation.metrics.answer_metrics import truth_ratio
from evaluation.metrics.retrained_comparison import (
    FACTOR,
    LEAST_QUESTIONS,
    NEAR,
    OVER_UNLEARNED,
    STILL_KNOWN,
    UNDECIDED,
    Verdict,
    judge_probability,
    judge_truth_ratio,
)
from evaluation.metrics.tofu import SECTIONS
from oblivionis.files import write_json
from oblivionis.measures import registry
from oblivionis.measures.membership import report as membership_report
from oblivionis.measures.ruler import report as ruler_report
from oblivionis.reports.format import counted, number
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.failed_evaluators import failures
from oblivionis.runs.stored_significance_tests import kept

ROWS = {"prob": "forget_prob", "truth_ratio": "forget_truth_ratio"}
"""The metric, a row of the comparison table, that a verdict belongs to."""
TITLES = {"prob": "Prob of the forget answers", "truth_ratio": "Right over wrong forget answers"}
MARKS = {OVER_UNLEARNED: "↓", STILL_KNOWN: "↑"}
MEANING = {
    OVER_UNLEARNED: "The model does not merely not know the answers, it avoids them: that is itself a sign of the "
    "records (Streisand effect), and it usually costs utility.",
    STILL_KNOWN: "The records are still known.",
}


def find_verdicts(run: RunDirectory, convention: str = "geometric", *, anew: bool = False) -> dict[str, Verdict]:
    """The verdicts on the unlearned model compared with the retrained one, by measure: `prob` and `truth_ratio`.

    From the per-question logs of the two finished stages, whichever ended first, on the questions that both were asked.
    Without one of the logs, or without common questions, there is none. anew: computed, whatever is kept.
    """
    if anew:
        return _judge(run, convention)
    found = kept(run, "verdicts", lambda: {m: asdict(v) for m, v in _judge(run, convention).items()}, convention)
    return {measure: Verdict(**values) for measure, values in found.items()}


def _judge(run: RunDirectory, convention: str) -> dict[str, Verdict]:
    finished = all(run.stage_summary(stage) is not None for stage in ("unlearn", "retrain"))
    log, oracle = run.evaluation_log("unlearn"), run.evaluation_log("retrain")
    if not finished or log is None or oracle is None:
        return {}
    found = {
        "prob": judge_probability(*_common(_column(log, "avg_gt_loss"), _column(oracle, "avg_gt_loss"))),
        "truth_ratio": judge_truth_ratio(*_common(_truth_ratios(log, convention), _truth_ratios(oracle, convention))),
    }
    return {measure: verdict for measure, verdict in found.items() if verdict is not None}


def _column(log: Mapping[str, Any], column: str) -> dict[str, Any]:
    """A column of the forget questions by question id, by the question's number where the log has no ids."""
    values = log.get(SECTIONS["forget"], {}).get(column) or {}
    ids = log.get("ids", {}).get(SECTIONS["forget"], [])
    return dict(zip(ids if len(ids) == len(values) else values, values.values(), strict=True))


def _truth_ratios(log: Mapping[str, Any], convention: str) -> dict[str, float]:
    right, wrong = _column(log, "avg_paraphrased_loss"), _column(log, "average_perturb_loss")
    with np.errstate(invalid="ignore"):
        return {i: float(truth_ratio(right[i], wrong[i], convention)) for i in right if wrong.get(i)}


def _common(ours: Mapping[str, float], theirs: Mapping[str, float]) -> tuple[list[float], list[float]]:
    both = [i for i in ours if i in theirs]
    return [ours[i] for i in both], [theirs[i] for i in both]


def marks(verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    """Metric of the comparison table -> the mark in the unlearned model's cell, where there is one."""
    return {ROWS[m]: MARKS[v.verdict] for m, v in verdicts.items() if v.verdict in MARKS}


def p_values(verdicts: Mapping[str, Verdict], metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Two-sided p-values, by what is compared, that the unlearned model is no other than the retrained one.

    Of the probability and the truth ratio question by question (Wilcoxon), of the distribution of truth ratios
    (Kolmogorov and Smirnov: forget quality), of each membership attack (DeLong). Where none is `telling`, none at all
    if so few questions were asked that the signed ranks could not tell: n differences of one sign have the p-value
    2^(1 − n), and of N tests `telling` asks each for the N-th part of the level.
    """
    if not verdicts:
        return {}
    found = {TITLES[m]: min(1.0, 2 * min(v.p_below, v.p_above)) for m, v in verdicts.items()}
    quality = metrics.get("unlearn", {}).get("forget_quality")
    if quality is not None:
        found["forget quality"] = quality
    names = registry.catalogue()
    found |= {f"membership ({names[key].title})": p for key, p in membership_report.p_values(metrics).items()}
    found = {name: p for name, p in found.items() if math.isfinite(p)}
    questions = min(verdict.questions for verdict in verdicts.values())
    return found if telling(found) or 2.0 ** (1 - questions) <= _level_of_each(found) else {}


def telling(p_values: Mapping[str, float]) -> list[str]:
    """The tests that tell the unlearned model from the retrained one, all of them together at
    `measures.membership.report.LEVEL`, by Bonferroni's bound for each."""
    return [name for name, p in p_values.items() if p <= _level_of_each(p_values)]


def _level_of_each(tests: Collection[str]) -> float:
    return membership_report.LEVEL / max(1, len(tests))


def sentences(verdicts: Mapping[str, Verdict]) -> list[str]:
    """A line for each measure, under the comparison table: both values, how far apart they are, and what that means."""
    return [_sentence(measure, verdict) for measure, verdict in verdicts.items()]


def _sentence(measure: str, found: Verdict) -> str:
    ours, theirs = number(found.value), number(found.oracle)
    what = TITLES[measure] + (", median" if measure == "truth_ratio" else "")
    line = f"{what}: unlearned {ours}, retrained {theirs}"
    below = found.value < found.oracle
    p = found.p_below if below else found.p_above
    words = {
        OVER_UNLEARNED: f"far below (p = {number(p)}), over-unlearned.",
        STILL_KNOWN: f"far above (p = {number(p)}), under-unlearned.",
        NEAR: f"within a factor of {FACTOR:g}.",
        UNDECIDED: f"far {'below' if below else 'above'}, but {_doubt(found, p)}.",
    }
    mark = MARKS.get(found.verdict, "")
    return " ".join(
        part for part in (mark, f"{line}, that is", words[found.verdict], MEANING.get(found.verdict)) if part
    )


def _doubt(found: Verdict, p: float) -> str:
    if found.questions < LEAST_QUESTIONS:
        return f"whether by chance {counted(found.questions, 'question')} cannot tell (it takes {LEAST_QUESTIONS})"
    return f"not on enough of the {found.questions} questions to rule out chance (p = {number(p)})"


def verdict_document(run: RunDirectory, convention: str) -> dict[str, Any]:
    """Per measure the verdict and its figures; empty where there is no verdict and nothing failed.

    What RULER says of the unlearned model stands apart, under `ruler`; under `failed`, what was not measured of the
    models that are compared, and why.
    """
    found, ruler = find_verdicts(run, convention), ruler_report.verdict_facts(run)
    failed: dict[str, dict[str, str]] = {}
    for failure in failures(run):
        if failure.final and failure.stage in ("finetune", "unlearn", "retrain"):
            failed.setdefault(failure.stage, {})[failure.evaluator] = failure.reason
    if not found and not failed:
        return {}
    facts = {m: {"verdict": v.verdict, **{k: _finite(x) for k, x in asdict(v).items()}} for m, v in found.items()}
    more = {name: value for name, value in (("ruler", ruler), ("failed", failed)) if value}
    return {"model": "unlearn", "oracle": "retrain", "measures": facts, **more}


def write_verdicts(run: RunDirectory, convention: str) -> None:
    """Write `verdicts.json`, what `verdict_document` finds; no file where that is nothing."""
    if found := verdict_document(run, convention):
        write_json(run.path / "verdicts.json", found)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
