"""Is what a request asked for forgotten? The evidence, record by record, and what makes it worth nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluation.metrics.verdict import LEAST_QUESTIONS, OVER_UNLEARNED, STILL_KNOWN, judge_probability
from oblivionis.assessment import evaluators
from oblivionis.assessment.questions import spread
from oblivionis.config.schema import Config
from oblivionis.files import json_text
from oblivionis.requests.judgement import NOT_VERIFIED, Judgement, RecordEvidence, judge_request
from oblivionis.requests.judgement import OVER_UNLEARNED as AVOIDED
from oblivionis.requests.judgements import EVALUATOR, FILE, MOMENTS, exchanges
from oblivionis.requests.ledger import Request
from oblivionis.requests.twins import twins_of_requests
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.runs.failures import failures

if TYPE_CHECKING:
    from oblivionis.assessment.assessor import Assessor, Measured

UTILITY = ("model_utility", "retain_prob", "muse_knowmem_retain", "rwku_neighbor_questions", "choices_utility")
"""What says how much a model is still good for: the first of them that the finetuned model has."""
MOST_MOVED = 100.0
"""Furthest that the weights may lie from those before unlearning, as a multiple of the latter's norm."""


class Verification:
    """Looks at the records of the requests of one stage, in the models before, after and at its end.

    It remembers nothing: what a resumed run needs is in metrics.jsonl.
    """

    def __init__(self, run: RunDirectory, config: Config, assessor: Assessor, stage: str) -> None:
        self._run, self._config, self._assessor, self._stage = run, config, assessor, stage

    def exchanged(self, requests: Sequence[Request], server_round: int, before: np.ndarray, after: np.ndarray) -> None:
        """The models right before and right after the exchange of a round, on the requests that it served."""
        asked = {
            r.id: spread(r.record_ids, self._config.evaluation.rebound.records)
            for r in requests
            if r.served_round == server_round and r.record_ids
        }
        ids = list(dict.fromkeys(i for mine in asked.values() for i in mine))
        if not ids:
            return
        for moment, vector in zip(MOMENTS, (before, after), strict=True):
            started = time.perf_counter()
            known = self._assessor.knowledge(vector, ids, rouge=True)
            # A model that computes no number any more knows nothing.
            clean = {name: dict(zip(of, np.nan_to_num(list(of.values())), strict=True)) for name, of in known.items()}
            row = {
                "stage": self._stage,
                "round": server_round,
                "moment": moment,
                "evaluator": EVALUATOR,
                "metrics": {name: float(np.mean(list(of.values()))) for name, of in clean.items()},
                "requests": {
                    r: {i: {name: float(of[i]) for name, of in clean.items()} for i in mine}
                    for r, mine in asked.items()
                },
                "seconds": time.perf_counter() - started,
                "time": time.time(),
            }
            self._run.append_metrics([row])

    def judge(
        self, requests: Sequence[Request], measured: Measured, vector: np.ndarray, finetuned: np.ndarray
    ) -> dict[str, Judgement]:
        """The outcome of each request, by id, from the final model `vector`; writes `judgements.json`.

        finetuned: the vector that the stage started from.
        """
        asked = [r for r in requests if r.record_ids]
        if not asked:
            return {}
        ids = list(dict.fromkeys(i for r in asked for i in r.record_ids))
        log = self._run.evaluation_log
        final = self._recalls(vector, ids, measured.log)
        before = self._recalls(finetuned, ids, log("finetune"))
        for row in exchanges(self._run, self._stage, MOMENTS[0]):
            for mine in row["requests"].values():
                for i, values in mine.items():
                    before[i] = max(before.get(i, 0.0), values["rouge"])
        retrained = self._run.load_checkpoint("retrain").vector if self._run.stage_summary("retrain") else None
        twins, seen = twins_of_requests(self._assessor.corpus, ids)
        unseen = [i for i in ids if i not in seen]
        oracle = {} if retrained is None else self._recalls(retrained, unseen, log("retrain"))
        units = self._assessor.units(ids)
        leaks = dict((measured.log or {}).get("leakage", {}))
        if "leakage" not in measured.report.failed:  # it would fail again
            leaks |= self._assessor.leakage(vector, [i for i in ids if i not in leaks])
        losses = [self._losses(v, unseen) for v in (vector, retrained)] if retrained is not None and unseen else None
        doubt, settings = self._doubt(measured, vector, finetuned), self._config.unlearning.requests
        found: dict[str, Judgement] = {}
        evidence: dict[str, Any] = {}
        for request in asked:
            of = {i: RecordEvidence(units[i], final[i], before[i], oracle.get(i)) for i in request.record_ids}
            comparable = [i for i in request.record_ids if i not in seen]
            knows = _knows([[loss[i] for i in comparable] for loss in losses]) if losses else ""
            held = {i: list(twins[i]) for i in request.record_ids if i in twins}
            found[request.id] = judge_request(
                of,
                limit=settings.verify_max_rouge,
                least_testable=settings.verify_min_testable,
                doubt=doubt,
                knows=knows,
                twins=len(held),
            )
            known = {"knows": knows, "twins": held, "seen": [i for i in request.record_ids if i in seen]}
            evidence[request.id] = _written(found[request.id], of, leaks) | known
        written = {"limit": settings.verify_max_rouge, "doubt": doubt, "model": vector_hash(vector)}
        self._run.keep({FILE: json_text({**written, "requests": evidence})})
        return found

    def _recalls(self, vector: np.ndarray, ids: Sequence[str], log: Mapping[str, Any] | None) -> dict[str, float]:
        """Recall by record: from the answers in the log where it has them, else the model is asked."""
        known = self._assessor.recalls_in(log)
        missing = [i for i in ids if i not in known]
        if missing:
            known |= self._assessor.recalls(vector, missing)
        return {i: known[i] for i in ids}

    def _losses(self, vector: np.ndarray, ids: Sequence[str]) -> dict[str, float]:
        """Mean negative log-likelihood of an answer token, by record."""
        found = self._assessor.knowledge(vector, ids, rouge=False)["prob"]
        return {i: -float(np.log(max(p, 1e-300))) for i, p in found.items()}

    def _doubt(self, measured: Measured, vector: np.ndarray, finetuned: np.ndarray) -> str:
        known = (self._run.stage_summary("finetune") or {}).get("metrics", {})
        least = self._config.unlearning.requests.verify_min_utility
        found = doubt(measured.report.failed, measured.metrics, known, least) or moved(vector, finetuned)
        return found or self._unknown_utility()

    def _unknown_utility(self) -> str:
        """Why nobody can tell what is left of the utility, empty where somebody can."""
        owners = {evaluators.evaluator_of(name) for name in UTILITY}
        lacking = [f for f in failures(self._run) if f.stage == "finetune" and f.final and f.evaluator in owners]
        if not lacking:
            return ""
        evaluator, reason = lacking[0].evaluator, lacking[0].reason
        return f"the evaluator {evaluator} failed on the finetuned model ({reason}): how useful it was is not known"


def doubt(failed: Mapping[str, str], metrics: Mapping[str, float], before: Mapping[str, float], least: float) -> str:
    """Why a model that does not say the records shows nothing, empty where there is no reason.

    failed: evaluators that failed; metrics, before: of this model and of the one before unlearning; least: the share of
    the latter's utility that must be left.
    """
    for name, error in failed.items():
        return f"the evaluator {name} failed on the final model ({error}): it may be ruined"
    name = next((n for n in UTILITY if before.get(n, 0.0) > 0), None)
    if name is None:
        return ""
    now = metrics.get(name)
    if now is None or not np.isfinite(now):
        return f"the final model's {name} is no number: the model is ruined"
    if now < least * before[name]:
        return (
            f"the final model's {name} is {now:.3g}, below {least:g} of the {before[name]:.3g} before unlearning: a "
            "ruined model recites nothing"
        )
    return ""


def moved(vector: np.ndarray, before: np.ndarray) -> str:
    """The same from the weights: are they numbers, and near those from before?"""
    if not np.isfinite(vector).all():
        return "the final model's weights are not finite"
    far = np.linalg.norm(vector.astype(np.float64) - before) / max(
        float(np.linalg.norm(before.astype(np.float64))), 1e-12
    )
    if far > MOST_MOVED:
        return f"the final model's weights lie {far:.3g} times their own norm from those before unlearning"
    return ""


def _knows(losses: Sequence[Sequence[float]]) -> str:
    """The word on some records' losses beside the retrained model's, empty where it is neither."""
    ours, oracle = losses
    verdict = judge_probability(ours, oracle) if len(ours) >= LEAST_QUESTIONS else None
    words = {STILL_KNOWN: NOT_VERIFIED, OVER_UNLEARNED: AVOIDED}
    return "" if verdict is None else words.get(verdict.verdict, "")


def _written(
    found: Judgement, evidence: Mapping[str, RecordEvidence], leaks: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    return {
        "outcome": found.outcome,
        "why": found.why,
        "rouge": found.recall,
        "records": {
            i: {"outcome": found.records[i], **asdict(of), "leakage": leaks.get(i)} for i, of in evidence.items()
        },
    }
