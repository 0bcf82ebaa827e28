"""Is what a request asked for forgotten? The evidence, record by record, and what makes it worth nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from oblivionis.config.schema import Config, Requests
from oblivionis.erasure.ledger import Request
from oblivionis.erasure.retained_twins import twins_of_requests
from oblivionis.erasure.verification_records import EVALUATOR, FILE, MOMENTS, exchanges, exchanges_of
from oblivionis.erasure.verification_rules import (
    ESTIMATED,
    MEAN_LIKELY,
    RETRAINED,
    WRONG_ANSWERS,
    Exchange,
    Judgement,
    Likelihood,
    RecordEvidence,
    ended,
    far_likelier,
    judge_counts,
    judge_request,
    likely_in_mean,
    verdict_against_oracle,
)
from oblivionis.files import json_text
from oblivionis.measures import registry
from oblivionis.measures.audit_numbers import MOMENTS as MOMENTS_OF_AUDIT
from oblivionis.measures.audit_numbers import REQUEST_RECITED, REQUEST_ROUGE, REQUEST_SHORT, REQUEST_TWINS, own_names
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.runs.failed_evaluators import failures

if TYPE_CHECKING:
    from oblivionis.measures.assessor import Assessor, Measured

UTILITY = ("model_utility", "retain_prob", "muse_knowmem_retain", "rwku_neighbor_questions", "choices_utility")
"""What says how much a model is still good for: the first of them that the finetuned model has."""
MOST_MOVED = 100.0
"""Furthest that the weights may lie from those before unlearning, as a multiple of the latter's norm."""


class Verification:
    """Looks at the records of the requests of one stage, in the models before, after and at its end.

    What a resumed run needs is in metrics.jsonl.
    """

    def __init__(self, run: RunDirectory, config: Config, assessor: Assessor, stage: str) -> None:
        self._run, self._config, self._assessor, self._stage = run, config, assessor, stage
        self._oracle: dict[str, float] = {}

    def exchanged(
        self,
        served: Sequence[Request],
        again: Sequence[Request],
        server_round: int,
        before: np.ndarray,
        after: np.ndarray,
    ) -> None:
        """The models right before and right after the exchange of a round: on the requests that it served, and on those
        that it served `again` of which no earlier exchange is known to have done what it should."""
        done = exchanges_of(self._run, self._stage) if again else {}
        asked = {r.id: r.record_ids for r in served if r.record_ids}
        asked |= {r.id: r.record_ids for r in again if not self._is_done(r, done.get(r.id, {}))}
        ids = list(dict.fromkeys(i for mine in asked.values() for i in mine))
        if not ids:
            return
        for moment, vector in zip(MOMENTS, (before, after), strict=True):
            started = time.perf_counter()
            known = self._assessor.knowledge(vector, ids, rouge=True)
            # A model that computes no number any more knows nothing.
            clean = {name: dict(zip(of, np.nan_to_num(list(of.values())), strict=True)) for name, of in known.items()}
            values = {i: {name: float(of[i]) for name, of in clean.items()} for i in ids}
            references = self._references(vector, ids) if vector is after else {}
            for i, (reference, _) in references.items():
                values[i]["reference"] = reference
            row = {
                "stage": self._stage,
                "round": server_round,
                "moment": moment,
                "evaluator": EVALUATOR,
                "metrics": {name: float(np.mean(list(of.values()))) for name, of in clean.items()},
                "requests": {r: {i: values[i] for i in mine} for r, mine in asked.items()},
                **({"compared_with": {i: name for i, (_, name) in references.items()}} if references else {}),
                "seconds": time.perf_counter() - started,
                "time": time.time(),
            }
            self._run.append_metrics([row])

    def _is_done(self, request: Request, known: Mapping[str, Sequence[Exchange]]) -> bool:
        """Whether the exchanges so far ended the recitation of each of its records, and left none far likelier."""
        limit = self._config.unlearning.requests.verify_max_rouge
        return all(
            ended(of, limit) and of[-1].after <= limit and not far_likelier(of[-1].left, of[0].known)
            for of in (known.get(i, ()) for i in request.record_ids)
        )

    def _references(self, vector: np.ndarray, ids: Sequence[str]) -> dict[str, tuple[float, str]]:
        """With what the likelihood of each record's answer in a model is compared, and what that is; without those to
        which nothing can be compared.

        The retrained model's likelihood where it never saw the record; else what calibrated forgetting estimates; else
        that of wrong answers.
        """
        found: dict[str, tuple[float, str]] = {}
        retrained = self._run.load_checkpoint("retrain").vector if self._run.stage_summary("retrain") else None
        if retrained is not None:
            _, seen = twins_of_requests(self._assessor.corpus, ids)
            new = [i for i in ids if i not in seen and i not in self._oracle]
            self._oracle |= self._assessor.knowledge(retrained, new, rouge=False)["prob"] if new else {}
            found |= {i: (self._oracle[i], RETRAINED) for i in ids if i not in seen}
        for name, measure in ((ESTIMATED, self._assessor.never_seen), (WRONG_ANSWERS, self._assessor.wrong_answers)):
            if missing := [i for i in ids if i not in found]:
                found |= {i: (prob, name) for i, prob in measure(vector, missing).items()}
        return {i: (float(np.nan_to_num(prob)), name) for i, (prob, name) in found.items()}

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
        known, references = self._assessor.knowledge(vector, ids, rouge=False)["prob"], self._references(vector, ids)
        likelihoods = {i: Likelihood(float(np.nan_to_num(known[i])), *references.get(i, (None, ""))) for i in ids}
        served = exchanges_of(self._run, self._stage)
        doubt, settings = self._doubt(measured, vector, finetuned), self._config.unlearning.requests
        found: dict[str, Judgement] = {}
        evidence: dict[str, Any] = {}
        for request in asked:
            mine = served.get(request.id, {})
            of = {
                i: RecordEvidence(units[i], final[i], before[i], oracle.get(i), mine.get(i, ()), likelihoods[i])
                for i in request.record_ids
            }
            held = {i: list(twins[i]) for i in request.record_ids if i in twins}
            found[request.id] = judge_request(
                of,
                limit=settings.verify_max_rouge,
                least_testable=settings.verify_min_testable,
                doubt=doubt,
                twins=len(held),
            )
            knows = verdict_against_oracle(list(of.values()), final=True)
            more = {"knows": knows, "twins": held, "seen": [i for i in request.record_ids if i in seen]}
            evidence[request.id] = _written(found[request.id], of, leaks) | more
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

    def _doubt(self, measured: Measured, vector: np.ndarray, finetuned: np.ndarray) -> str:
        known = (self._run.stage_summary("finetune") or {}).get("metrics", {})
        least = self._config.unlearning.requests.verify_min_utility
        found = doubt(measured.report.failed, measured.metrics, known, least) or moved(vector, finetuned)
        return found or self._unknown_utility()

    def _unknown_utility(self) -> str:
        """Why nobody can tell what is left of the utility, empty where somebody can."""
        owners = {registry.evaluator_of(name) for name in UTILITY}
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


def judge_numbers(
    numbers: Mapping[str, Mapping[str, float]],
    records: int,
    settings: Requests,
    *,
    ruined: str = "",
    first: Mapping[str, float] | None = None,
) -> Judgement | None:
    """The outcome of a request for so many `records` from what its client measured at the moments of
    `audit_numbers.MOMENTS`; None without numbers of the final model.

    ruined: why the final model's silence shows nothing, as far as the model itself tells; first: what it measured
    before the first exchange, where `numbers` are of a later one: what was known then, and how useful the model was.
    """
    before, after, final = (numbers.get(moment) or {} for moment in MOMENTS_OF_AUDIT)
    first = before if first is None else first
    if not final:
        return None
    failed = final.get("failed_evaluators", 0.0)
    why_not = f"{failed:g} evaluators failed in the client's audit; its log says why" if failed else ruined
    outcome, why = judge_counts(
        records,
        before.get(REQUEST_RECITED),
        final[REQUEST_RECITED],
        recited_after=after.get(REQUEST_RECITED),
        untestable=final[REQUEST_SHORT],
        twins=int(final.get(REQUEST_TWINS, 0)),
        least_testable=settings.verify_min_testable,
        doubt=why_not or doubt({}, final, first, settings.verify_min_utility),
        likely=_likely(*map(own_names, (first, after, final))),
    )
    return Judgement(outcome, why, final[REQUEST_ROUGE])


def _likely(before: Mapping[str, float], after: Mapping[str, float], final: Mapping[str, float]) -> str:
    """In which model the records' answers are, in the mean, still far likelier than the client estimates for a model
    that never saw them; empty for none, or where that is not known."""
    places = (("right after the exchange", after), ("in the final model", final))
    return next((f"{where} {MEAN_LIKELY}" for where, now in places if likely_in_mean(before, now)), "")


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
