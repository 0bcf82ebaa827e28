"""The server's verification of requests: it measures their records at exchanges and at the end, and has them judged."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from oblivionis.config.schema import Config
from oblivionis.erasure.request import Request
from oblivionis.erasure.retained_twins import twins_of_requests
from oblivionis.erasure.verification_evidence import (
    ESTIMATED,
    RETRAINED,
    WRONG_ANSWERS,
    Exchange,
    Likelihood,
    RecordEvidence,
    RequestRecords,
)
from oblivionis.erasure.verification_records import EVALUATOR, FILE, MOMENTS, exchanges, exchanges_of
from oblivionis.erasure.verification_rules import UTILITY, Judgement, Thresholds
from oblivionis.files import json_text
from oblivionis.measures import registry
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.runs.failed_evaluators import failures

if TYPE_CHECKING:
    from oblivionis.measures.assessor import Assessor, Measured


class Verification:
    """Measures the records of the requests of one stage in the models before, after and at its end.

    What a resumed run needs is in metrics.jsonl.
    """

    def __init__(self, run: RunDirectory, config: Config, assessor: Assessor, stage: str) -> None:
        self._run, self._assessor, self._stage = run, assessor, stage
        self._thresholds = Thresholds.of(config.unlearning.requests)
        self._oracle: dict[str, float] = {}

    def exchanged(
        self,
        served: Sequence[Request],
        again: Sequence[Request],
        server_round: int,
        before: np.ndarray,
        after: np.ndarray,
    ) -> None:
        """Measure the models right before and right after the exchange of a round.

        On the requests that it served, and on those that it served `again` of which no earlier exchange is known to
        have done what it should.
        """
        measured = exchanges_of(self._run, self._stage) if again else {}
        requested = {r.id: r.record_ids for r in served if r.record_ids}
        requested |= {r.id: r.record_ids for r in again if not self._is_done(r, measured.get(r.id, {}))}
        ids = list(dict.fromkeys(i for record_ids in requested.values() for i in record_ids))
        if not ids:
            return
        for moment, vector in zip(MOMENTS, (before, after), strict=True):
            started = time.perf_counter()
            knowledge = self._assessor.knowledge(vector, ids, rouge=True)
            # A model that computes no number any more knows nothing.
            finite = {
                name: dict(zip(by_record, np.nan_to_num(list(by_record.values())), strict=True))
                for name, by_record in knowledge.items()
            }
            values = {i: {name: float(by_record[i]) for name, by_record in finite.items()} for i in ids}
            references = self._references(vector, ids) if vector is after else {}
            for i, (reference, _) in references.items():
                values[i]["reference"] = reference
            row = {
                "stage": self._stage,
                "round": server_round,
                "moment": moment,
                "evaluator": EVALUATOR,
                "metrics": {name: float(np.mean(list(by_record.values()))) for name, by_record in finite.items()},
                "requests": {r: {i: values[i] for i in record_ids} for r, record_ids in requested.items()},
                **({"compared_with": {i: name for i, (_, name) in references.items()}} if references else {}),
                "seconds": time.perf_counter() - started,
                "time": time.time(),
            }
            self._run.append_metrics([row])

    def _is_done(self, request: Request, measured: Mapping[str, Sequence[Exchange]]) -> bool:
        """Whether the exchanges so far did to each of a request's records what they should."""
        units = self._assessor.units(request.record_ids)
        return all(self._thresholds.is_done(measured.get(i, ()), units[i]) for i in request.record_ids)

    def _references(self, vector: np.ndarray, ids: Sequence[str]) -> dict[str, tuple[float, str]]:
        """With what the likelihood of each record's answer in a model is compared, and what that is; without those to
        which nothing can be compared.

        The retrained model's likelihood where it never saw the record; else what calibrated forgetting estimates; else
        that of wrong answers.
        """
        references: dict[str, tuple[float, str]] = {}
        retrained = self._retrained()
        if retrained is not None:
            _, seen = twins_of_requests(self._assessor.corpus, ids)
            new = [i for i in ids if i not in seen and i not in self._oracle]
            self._oracle |= self._assessor.knowledge(retrained, new, rouge=False)["prob"] if new else {}
            references |= {i: (self._oracle[i], RETRAINED) for i in ids if i not in seen}
        for name, measure in ((ESTIMATED, self._assessor.never_seen), (WRONG_ANSWERS, self._assessor.wrong_answers)):
            if missing := [i for i in ids if i not in references]:
                references |= {i: (prob, name) for i, prob in measure(vector, missing).items()}
        return {i: (float(np.nan_to_num(prob)), name) for i, (prob, name) in references.items()}

    def _retrained(self) -> np.ndarray | None:
        return self._run.load_checkpoint("retrain").vector if self._run.stage_summary("retrain") else None

    def judge(
        self, requests: Sequence[Request], measured: Measured, vector: np.ndarray, finetuned: np.ndarray
    ) -> dict[str, Judgement]:
        """Judge requests by the final model, and write `judgements.json`.

        Parameters
        ----------
        requests : sequence of Request
        measured : Measured
            What the evaluators say of the final model.
        vector, finetuned : array (n,)
            The final model, and the one that the stage started from.

        Returns
        -------
        dict of str to Judgement
            By request id, of those that name records.
        """
        requests = [r for r in requests if r.record_ids]
        if not requests:
            return {}
        ids = list(dict.fromkeys(i for r in requests for i in r.record_ids))
        twins, seen = twins_of_requests(self._assessor.corpus, ids)
        evidence = self._evidence(requests, ids, seen, measured, vector, finetuned)
        leaks = dict((measured.log or {}).get("leakage", {}))
        if "leakage" not in measured.report.failed:  # it would fail again
            leaks |= self._assessor.leakage(vector, [i for i in ids if i not in leaks])
        reason = self._inconclusive_reason(measured, vector, finetuned)
        judged: dict[str, Judgement] = {}
        written: dict[str, Any] = {}
        for request in requests:
            held = {i: list(twins[i]) for i in request.record_ids if i in twins}
            records = evidence[request.id]
            judged[request.id] = judgement = self._thresholds.judge(RequestRecords(records, len(held), reason))
            more = {"knows": judgement.knows, "twins": held, "seen": [i for i in request.record_ids if i in seen]}
            written[request.id] = _as_json(judgement, records, leaks) | more
        terms = {"limit": self._thresholds.max_recall, "doubt": reason, "model": vector_hash(vector)}
        self._run.keep({FILE: json_text({**terms, "requests": written})})
        return judged

    def _evidence(
        self,
        requests: Sequence[Request],
        ids: Sequence[str],
        seen: frozenset[str],
        measured: Measured,
        vector: np.ndarray,
        finetuned: np.ndarray,
    ) -> dict[str, dict[str, RecordEvidence]]:
        """By request and record what was measured at the exchanges, and what is measured now of the final model, of the
        finetuned one and, but for the records `seen` by it, of the retrained one."""
        log, retrained = self._run.evaluation_log, self._retrained()
        final = self._recalls(vector, ids, measured.log)
        before = self._recalls(finetuned, ids, log("finetune"))
        for row in exchanges(self._run, self._stage, MOMENTS[0]):
            for records in row["requests"].values():
                for i, values in records.items():
                    before[i] = max(before.get(i, 0.0), values["rouge"])
        unseen = [i for i in ids if i not in seen]
        oracle = {} if retrained is None else self._recalls(retrained, unseen, log("retrain"))
        units = self._assessor.units(ids)
        prob, references = self._assessor.knowledge(vector, ids, rouge=False)["prob"], self._references(vector, ids)
        likelihoods = {i: Likelihood(float(np.nan_to_num(prob[i])), *references.get(i, (None, ""))) for i in ids}
        served = exchanges_of(self._run, self._stage)
        return {
            r.id: {
                i: RecordEvidence(
                    units[i], final[i], before[i], oracle.get(i), served.get(r.id, {}).get(i, ()), likelihoods[i]
                )
                for i in r.record_ids
            }
            for r in requests
        }

    def _recalls(self, vector: np.ndarray, ids: Sequence[str], log: Mapping[str, Any] | None) -> dict[str, float]:
        """Recall by record: from the answers in the log where it has them, else the model is asked."""
        recalls = self._assessor.recalls_in(log)
        missing = [i for i in ids if i not in recalls]
        if missing:
            recalls |= self._assessor.recalls(vector, missing)
        return {i: recalls[i] for i in ids}

    def _inconclusive_reason(self, measured: Measured, vector: np.ndarray, finetuned: np.ndarray) -> str:
        """Why nothing follows from what the final model does not recite; empty where there is no reason."""
        before = (self._run.stage_summary("finetune") or {}).get("metrics", {})
        reason = self._thresholds.ruined(measured.report.failed, measured.metrics, before)
        return reason or self._thresholds.displaced(vector, finetuned) or self._unknown_utility()

    def _unknown_utility(self) -> str:
        """Why it is unknown what is left of the utility; empty where it is known."""
        owners = {registry.evaluator_of(name) for name in UTILITY}
        failed = [f for f in failures(self._run) if f.stage == "finetune" and f.final and f.evaluator in owners]
        if not failed:
            return ""
        evaluator, reason = failed[0].evaluator, failed[0].reason
        return f"the evaluator {evaluator} failed on the finetuned model ({reason}): how useful it was is not known"


def _as_json(
    judgement: Judgement, evidence: Mapping[str, RecordEvidence], leaks: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """A request's judgement as `judgements.json` keeps it, with the evidence of each record."""
    return {
        "outcome": judgement.outcome,
        "why": judgement.why,
        "rouge": judgement.recall,
        "records": {
            i: {"outcome": judgement.records[i], **asdict(record), "leakage": leaks.get(i)}
            for i, record in evidence.items()
        },
    }
