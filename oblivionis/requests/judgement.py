"""What may be said of a served request: five words, and what each of them takes.

A request is `verified` only where every record was shown to be forgotten: the model recited it before, and the final
model does not. What recitation cannot show is said to be so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

VERIFIED: Final = "verified"
NOT_VERIFIED: Final = "not verified"
OVER_UNLEARNED: Final = "over-unlearned"
NOT_TESTABLE: Final = "not testable"
INCONCLUSIVE: Final = "inconclusive"
OUTCOMES: Final = (VERIFIED, NOT_VERIFIED, OVER_UNLEARNED, NOT_TESTABLE, INCONCLUSIVE)

MEANING: Final[Mapping[str, str]] = {
    VERIFIED: "the model recited its records before and does not any more",
    NOT_VERIFIED: "the final model still knows them",
    OVER_UNLEARNED: "the final model avoids their answers, which it would not had it never seen them: who compares "
    "the two can tell that they were there",
    NOT_TESTABLE: "recitation says nothing of them: the model did not recite them before either, they are too short, "
    "or a model that never saw them says as much",
    INCONCLUSIVE: "what was measured does not suffice to tell",
}

LEAST_UNITS: Final = 3
"""Fewest words (graphemes in scripts without spaces) of an answer whose recitation says anything."""


@dataclass(frozen=True, slots=True)
class RecordEvidence:
    """What is known of one record. Recalls: ROUGE-L of greedy answers, in any script, in [0, 1].

    units: measurable words of the answer; final: recall of the final model; before: the largest recall of the finetuned
    model and of the one before the exchange, None where neither was asked; oracle: of the retrained model, None without
    one, or where it was trained on the record or a twin of it.
    """

    units: int
    final: float
    before: float | None = None
    oracle: float | None = None


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


def judge_record(found: RecordEvidence, limit: float) -> tuple[str, str]:
    """The outcome of one record, and why. limit: a larger recall is a recitation."""
    if found.units < LEAST_UNITS:
        return NOT_TESTABLE, f"its answer has fewer than {LEAST_UNITS} measurable words"
    if found.final > limit:
        if found.oracle is not None and found.final <= found.oracle:
            return NOT_TESTABLE, "the retrained model, which never saw it, says as much of it"
        return NOT_VERIFIED, "the final model recites it"
    if found.before is None:
        return INCONCLUSIVE, "no model was asked for it before"
    if found.before <= limit:
        return NOT_TESTABLE, "the model did not recite it before either"
    return VERIFIED, "recited before, not any more"


def judge_request(
    records: Mapping[str, RecordEvidence],
    *,
    limit: float,
    least_testable: float = 1.0,
    doubt: str = "",
    knows: str = "",
    twins: int = 0,
) -> Judgement:
    """The outcome of a request from its records, by id, at least one.

    least_testable: the share of its records that must be verified for the request to be; doubt: why nothing that the
    final model fails to say counts (it is ruined, an evaluator failed), empty where there is no reason; knows:
    `evaluation.metrics.verdict`'s word on the probabilities of these records' answers beside the retrained model's,
    `NOT_VERIFIED` for still known, `OVER_UNLEARNED`, or empty; twins: how many of the records are also held by records
    that stay (`oblivionis.data.twins`), which the final model may go on saying.
    """
    judged = {i: judge_record(found, limit) for i, found in records.items()}
    outcomes = {i: outcome for i, (outcome, _) in judged.items()}
    counts = Counter(outcomes.values())
    recall = sum(found.final for found in records.values()) / len(records)
    outcome, why = _of_counts(counts, len(records), least_testable, Counter(judged.values()))
    if counts[NOT_VERIFIED]:
        outcome, why = NOT_VERIFIED, f"the final model recites {_of(counts[NOT_VERIFIED], len(records))}"
    elif doubt:
        outcome, why = INCONCLUSIVE, doubt
    elif knows == NOT_VERIFIED:
        outcome, why = NOT_VERIFIED, "the answers are far likelier than in the retrained model, if not recited"
    elif twins:
        outcome, why = INCONCLUSIVE, of_twins(twins)
    elif knows == OVER_UNLEARNED:
        outcome, why = OVER_UNLEARNED, f"the answers are far less likely than in the retrained model: {MEANING[knows]}"
    return Judgement(outcome, why, recall, outcomes)


def _of_counts(
    counts: Counter[str], records: int, least_testable: float, reasons: Counter[tuple[str, str]]
) -> tuple[str, str]:
    """The outcome where no record is recited."""
    if counts[VERIFIED] == records:
        return VERIFIED, _all_gone(records)
    (unmet, _), *_ = [item for item in reasons.most_common() if item[0][0] != VERIFIED]
    if counts[NOT_TESTABLE] == records:
        return NOT_TESTABLE, unmet[1] if records == 1 else f"of {records} records, mostly: {unmet[1]}"
    told = f"{_of(counts[VERIFIED], records)} verified; of the others, mostly: {unmet[1]}"
    if counts[VERIFIED] and counts[VERIFIED] / records >= least_testable:
        return VERIFIED, told
    return INCONCLUSIVE, told


def judge_counts(
    records: int,
    recited_before: float | None,
    recited: float,
    *,
    untestable: float = 0.0,
    least_testable: float = 1.0,
    doubt: str = "",
    twins: int = 0,
) -> tuple[str, str]:
    """The outcome, and why, where only numbers of records are known, as of records that stay with their client.

    recited_before, recited: how many of the `records` the model before the exchange, and the final one, recite;
    untestable: how many have too short an answer; least_testable, twins: as in `judge_request`.
    """
    if recited > 0:
        return NOT_VERIFIED, f"the final model recites {_of(int(recited), records)}"
    if doubt:
        return INCONCLUSIVE, doubt
    if twins:
        return INCONCLUSIVE, of_twins(twins)
    if recited_before is None:
        return INCONCLUSIVE, "the model before the exchange was not asked for them"
    if recited_before <= 0:
        why = "the model did not recite them before either"
        return NOT_TESTABLE, f"their answers have fewer than {LEAST_UNITS} words" if untestable >= records else why
    if recited_before < records:
        outcome = VERIFIED if recited_before / records >= least_testable else INCONCLUSIVE
        return outcome, f"only {int(recited_before)} of {records} records were recited before, none is any more"
    return VERIFIED, _all_gone(records)


def of_twins(count: int) -> str:
    """Why a request with so many twins that stay cannot be verified."""
    return f"{count} of its records {'is' if count == 1 else 'are'} also held by records that stay"


def _all_gone(records: int) -> str:
    if records == 1:
        return "its record was recited before, and is not any more"
    return f"all {records} records were recited before, none is any more"


def _of(some: int, records: int) -> str:
    return f"all {records} records" if some == records > 1 else "its record" if records == 1 else f"{some} of {records}"
