"""Whether a served request is forgotten: the thresholds, the rules, and the outcomes.

A request is `verified` only where every record was shown to be forgotten, and by an exchange: the model that an
exchange began with knew it, the one that it ended with does not, and neither does the final model. A model knows what
it recites, and an answer that it finds far likelier than a model would that never saw it (`far_likelier`). What
training does before or after an exchange is no unlearning. What neither can show is said to be so. It is `erased
exactly` where all rounds that its records had gone into were held again without them
(`oblivionis.erasure.exact_proof`): that takes no measurement.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from evaluation.metrics import retrained_comparison
from evaluation.metrics.retrained_comparison import FACTOR, LEAST_QUESTIONS, judge_probability
from oblivionis.config.schema import Certificate, Requests
from oblivionis.erasure.verification_evidence import (
    ESTIMATED,
    RETRAINED,
    WRONG_ANSWERS,
    Exchange,
    ExchangeCounts,
    Likelihood,
    RecordEvidence,
    RequestCounts,
    RequestRecords,
)

VERIFIED: Final = "verified"
ERASED: Final = "erased exactly"
NOT_VERIFIED: Final = "not verified"
OVER_UNLEARNED: Final = "over-unlearned"
NOT_TESTABLE: Final = "not testable"
INCONCLUSIVE: Final = "inconclusive"
DONE: Final = (VERIFIED, ERASED)
"""The outcomes of a request of which nothing is left to be done."""
OUTCOMES: Final = (*DONE, NOT_VERIFIED, OVER_UNLEARNED, NOT_TESTABLE, INCONCLUSIVE)

MEANING: Final[Mapping[str, str]] = {
    VERIFIED: "its exchange made the model forget its records, and nothing brought them back",
    ERASED: "the rounds that its records had gone into were held again without them, so that the model never had "
    "that client's records",
    NOT_VERIFIED: "the final model still knows them",
    OVER_UNLEARNED: "the final model avoids their answers, which it would not had it never seen them: who compares "
    "the two can tell that they were there",
    NOT_TESTABLE: "nothing shows that they were known: the model did not recite them before either, they are "
    "too short, or a model that never saw them says as much; nor were their answers far likelier than they are to it",
    INCONCLUSIVE: "what was measured does not suffice to tell",
}

RECORDED: Final = "recorded in the ledgers; `oblivionis certificate verify --replay` computes it again"
"""On what the outcome `ERASED` rests."""
LEAST_UNITS: Final = 2
"""Fewest measurable words of an answer whose recitation says anything."""
OF_THREE: Final = 2 / 3
"""The recall of two words of three, which are soon said by chance: of three words all must be said."""
UTILITY: Final = (
    *("model_utility", "retain_prob", "muse_knowmem_retain", "rwku_neighbor_questions", "choices_utility"),
)
"""What says how much a model is still good for: the first of them that the finetuned model has."""

IN_FINAL: Final = "the final model recites it"
RIGHT_AFTER: Final = "it was still recited right after its exchange: what it lost later, training did"
NOT_ASKED: Final = "no model was asked for it right before and after its exchange"
FADED: Final = "no exchange began with a model that knew it and ended with one that did not"
ENDED: Final = "an exchange ended its recitation, or what made its answer far likelier"
NO_RECITATION: Final = "recited before its exchange, not after it, and not in the final model"
LEFT_LIKELY: Final = "right after the exchange the answers were far likelier than in the retrained model"
_AFTER_ITS = "right after its exchange"

Finding = tuple[str, str]
"""An outcome, one of `OUTCOMES`, and why."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the evidence about a request shows.

    Attributes
    ----------
    outcome, why : str
        One of `OUTCOMES`, and the reason.
    recall : float in [0, 1] or None
        Mean recall of the final model; None where it was not measured.
    records : mapping of str to str
        Outcome by record id; empty where only counts are known.
    knows : str
        `NOT_VERIFIED` where the final model finds the answers far likelier than the retrained model does,
        `OVER_UNLEARNED` where far less likely, empty where neither, or where too few can be compared.
    """

    outcome: str
    why: str
    recall: float | None
    records: Mapping[str, str] = field(default_factory=dict)
    knows: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """How many records have which outcome."""
        return dict(Counter(self.records.values()))


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What a request is judged by, everywhere in a run, on its nodes and in its certificates.

    Whether answers are far likelier than in a model that never saw them is judged by the constants of
    `evaluation.metrics.retrained_comparison`.

    Attributes
    ----------
    max_recall : float in [0, 1]
        A record is recited where the recall of its greedy answer is above this; of three measurable words, all.
    min_testable : float in [0, 1]
        Share of a request's records that must be verified for the request to be.
    min_utility : float in [0, 1]
        Share of the finetuned model's utility that must be left; with less the final model is ruined.
    min_units : int
        Fewest measurable words of an answer whose recitation says anything.
    max_distance : float
        Furthest that the final weights may lie from those before unlearning, in multiples of the latter's norm.
    """

    max_recall: float
    min_testable: float
    min_utility: float
    min_units: int = LEAST_UNITS
    max_distance: float = 100.0

    @classmethod
    def of(cls, settings: Requests, certificate: Certificate | None = None) -> Thresholds:
        """As configured for requests; those of a certificate have its own limit on recall."""
        max_recall = settings.verify_max_rouge if certificate is None else certificate.max_rouge
        return cls(max_recall, settings.verify_min_testable, settings.verify_min_utility)

    def judge(self, evidence: RequestRecords | RequestCounts) -> Judgement:
        """Judge a request.

        Parameters
        ----------
        evidence : RequestRecords or RequestCounts
            Of each record where records are known, else the counts that their client reports.

        Returns
        -------
        Judgement
        """
        return self._judge_counts(evidence) if isinstance(evidence, RequestCounts) else self._judge_records(evidence)

    def judge_record(self, evidence: RecordEvidence) -> Finding:
        """Judge one record, as if it were alone in its request; by its likelihood where recitation cannot tell."""
        outcome, why = self._judge_recitation(evidence)
        if outcome in (NOT_TESTABLE, INCONCLUSIVE) and (lowered := _made_unlikely(evidence)):
            return VERIFIED, lowered
        return outcome, why

    def _judge_recitation(self, evidence: RecordEvidence) -> Finding:
        """Judge one record by what is recited of it, and by whether its answer is still far likelier."""
        last = evidence.last.after if evidence.last else None
        for recall, why in ((evidence.final, IN_FINAL), (last, RIGHT_AFTER)):
            if recall is not None and self.is_recited(evidence.units, recall):
                if evidence.oracle is not None and recall <= evidence.oracle:
                    return NOT_TESTABLE, "the retrained model, which never saw it, says as much of it"
                return NOT_VERIFIED, why
        if likely := _still_likely(evidence):
            return INCONCLUSIVE, likely
        if evidence.units < self.min_units:
            return NOT_TESTABLE, f"its answer has fewer than {self.min_units} measurable words"
        if evidence.before is None:
            return INCONCLUSIVE, "no model was asked for it before"
        if evidence.before <= self._limit(evidence.units):
            return NOT_TESTABLE, "the model did not recite it before either"
        if last is None:
            return INCONCLUSIVE, NOT_ASKED
        if not self._ended(evidence.exchanges, evidence.units):
            return INCONCLUSIVE, FADED
        return VERIFIED, NO_RECITATION

    def judge_exchanges(self, evidence: RequestRecords | ExchangeCounts) -> Finding:
        """Judge what the exchanges alone did to a request's records, whatever the final model knows.

        Parameters
        ----------
        evidence : RequestRecords or ExchangeCounts
            Of each record where records are known, else the counts that their client reports.

        Returns
        -------
        outcome, why : str
            `VERIFIED` where they ended the recitation of the records, or what made them far likelier; `NOT_VERIFIED`
            where they left them known; else `INCONCLUSIVE`.
        """
        if isinstance(evidence, ExchangeCounts):
            if evidence.before is None or evidence.after is None:
                return INCONCLUSIVE, NOT_ASKED
            likely = _likely([("right after the exchange", evidence.left)], evidence.known, "their answers are")
            all_lowered = not evidence.likely_after and _number_lowered(evidence, 0.0) > 0
            return _of_exchange(evidence.after > 0, likely, ended=evidence.before > 0 or all_lowered)
        records = list(evidence.records.values())
        found = Counter(self._judge_exchanges_of(record) for record in records)
        if recited := found[NOT_VERIFIED, RIGHT_AFTER]:
            return NOT_VERIFIED, _left_recited(recited, len(records))
        if _against_retrained(record.left for record in records) == NOT_VERIFIED:
            return NOT_VERIFIED, LEFT_LIKELY
        done, likely = found[VERIFIED, ENDED], any(far_likelier(record.left, record.known) for record in records)
        if self._suffice(done, len(records)) and not likely:
            forgotten = _share(done, len(records))
            return VERIFIED, f"an exchange, not the training before or after it, made the model forget {forgotten}"
        return INCONCLUSIVE, _most_frequent_reason(found)

    def is_done(self, exchanges: Sequence[Exchange], units: int) -> bool:
        """Whether the exchanges so far made the model forget a record with so many measurable words, and the last one
        left its answer neither recited nor far likelier than it should be."""
        return (
            (self._ended(exchanges, units) or any(_lowers(each, exchanges[0].known) for each in exchanges))
            and exchanges[-1].after <= self._limit(units)
            and not far_likelier(exchanges[-1].left, exchanges[0].known)
        )

    def count(self, units: Mapping[str, int], recalls: Mapping[str, float]) -> tuple[int, int]:
        """How many records a model recites, and how many have too short an answer to tell, by record id of `units`."""
        recited = sum(self.is_recited(units[i], recalls[i]) for i in units)
        return recited, sum(length < self.min_units for length in units.values())

    def ruined(self, failed: Mapping[str, str], metrics: Mapping[str, float], before: Mapping[str, float]) -> str:
        """Why nothing follows from what the final model does not recite; empty where there is no reason.

        Parameters
        ----------
        failed : mapping of str to str
            Reasons by evaluator that failed on the final model.
        metrics, before : mapping of str to float
            Metrics of the final model and of the one before unlearning.
        """
        for name, error in failed.items():
            return f"the evaluator {name} failed on the final model ({error}): it may be ruined"
        name = next((n for n in UTILITY if before.get(n, 0.0) > 0), None)
        if name is None:
            return ""
        now = metrics.get(name)
        if now is None or not np.isfinite(now):
            return f"the final model's {name} is no number: the model is ruined"
        if now < self.min_utility * before[name]:
            return (
                f"the final model's {name} is {now:.3g}, below {self.min_utility:g} of the {before[name]:.3g} before "
                "unlearning: a ruined model recites nothing"
            )
        return ""

    def displaced(self, vector: np.ndarray, before: np.ndarray) -> str:
        """The same from the weights (n,) of the final model and of the one before unlearning."""
        if not np.isfinite(vector).all():
            return "the final model's weights are not finite"
        norm = max(float(np.linalg.norm(before.astype(np.float64))), 1e-12)
        distance = np.linalg.norm(vector.astype(np.float64) - before) / norm
        if distance > self.max_distance:
            return f"the final model's weights lie {distance:.3g} times their own norm from those before unlearning"
        return ""

    def is_recited(self, units: int, recall: float) -> bool:
        """Whether a model recites a record with so many measurable words at this recall of its greedy answer."""
        return units >= self.min_units and recall > self._limit(units)

    def largest_recall(self) -> float:
        """The largest recall of a record that is not recited, whatever its measurable words, if they are enough."""
        return max(self.max_recall, OF_THREE)

    def _limit(self, units: int) -> float:
        """The largest recall of a record that is not recited, with so many measurable words."""
        return self.largest_recall() if units == 3 else self.max_recall

    def _ended(self, exchanges: Sequence[Exchange], units: int) -> bool:
        """Whether one of the exchanges began with a model that recites the record, and ended with one that does not."""
        limit = self._limit(units)
        return any(exchange.before > limit >= exchange.after for exchange in exchanges)

    def _suffice(self, verified: float, records: int) -> bool:
        """Whether so many verified records are enough for their request to be."""
        return verified > 0 and verified / records >= self.min_testable

    def _judge_records(self, evidence: RequestRecords) -> Judgement:
        records, findings = evidence.records.values(), {i: self.judge_record(r) for i, r in evidence.records.items()}
        reasons = Counter(findings.values())
        likely = [text for record in records if (text := _still_likely(record))]
        several = f"{len(likely)} of {len(records)} records: " if len(records) > 1 else ""
        knows = _against_retrained(record.likelihood for record in records)
        outcome, why = _decide(
            evidence,
            len(records),
            recited=reasons[NOT_VERIFIED, IN_FINAL],
            left_recited=reasons[NOT_VERIFIED, RIGHT_AFTER],
            likely=several + likely[0] if likely else "",
            unopposed=self._unopposed_records(len(records), reasons),
            left_knows=_against_retrained(record.left for record in records),
            knows=knows,
        )
        recall = sum(record.final for record in records) / len(records)
        return Judgement(outcome, why, recall, {i: of_record for i, (of_record, _) in findings.items()}, knows)

    def _unopposed_records(self, records: int, reasons: Counter[Finding]) -> Finding:
        """The finding of a request none of whose records is recited, by how many records have which finding."""
        counts = Counter(outcome for outcome, _ in reasons.elements())
        if counts[VERIFIED] == records:
            return VERIFIED, _all_forgotten(reasons)
        reason = _most_frequent_reason(reasons)
        if counts[NOT_TESTABLE] == records:
            return NOT_TESTABLE, reason if records == 1 else f"of {records} records, mostly: {reason}"
        if records == 1:
            return INCONCLUSIVE, reason
        outcome = VERIFIED if self._suffice(counts[VERIFIED], records) else INCONCLUSIVE
        return outcome, f"{counts[VERIFIED] or 'none'} of {records} verified; of the others, mostly: {reason}"

    def _judge_counts(self, evidence: RequestCounts) -> Judgement:
        exchange = evidence.exchange
        places = (("right after the exchange", exchange.left), ("in the final model", evidence.likelihood))
        outcome, why = _decide(
            evidence,
            evidence.records,
            recited=evidence.recited,
            left_recited=exchange.after or 0,
            likely=_likely(places, exchange.known, "their answers are"),
            unopposed=self._unopposed_counts(evidence),
        )
        return Judgement(outcome, why, evidence.recall)

    def _unopposed_counts(self, evidence: RequestCounts) -> Finding:
        """The finding of a request none of whose records is recited, by how many were before, or far likelier."""
        records, before = evidence.records, evidence.exchange.before
        if before is None:
            return INCONCLUSIVE, "the model before the exchange was not asked for them"
        lowered = _number_lowered(evidence.exchange, evidence.likely)
        if before + lowered <= 0:
            if evidence.exchange.likely_before:
                likely = f"answers were far likelier than in {ESTIMATED} before the exchange"
                return INCONCLUSIVE, f"{likely}, and nothing shows that it changed that"
            if evidence.short >= records:
                return NOT_TESTABLE, f"their answers have fewer than {self.min_units} words"
            return NOT_TESTABLE, "the model did not recite them before either"
        if evidence.exchange.after is None:
            why = "the model right after the exchange was not asked for them: training may have done the rest"
            return INCONCLUSIVE, why
        if (known := before + lowered) < records:
            outcome = VERIFIED if self._suffice(known, records) else INCONCLUSIVE
            likely = f", {int(lowered)} far likelier than in {ESTIMATED}" if lowered else ""
            return outcome, f"only {int(before)} of {records} records were recited before{likely}, none is any more"
        recited = int(before)
        by = {(VERIFIED, NO_RECITATION): recited, (VERIFIED, _no_longer_likely(ESTIMATED)): records - recited}
        return VERIFIED, _all_forgotten(Counter(by))

    def _judge_exchanges_of(self, evidence: RecordEvidence) -> Finding:
        """What the exchanges did to one record."""
        last, known, oracle = evidence.last, evidence.known, evidence.oracle
        if last is None:
            return INCONCLUSIVE, NOT_ASKED
        retrained_says_as_much = oracle is not None and last.after <= oracle
        recited = self.is_recited(evidence.units, last.after) and not retrained_says_as_much
        likely = _likely([(_AFTER_ITS, last.left)], known, "its answer is")
        lowered = any(known is not None and _lowers(exchange, known) for exchange in evidence.exchanges)
        ended = lowered or self._ended(evidence.exchanges, evidence.units)
        return _of_exchange(recited, likely, ended=ended)


def far_likelier(now: Likelihood | None, known: float | None) -> bool:
    """Whether an answer is still far likelier than a model would find it that never saw it, as far as that is known.

    It is where it is more than `FACTOR` times as likely, as for the mean of many
    (`evaluation.metrics.retrained_comparison`), and nearer to what was `known` before the first exchange than to that,
    so that less than half of the way was gone, in nats. The second keeps one answer's chance apart: two models that
    never saw a record differ by as much, and not by half of what training added.

    Parameters
    ----------
    now : Likelihood or None
    known : float in [0, 1] or None
        Likelihood of the answer right before the first exchange.
    """
    if now is None or now.reference is None or known is None:
        return False
    return now.prob > FACTOR * now.reference and now.prob > math.sqrt(now.reference * known)


def _lowers(exchange: Exchange, known: float) -> bool:
    """Whether an exchange began with a model that finds an answer far likelier than a model would that never saw it,
    and ended with one that does not."""
    left = exchange.left
    was_far = far_likelier(replace(left, prob=exchange.known), known)
    return _is_compared(left) and was_far and not far_likelier(left, known)


def _is_compared(now: Likelihood) -> bool:
    """Whether it is known how likely an answer would be to a model that never saw it."""
    return now.reference is not None and now.compared_with != WRONG_ANSWERS


def _made_unlikely(evidence: RecordEvidence) -> str:
    """That an exchange made a record's answer no longer far likelier than it should be, in words; empty where it did
    not, or where the model right after the last exchange or the final one cannot be compared."""
    now, left, known = evidence.likelihood, evidence.left, evidence.known
    if now is None or left is None or known is None or not (_is_compared(now) and _is_compared(left)):
        return ""
    if _still_likely(evidence) or not any(_lowers(exchange, known) for exchange in evidence.exchanges):
        return ""
    return _no_longer_likely(now.compared_with)


def _no_longer_likely(compared_with: str) -> str:
    return f"far likelier than in {compared_with} before its exchange, not after it, and not in the final model"


def _number_lowered(exchange: ExchangeCounts, likely: float | None) -> float:
    """At least how many records an exchange made no longer far likelier than they should be, of which the final model
    finds so many `likely`; 0 where one of the counts was not reported."""
    before, after = exchange.likely_before, exchange.likely_after
    return 0.0 if before is None or after is None or likely is None else max(0.0, before - after - likely)


def of_twins(count: int) -> str:
    """Why a request with so many twins that stay cannot be verified."""
    return f"{count} of its records {'is' if count == 1 else 'are'} also held by records that stay"


def _decide(
    evidence: RequestRecords | RequestCounts,
    records: int,
    *,
    recited: float,
    left_recited: float,
    likely: str,
    unopposed: Finding,
    left_knows: str = "",
    knows: str = "",
) -> Finding:
    """The finding of a request: the first of these that speaks against it, else the unopposed one.

    recited, left_recited: how many of the records the final model recites, and the one right after the exchange; knows,
    left_knows: as `Judgement.knows`, of the same two; likely: which answers are still far likelier than they should be,
    in words.
    """
    if recited > 0:
        return NOT_VERIFIED, f"the final model recites {_share(recited, records)}"
    if left_recited != 0:  # no number below 0 may speak for a request
        return NOT_VERIFIED, _left_recited(left_recited, records)
    if left_knows == NOT_VERIFIED:
        return NOT_VERIFIED, LEFT_LIKELY
    if evidence.inconclusive_reason:
        return INCONCLUSIVE, evidence.inconclusive_reason
    if knows == NOT_VERIFIED:
        return NOT_VERIFIED, "the answers are far likelier than in the retrained model, if not recited"
    if evidence.twins:
        return INCONCLUSIVE, of_twins(evidence.twins)
    if likely:
        return INCONCLUSIVE, likely
    if knows == OVER_UNLEARNED:
        return knows, f"the answers are far less likely than in the retrained model: {MEANING[knows]}"
    return unopposed


def _of_exchange(recited: bool, likely: str, *, ended: bool) -> Finding:
    """What an exchange did to a record, or to all records by their counts: is it still recited right after, is its
    answer still far likelier (in words), did the exchange end one of these."""
    if recited:
        return NOT_VERIFIED, RIGHT_AFTER
    if likely:
        return INCONCLUSIVE, likely
    return (VERIFIED, ENDED) if ended else (INCONCLUSIVE, FADED)


def _against_retrained(likelihoods: Iterable[Likelihood | None]) -> str:
    """As `Judgement.knows`, of records in one model: those whose reference is the retrained model's are compared."""
    compared = [of for of in likelihoods if of is not None and of.compared_with == RETRAINED]
    if len(compared) < LEAST_QUESTIONS:
        return ""
    verdict = judge_probability([_nll(of.prob) for of in compared], [_nll(of.reference or 0.0) for of in compared])
    words = {retrained_comparison.STILL_KNOWN: NOT_VERIFIED, retrained_comparison.OVER_UNLEARNED: OVER_UNLEARNED}
    return "" if verdict is None else words.get(verdict.verdict, "")


def _nll(prob: float) -> float:
    return -math.log(max(prob, 1e-300))


def _still_likely(evidence: RecordEvidence) -> str:
    """In which model a record's answer is still far likelier than it should be, in words; empty where in none."""
    places = ((_AFTER_ITS, evidence.left), ("in the final model", evidence.likelihood))
    return _likely(places, evidence.known, "its answer is")


def _likely(places: Iterable[tuple[str, Likelihood | None]], known: float | None, answers: str) -> str:
    """The first place, such as "in the final model", where the answers are still far likelier than they should be, in
    a sentence; empty where they are in none."""
    for where, now in places:
        if now is not None and far_likelier(now, known):
            name = now.compared_with if now.compared_with == WRONG_ANSWERS else f"in {now.compared_with}"
            return f"{where} {answers} still far likelier than {name}"
    return ""


def _most_frequent_reason(reasons: Counter[Finding]) -> str:
    """Why most of the records that are not verified are not."""
    return next(why for (outcome, why), _ in reasons.most_common() if outcome != VERIFIED)


def _left_recited(recited: float, records: int) -> str:
    return f"right after the exchange {_share(recited, records)} {'was' if records == 1 else 'were'} still recited"


def _all_forgotten(reasons: Counter[Finding]) -> str:
    """That all records of a request are verified, and by what."""
    records, recited = reasons.total(), reasons[VERIFIED, NO_RECITATION]
    if recited == records:
        return _all_gone(records)
    by = next(why for _, why in reasons if why != NO_RECITATION)
    if records == 1:
        return f"its answer was {by}"
    if not recited:
        return f"all {records} records: {by}"
    return f"{recited} of {records} records: {NO_RECITATION}; {records - recited}: {by}"


def _all_gone(records: int) -> str:
    if records == 1:
        return "its record was recited before, and is not any more"
    return f"all {records} records were recited before, none is any more"


def _share(some: float, records: int) -> str:
    return (
        f"all {records} records"
        if some == records > 1
        else "its record"
        if records == 1
        else f"{int(some)} of {records}"
    )
