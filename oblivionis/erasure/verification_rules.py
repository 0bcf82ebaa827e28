"""What may be said of a served request: five words, and what each of them takes.

A request is `verified` only where every record was shown to be forgotten, and by an exchange: the model that an
exchange began with recited it, the one that it ended with does not, and neither does the final model; and neither of
these two finds the answer far likelier than a model would that never saw it. What training does before or after an
exchange is no unlearning. What recitation cannot show is said to be so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from evaluation.metrics import retrained_comparison
from evaluation.metrics.retrained_comparison import FACTOR, LEAST_QUESTIONS, judge_probability

VERIFIED: Final = "verified"
NOT_VERIFIED: Final = "not verified"
OVER_UNLEARNED: Final = "over-unlearned"
NOT_TESTABLE: Final = "not testable"
INCONCLUSIVE: Final = "inconclusive"
OUTCOMES: Final = (VERIFIED, NOT_VERIFIED, OVER_UNLEARNED, NOT_TESTABLE, INCONCLUSIVE)

MEANING: Final[Mapping[str, str]] = {
    VERIFIED: "its exchange ended the recitation of its records, and nothing brought it back",
    NOT_VERIFIED: "the final model still knows them",
    OVER_UNLEARNED: "the final model avoids their answers, which it would not had it never seen them: who compares "
    "the two can tell that they were there",
    NOT_TESTABLE: "recitation says nothing of them: the model did not recite them before either, they are too short, "
    "or a model that never saw them says as much",
    INCONCLUSIVE: "what was measured does not suffice to tell",
}

LEAST_UNITS: Final = 3
"""Fewest words (graphemes in scripts without spaces) of an answer whose recitation says anything."""


RETRAINED: Final = "the retrained model"
ESTIMATED: Final = "a model that never saw it, by the estimate of calibrated forgetting"
WRONG_ANSWERS: Final = "wrong answers to its question"
"""With what the likelihood of an answer is compared."""


IN_FINAL: Final = "the final model recites it"
RIGHT_AFTER: Final = "it was still recited right after its exchange: what it lost later, training did"
NOT_ASKED: Final = "no model was asked for it right before and after its exchange"
FADED: Final = "no exchange began with a model that knew it and ended with one that did not"
ENDED: Final = "an exchange ended its recitation, or what made its answer far likelier"
LEFT_LIKELY: Final = "right after the exchange the answers were far likelier than in the retrained model"


@dataclass(frozen=True, slots=True)
class Likelihood:
    """How likely a model finds an answer, and how likely it would be had no model seen it: geometric means over the
    answer's tokens, in [0, 1].

    reference: None where nothing was there to compare with; compared_with: what it is the likelihood of, one of
    `RETRAINED`, `ESTIMATED`, `WRONG_ANSWERS`, or empty.
    """

    prob: float
    reference: float | None = None
    compared_with: str = ""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange that served a record: the recall of the models that it began and ended with, and what they knew.

    known: likelihood of the answer in the former; left: in the latter.
    """

    before: float
    after: float
    known: float
    left: Likelihood


@dataclass(frozen=True, slots=True)
class RecordEvidence:
    """What is known of one record. Recalls: ROUGE-L of greedy answers, in any script, in [0, 1].

    units: measurable words of the answer; final: recall of the final model; before: the largest recall of the finetuned
    model and of the one before the exchange, None where neither was asked; oracle: of the retrained model, None without
    one, or where it was trained on the record or a twin of it. exchanges: those that served it and were measured, in
    their order; likelihood: in the final model, None where it was not asked.
    """

    units: int
    final: float
    before: float | None = None
    oracle: float | None = None
    exchanges: tuple[Exchange, ...] = ()
    likelihood: Likelihood | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome of a request, one of `OUTCOMES`, why, the mean recall of the final model, and outcomes by record."""

    outcome: str
    why: str
    recall: float
    records: Mapping[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """How many records have which outcome."""
        return dict(Counter(self.records.values()))


def far_likelier(now: Likelihood, known: float) -> bool:
    """Whether an answer is still far likelier than a model would find it that never saw it: more than `FACTOR` times as
    likely, as for the mean of many (`evaluation.metrics.retrained_comparison`), and nearer to what was `known` before
    the first exchange than to that, so that less than half of the way was gone, in nats. The second is what keeps one
    answer's chance apart: two models that never saw a record differ by as much, and not by half of what training
    added."""
    if now.reference is None:
        return False
    return now.prob > FACTOR * now.reference and now.prob > math.sqrt(now.reference * known)


def ended(exchanges: Sequence[Exchange], limit: float) -> bool:
    """Whether one of the exchanges that served a record began with a model that recites it, and ended with one that
    does not."""
    return any(exchange.before > limit >= exchange.after for exchange in exchanges)


def still_likely(found: RecordEvidence) -> str:
    """In which model the answer is still far likelier than beside what, in words; empty where it is in none."""
    if not found.exchanges:
        return ""
    places = ((found.exchanges[-1].left, "right after its exchange"), (found.likelihood, "in the final model"))
    for now, where in places:
        if now is not None and _is_likely(found, now):
            return f"{where} its answer is still far likelier than {_compared(now)}"
    return ""


def _compared(now: Likelihood) -> str:
    return now.compared_with if now.compared_with == WRONG_ANSWERS else f"in {now.compared_with}"


def judge_record(found: RecordEvidence, limit: float) -> tuple[str, str]:
    """The outcome of one record, and why. limit: a larger recall is a recitation."""
    long, last = found.units >= LEAST_UNITS, found.exchanges[-1].after if found.exchanges else None
    for recall, why in ((found.final, IN_FINAL), (last, RIGHT_AFTER)):
        if long and recall is not None and recall > limit:
            if found.oracle is not None and recall <= found.oracle:
                return NOT_TESTABLE, "the retrained model, which never saw it, says as much of it"
            return NOT_VERIFIED, why
    if likely := still_likely(found):
        return INCONCLUSIVE, likely
    if not long:
        return NOT_TESTABLE, f"its answer has fewer than {LEAST_UNITS} measurable words"
    if found.before is None:
        return INCONCLUSIVE, "no model was asked for it before"
    if found.before <= limit:
        return NOT_TESTABLE, "the model did not recite it before either"
    if last is None:
        return INCONCLUSIVE, NOT_ASKED
    if not ended(found.exchanges, limit):
        return INCONCLUSIVE, FADED
    return VERIFIED, "recited before its exchange, not after it, and not in the final model"


def verdict_against_oracle(records: Sequence[RecordEvidence], *, final: bool) -> str:
    """The word on the records' answers beside the retrained model's: `NOT_VERIFIED` where they are far likelier,
    `OVER_UNLEARNED` where they are far less likely, empty where neither is, or too few can be compared.

    final: in the final model; else right after the last exchange that served each of them.
    """
    known = [of.likelihood if final else of.exchanges[-1].left if of.exchanges else None for of in records]
    found = [of for of in known if of is not None and of.compared_with == RETRAINED]
    if len(found) < LEAST_QUESTIONS:
        return ""
    losses = ([_nll(p) for p in of] for of in zip(*((x.prob, x.reference or 0.0) for x in found), strict=True))
    compared = judge_probability(*losses)
    words = {retrained_comparison.STILL_KNOWN: NOT_VERIFIED, retrained_comparison.OVER_UNLEARNED: OVER_UNLEARNED}
    return "" if compared is None else words.get(compared.verdict, "")


def _nll(prob: float) -> float:
    return -math.log(max(prob, 1e-300))


def judge_request(
    records: Mapping[str, RecordEvidence],
    *,
    limit: float,
    least_testable: float = 1.0,
    doubt: str = "",
    twins: int = 0,
) -> Judgement:
    """The outcome of a request from its records, by id, at least one.

    least_testable: the share of its records that must be verified for the request to be; doubt: why nothing that the
    final model fails to say counts (it is ruined, an evaluator failed), empty where there is no reason; twins: how many
    of the records are also held by records that stay (`oblivionis.data.twins`), which the final model may go on saying.
    """
    judged = {i: judge_record(found, limit) for i, found in records.items()}
    outcomes = {i: outcome for i, (outcome, _) in judged.items()}
    counts, reasons = Counter(outcomes.values()), Counter(judged.values())
    recall = sum(found.final for found in records.values()) / len(records)
    after, final = (verdict_against_oracle(list(records.values()), final=of_final) for of_final in (False, True))
    likely = sum(bool(still_likely(found)) for found in records.values())
    outcome, why = _of_counts(counts, len(records), least_testable, reasons)
    if recited := reasons[NOT_VERIFIED, IN_FINAL]:
        outcome, why = NOT_VERIFIED, f"the final model recites {_of(recited, len(records))}"
    elif recited := reasons[NOT_VERIFIED, RIGHT_AFTER]:
        outcome, why = NOT_VERIFIED, of_exchange(recited, len(records))
    elif after == NOT_VERIFIED:
        outcome, why = NOT_VERIFIED, LEFT_LIKELY
    elif doubt:
        outcome, why = INCONCLUSIVE, doubt
    elif final == NOT_VERIFIED:
        outcome, why = NOT_VERIFIED, "the answers are far likelier than in the retrained model, if not recited"
    elif twins:
        outcome, why = INCONCLUSIVE, of_twins(twins)
    elif likely:
        reason = next(of for found in records.values() if (of := still_likely(found)))
        outcome, why = INCONCLUSIVE, reason if len(records) == 1 else f"{likely} of {len(records)} records: {reason}"
    elif final == OVER_UNLEARNED:
        outcome, why = OVER_UNLEARNED, f"the answers are far less likely than in the retrained model: {MEANING[final]}"
    return Judgement(outcome, why, recall, outcomes)


def judge_exchanges(
    records: Mapping[str, RecordEvidence], *, limit: float, least_testable: float = 1.0
) -> tuple[str, str]:
    """What the exchanges alone did, whatever the final model knows, and why: `VERIFIED` where they ended the recitation
    of the records, or what made them far likelier; `NOT_VERIFIED` where they left them known; else `INCONCLUSIVE`.

    The rest as for `judge_request`.
    """
    found = [_judge_exchanges_of(record, limit) for record in records.values()]
    counts, reasons = Counter(outcome for outcome, _ in found), Counter(found)
    if counts[NOT_VERIFIED]:
        return NOT_VERIFIED, of_exchange(counts[NOT_VERIFIED], len(records))
    if verdict_against_oracle(list(records.values()), final=False) == NOT_VERIFIED:
        return NOT_VERIFIED, LEFT_LIKELY
    likely = sum(of.exchanges != () and _is_likely(of, of.exchanges[-1].left) for of in records.values())
    if not likely and counts[VERIFIED] and counts[VERIFIED] / len(records) >= least_testable:
        done = _of(counts[VERIFIED], len(records))
        return VERIFIED, f"an exchange, not the training before or after it, made the model forget {done}"
    (unmet, _), *_ = [item for item in reasons.most_common() if item[0][0] != VERIFIED]
    return INCONCLUSIVE, unmet[1]


def _judge_exchanges_of(found: RecordEvidence, limit: float) -> tuple[str, str]:
    """The same of one record."""
    if not found.exchanges:
        return INCONCLUSIVE, NOT_ASKED
    last, long = found.exchanges[-1], found.units >= LEAST_UNITS
    if long and last.after > limit and not (found.oracle is not None and last.after <= found.oracle):
        return NOT_VERIFIED, RIGHT_AFTER
    if _is_likely(found, last.left):
        return INCONCLUSIVE, still_likely(found)
    lowered = any(
        _is_likely(found, replace(of.left, prob=of.known)) and not _is_likely(found, of.left) for of in found.exchanges
    )
    return (VERIFIED, ENDED) if ended(found.exchanges, limit) or lowered else (INCONCLUSIVE, FADED)


def _is_likely(found: RecordEvidence, now: Likelihood) -> bool:
    return far_likelier(now, found.exchanges[0].known)


def of_exchange(recited: int, records: int) -> str:
    """Why a request with so many records that its exchange left recited is not verified."""
    return f"right after the exchange {_of(recited, records)} {'was' if records == 1 else 'were'} still recited"


def _of_counts(
    counts: Counter[str], records: int, least_testable: float, reasons: Counter[tuple[str, str]]
) -> tuple[str, str]:
    """The outcome where no record is recited."""
    if counts[VERIFIED] == records:
        return VERIFIED, _all_gone(records)
    (unmet, _), *_ = [item for item in reasons.most_common() if item[0][0] != VERIFIED]
    if counts[NOT_TESTABLE] == records:
        return NOT_TESTABLE, unmet[1] if records == 1 else f"of {records} records, mostly: {unmet[1]}"
    if records == 1:
        return INCONCLUSIVE, unmet[1]
    told = f"{counts[VERIFIED] or 'none'} of {records} verified; of the others, mostly: {unmet[1]}"
    if counts[VERIFIED] and counts[VERIFIED] / records >= least_testable:
        return VERIFIED, told
    return INCONCLUSIVE, told


def judge_counts(
    records: int,
    recited_before: float | None,
    recited: float,
    *,
    recited_after: float | None,
    untestable: float = 0.0,
    least_testable: float = 1.0,
    doubt: str = "",
    twins: int = 0,
    likely: str = "",
) -> tuple[str, str]:
    """The outcome, and why, where only numbers of records are known, as of records that stay with their client.

    recited_before, recited_after, recited: how many of the `records` the models right before and after the exchange,
    and the final one, recite; untestable: how many have too short an answer; least_testable, twins: as in
    `judge_request`; likely: in which model the answers are still far likelier than they should be, empty for none.
    """
    if recited > 0:
        return NOT_VERIFIED, f"the final model recites {_of(int(recited), records)}"
    if recited_after:
        return NOT_VERIFIED, of_exchange(int(recited_after), records)
    if doubt:
        return INCONCLUSIVE, doubt
    if twins:
        return INCONCLUSIVE, of_twins(twins)
    if likely:
        return INCONCLUSIVE, likely
    if recited_before is None:
        return INCONCLUSIVE, "the model before the exchange was not asked for them"
    if recited_before <= 0:
        why = "the model did not recite them before either"
        return NOT_TESTABLE, f"their answers have fewer than {LEAST_UNITS} words" if untestable >= records else why
    if recited_after is None:
        return (
            INCONCLUSIVE,
            "the model right after the exchange was not asked for them: training may have done the rest",
        )
    if recited_before < records:
        outcome = VERIFIED if recited_before / records >= least_testable else INCONCLUSIVE
        return outcome, f"only {int(recited_before)} of {records} records were recited before, none is any more"
    return VERIFIED, _all_gone(records)


def judge_exchange_counts(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[str, str]:
    """As `judge_exchanges`, where only numbers are known: how many records the models right before and right after the
    exchange recite (`recited`), and their mean likelihood (`prob`), beside that in a model that never saw them
    (`expected`)."""
    if "recited" not in before or "recited" not in after:
        return INCONCLUSIVE, NOT_ASKED
    if after["recited"] > 0:
        return NOT_VERIFIED, RIGHT_AFTER
    if likely_in_mean(before, after):
        return INCONCLUSIVE, f"right after the exchange {MEAN_LIKELY}"
    return (VERIFIED, ENDED) if before["recited"] > 0 else (INCONCLUSIVE, FADED)


def likely_in_mean(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Whether the answers are, in the mean, far likelier than the client estimates for a model that never saw them."""
    if not {"prob", "expected"} <= now.keys() or "prob" not in before:
        return False
    return far_likelier(Likelihood(now["prob"], now["expected"], ESTIMATED), before["prob"])


MEAN_LIKELY: Final = f"their answers are still far likelier than in {ESTIMATED}"


def of_twins(count: int) -> str:
    """Why a request with so many twins that stay cannot be verified."""
    return f"{count} of its records {'is' if count == 1 else 'are'} also held by records that stay"


def _all_gone(records: int) -> str:
    if records == 1:
        return "its record was recited before, and is not any more"
    return f"all {records} records were recited before, none is any more"


def _of(some: int, records: int) -> str:
    return f"all {records} records" if some == records > 1 else "its record" if records == 1 else f"{some} of {records}"
