"""Measures, in every round, what is back of what each served request had forgotten."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluation.metrics.rebound import Curve, rebound_metrics
from oblivionis.config.schema import Rebound
from oblivionis.erasure.request import Request
from oblivionis.measures.questions import spread
from oblivionis.measures.rebound.evaluator import MEASURES, summary_key
from oblivionis.runs.directory import RunDirectory, named_metrics

if TYPE_CHECKING:
    from oblivionis.measures.assessor import Assessor

EVALUATOR = "rebound"
BEFORE, AFTER, ROUND = "before_unlearn", "after_unlearn", "round"


class ReboundTracker:
    """Writes the rows of the evaluator `rebound`: the value of each served request, by measure.

    It remembers nothing: what a resumed run needs is in the ledger and in the rows.
    """

    def __init__(self, settings: Rebound, assessor: Assessor, run: RunDirectory, stage: str) -> None:
        self._settings, self._assessor, self._run, self._stage = settings, assessor, run, stage

    def unlearned(self, requests: Sequence[Request], server_round: int, before: np.ndarray, after: np.ndarray) -> None:
        """The global models right before and right after the exchange of `round`, on the requests served in it."""
        new = [r for r in requests if r.served_round == server_round]
        self._measure(new, server_round, BEFORE, before)
        self._measure(new, server_round, AFTER, after)

    def round_ended(self, requests: Sequence[Request], server_round: int, vector: np.ndarray) -> None:
        """The global model at the end of `round`, on all requests served so far."""
        self._measure(requests, server_round, ROUND, vector)

    def _measure(self, requests: Sequence[Request], server_round: int, moment: str, vector: np.ndarray) -> None:
        started = time.perf_counter()
        samples = {r.id: spread(r.record_ids, self._settings.records) for r in requests if r.record_ids}
        if not samples:
            return
        ids = list(dict.fromkeys(i for sample in samples.values() for i in sample))
        columns = self._assessor.knowledge(vector, ids, rouge=self._settings.rouge)
        values = {
            # A model that computes no number any more knows nothing.
            name: {r: float(np.nan_to_num([columns[name][i] for i in sample]).mean()) for r, sample in samples.items()}
            for name in columns
        }
        row = {
            "stage": self._stage,
            "round": server_round,
            "moment": moment,
            "evaluator": EVALUATOR,
            "metrics": {name: float(np.mean(list(of.values()))) for name, of in values.items()},
            "requests": values,
            "seconds": time.perf_counter() - started,
            "time": time.time(),
        }
        self._run.append_metrics([row])


def rebound_curves(rows: Sequence[Mapping[str, Any]], stage: str, measure: str = "prob") -> list[Curve]:
    """The curve of each request from the rows of metrics.jsonl, in the order in which they were served."""
    rows_of_stage = [r for r in rows if r["evaluator"] == EVALUATOR and r["stage"] == stage]
    measured = [r for r in rows_of_stage if measure in r.get("requests", {})]
    curves = []
    for first in (r for r in measured if r["moment"] == BEFORE):
        for request, before in first["requests"][measure].items():
            served = first["round"]
            of = {
                (r["moment"], r["round"]): r["requests"][measure][request]
                for r in measured
                if r["round"] >= served and request in r["requests"][measure]
            }
            rounds = sorted(server_round for moment, server_round in of if moment == ROUND)
            if (AFTER, served) in of:
                later = [of[ROUND, server_round] for server_round in rounds]
                curves.append(Curve(request, served, before, of[AFTER, served], later))
    return curves


def rebound_summary(rows: Sequence[Mapping[str, Any]], stage: str) -> tuple[dict[str, float], dict[str, Any]]:
    """What a stage's summary says of the rebound: metrics by name, `rebound_rouge_…` those of the greedy answers; and
    per measure and request before, after, at the end, the half-life (null: not back or nothing forgotten) and whether
    it is censored."""
    metrics: dict[str, float] = {}
    facts: dict[str, Any] = {}
    for measure in MEASURES:
        curves = rebound_curves(rows, stage, measure)
        named = {summary_key(measure, name): value for name, value in rebound_metrics(curves).items()}
        metrics |= named_metrics(EVALUATOR, named)
        if curves:
            facts[measure] = {c.request: _facts(c) for c in curves}
    return metrics, facts


def _facts(curve: Curve) -> dict[str, Any]:
    life = curve.half_life
    return {
        "round": curve.round,
        "before": curve.before,
        "after": curve.after,
        "at_end": curve.later[-1] if curve.later else None,
        "half_life": life if life is not None and math.isfinite(life) else None,
        "censored": life is not None and math.isinf(life),
    }
