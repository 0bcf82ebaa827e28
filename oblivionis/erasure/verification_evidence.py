"""The evidence about a served request: of each of its records, or the counts that a client reports of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from evaluation.metrics.rouge import new_words
from oblivionis.data.records import Record

RETRAINED: Final = "the retrained model"
ESTIMATED: Final = "a model that never saw it, by the estimate of calibrated forgetting"
WRONG_ANSWERS: Final = "wrong answers to its question"
"""With what the likelihood of an answer is compared."""


def measurable_words(record: Record) -> int:
    """How many words of a record's answer can be recited: those that its question lacks (`rouge.new_words`)."""
    return len(new_words(record.answer, record.question))


@dataclass(frozen=True, slots=True)
class Likelihood:
    """How likely a model finds an answer, and how likely it would be had no model seen it.

    Attributes
    ----------
    prob : float in [0, 1]
        Geometric mean over the answer's tokens; of several records, the mean of theirs.
    reference : float in [0, 1] or None
        What `prob` is compared with; None where there is nothing to compare it with.
    compared_with : str
        Whose likelihood `reference` is: `RETRAINED`, `ESTIMATED`, `WRONG_ANSWERS`, or empty.
    """

    prob: float
    reference: float | None = None
    compared_with: str = ""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange that served a record, by the models right before and right after it.

    Attributes
    ----------
    before, after : float in [0, 1]
        Recall of the greedy answer.
    known : float in [0, 1]
        Likelihood of the answer before.
    left : Likelihood
        Likelihood of the answer after.
    """

    before: float
    after: float
    known: float
    left: Likelihood


@dataclass(frozen=True, slots=True)
class RecordEvidence:
    """What was measured of one record.

    Recalls are those of greedy answers, in [0, 1]: ROUGE-L in any script, by the words that the question lacks.

    Attributes
    ----------
    units : int
        `measurable_words` (graphemes in scripts without spaces).
    final : float
        Recall of the final model.
    before : float or None
        Largest recall of the finetuned model and of those right before exchanges; None where none was asked.
    oracle : float or None
        Recall of the retrained model; None without one, or where it was trained on the record or a twin of it.
    exchanges : tuple of Exchange
        The measured exchanges that served the record, in their order.
    likelihood : Likelihood or None
        In the final model; None where that was not asked.
    """

    units: int
    final: float
    before: float | None = None
    oracle: float | None = None
    exchanges: tuple[Exchange, ...] = ()
    likelihood: Likelihood | None = None

    @property
    def last(self) -> Exchange | None:
        """The last exchange that served the record."""
        return self.exchanges[-1] if self.exchanges else None

    @property
    def known(self) -> float | None:
        """Likelihood of the answer right before the first exchange."""
        return self.exchanges[0].known if self.exchanges else None

    @property
    def left(self) -> Likelihood | None:
        """Likelihood of the answer right after the last exchange."""
        return self.exchanges[-1].left if self.exchanges else None


@dataclass(frozen=True, slots=True)
class RequestRecords:
    """The evidence about a request, record by record.

    Attributes
    ----------
    records : mapping of str to RecordEvidence
        By record id, at least one.
    twins : int
        How many of the records are also held by records that stay (`oblivionis.data.twins`), which the final model may
        go on reciting.
    inconclusive_reason : str
        Why nothing follows from what the final model does not recite, as where it is ruined; empty for no reason.
    """

    records: Mapping[str, RecordEvidence]
    twins: int = 0
    inconclusive_reason: str = ""


@dataclass(frozen=True, slots=True)
class ExchangeCounts:
    """An exchange that served a request, by what its client reports of the models right before and right after it.

    Attributes
    ----------
    before, after : float or None
        How many of the records the model recites; None where the client was not asked.
    known : float in [0, 1] or None
        Mean likelihood of the answers right before the first exchange; None where it was not reported.
    left : Likelihood or None
        Mean likelihood of the answers right after.
    likely_before, likely_after : float or None
        How many of the records are not recited and far likelier than they should be; None where it was not reported.
    """

    before: float | None = None
    after: float | None = None
    known: float | None = None
    left: Likelihood | None = None
    likely_before: float | None = None
    likely_after: float | None = None


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """The evidence about a request whose records stay with their client: how many, and means.

    Attributes
    ----------
    records : int
        Records of the request, at least one.
    recited : float
        How many of them the final model recites.
    exchange : ExchangeCounts
        The exchange that served them.
    likelihood : Likelihood or None
        Mean likelihood of the answers in the final model.
    recall : float in [0, 1]
        Mean recall of the final model.
    short : float
        How many answers have too few words to tell.
    likely : float or None
        How many of the records the final model does not recite, and finds far likelier than it should.
    twins, inconclusive_reason
        As in `RequestRecords`.
    """

    records: int
    recited: float
    exchange: ExchangeCounts = ExchangeCounts()
    likelihood: Likelihood | None = None
    recall: float = 0.0
    short: float = 0.0
    likely: float | None = None
    twins: int = 0
    inconclusive_reason: str = ""
