"""What a forget quality can say at all: with few questions no p-value is small."""

from __future__ import annotations

import math

from oblivionis.naming import LOG_SETS, counted
from oblivionis.runs.directory import RunDirectory

SIGNIFICANT = 0.05


def questions(run: RunDirectory) -> int:
    """Number of forget questions with a truth ratio of both models of the test, the smaller of the two."""
    return min(_truth_ratios(run, stage) for stage in ("unlearn", "retrain"))


def _truth_ratios(run: RunDirectory, stage: str) -> int:
    log = (run.evaluation_log(stage) if run.stage_summary(stage) is not None else None) or {}
    return len(log.get(LOG_SETS["forget"], {}).get("average_perturb_loss") or ())


def telling_steps(questions: int) -> int | None:
    """The least k for which D = k / questions is significant; None where not even models that share nothing are."""
    return next((k for k in range(1, questions + 1) if ks_p_value(questions, k) < SIGNIFICANT), None)


def ks_p_value(questions: int, steps: int) -> float:
    """p-value of the two-sample Kolmogorov–Smirnov test with so many values on either side and D = steps / questions.

    Exact and two-sided (Gnedenko & Korolyuk 1951), in (0, 1]; `steps` from 1 to `questions`.
    """
    ways = [(-1) ** (j + 1) * math.comb(2 * questions, questions - j * steps) for j in range(1, questions // steps + 1)]
    return min(1.0, 2 * sum(ways) / math.comb(2 * questions, questions))


def inconclusive_reason(run: RunDirectory) -> str:
    """Why the forget quality of this run says nothing; empty where it says something, or there is none."""
    count = questions(run)
    if not count or telling_steps(count) is not None:
        return ""
    return (
        f"In parentheses: {counted(count, 'question')} cannot tell any two models apart, so this p-value says nothing."
    )
