"""The records whose membership is inferred, and their likelihood under the base model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.hook import EvaluationSession
from evaluation.metrics.membership import Candidate
from oblivionis.config.schema import Config
from oblivionis.data.records import Corpus, Record
from oblivionis.measures.questions import encode_records, spread
from oblivionis.models.assembly import Assembled


def members_and_others(corpus: Corpus) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    """Records that are to be forgotten (of a text corpus, the texts named for this) and records of the holdout."""
    forget = tuple(r for r in corpus.train if r.id in corpus.forget_ids)
    return corpus.evaluation.get("members", forget), corpus.evaluation.get("holdout", ())


@dataclass(frozen=True)
class Groups:
    """All candidates of membership inference: forget records and, where the data have a holdout, other records."""

    members: tuple[Candidate, ...]
    others: tuple[Candidate, ...]

    @classmethod
    def of(cls, corpus: Corpus, assembled: Assembled, config: Config) -> Groups:
        """Tokenised as the model is trained on them; longer records follow `model.on_overflow`."""
        members, others = members_and_others(corpus)
        if not others:
            return cls((), ())
        count = config.evaluation.membership.records
        return cls(*(_candidates(spread(group, count), assembled, config) for group in (members, others)))

    def reference(self, session: EvaluationSession) -> dict[str, float]:
        """Mean log-probability of every candidate in the model of a session, by id."""
        candidates = (*self.members, *self.others)
        scores = session.scores([c.sequence for c in candidates])
        return {c.id: -float(v) for c, v in zip(candidates, scores.mean_nll, strict=True)}


def _candidates(records: Sequence[Record], assembled: Assembled, config: Config) -> tuple[Candidate, ...]:
    encoded = encode_records(records, assembled, config)
    return tuple(Candidate(r.id, tokens, r.answer) for r, tokens in zip(records, encoded, strict=True))
