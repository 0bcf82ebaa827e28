"""RULER as an evaluator: representations come from the same pass that scores the true answers.

The representation of a record is the state of its last answer token, or the mean over its answer tokens, where it
enters the language-model head (after the last norm) or where it leaves a chosen decoder layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from evaluation.engine.sequences import TokenSequence
from evaluation.hook import EvaluationSession, Result
from evaluation.ruler.embedded import Embedded

if TYPE_CHECKING:
    from evaluation.ruler.lenses import PercentileRank

LEAST_RETAIN = 2
"""Fewest retain records: each is compared with the nearest other one."""
POOLINGS = ("last", "mean")


@dataclass(frozen=True)
class Answered:
    """A record as token ids.

    Attributes
    ----------
    id : str
    sequence : TokenSequence
        Prompt and true answer.
    """

    id: str
    sequence: TokenSequence


@dataclass(frozen=True, eq=False)
class References:
    """References of Lens 1: the same records in two other models.

    Attributes
    ----------
    original : Embedded
        Of the original model, before unlearning.
    oracle : Embedded
        Of the retrained (oracle) model of one seed.
    """

    original: Embedded
    oracle: Embedded


def lens_1(model: Embedded, references: References, retain_sample: int | None = None) -> dict[str, float]:
    """Lens 1: S_oracle, S_gap and S_shift (RULER, eqs. 2 to 4).

    Parameters
    ----------
    model : Embedded
    references : References
        They must cover the model's records.
    retain_sample : int, optional
        As `sample` of `lenses.calibration_gap`.

    Returns
    -------
    dict of float
        oracle_similarity, gap and shift.
    """
    from evaluation.ruler.lenses import calibration_gap, oracle_similarity, representation_shift  # needs torch

    original = references.original.take(model.forget_ids, model.retain_ids)
    oracle = references.oracle.take(model.forget_ids, model.retain_ids)
    return {
        "oracle_similarity": oracle_similarity(model.forget, oracle.forget),
        "gap": calibration_gap(model.forget, oracle.forget, model.retain, oracle.retain, sample=retain_sample),
        "shift": representation_shift(original.forget, model.forget, oracle.forget),
    }


def lens_2(model: Embedded) -> PercentileRank:
    """Lens 2: percentile ranks of the forget records (RULER, eqs. 5 to 7).

    Parameters
    ----------
    model : Embedded

    Returns
    -------
    PercentileRank
    """
    from evaluation.ruler.lenses import percentile_rank  # needs torch

    return percentile_rank(model.forget, model.retain)


@dataclass(frozen=True)
class RulerEvaluator:
    """RULER's metrics of the session's model: mean_rank, and with `references` oracle_similarity, gap and shift.

    The details hold `ids` and `ranks` of the forget records, and `embedded`, an `Embedded` of all records.

    Attributes
    ----------
    forget, retain : sequence of Answered
        At least 1 and `LEAST_RETAIN`.
    pooling : {"last", "mean"}
    layer : int, optional
        A decoder layer from 0 (negative: from the last); None: what enters the language-model head.
    references : References, optional
    retain_sample : int, optional
        As in `lens_1`.

    Raises
    ------
    ValueError
        For an unknown pooling or too few records.
    """

    forget: Sequence[Answered]
    retain: Sequence[Answered]
    pooling: str = "last"
    layer: int | None = None
    references: References | None = None
    retain_sample: int | None = None
    name: str = field(default="ruler", init=False)

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise ValueError(f"unknown pooling {self.pooling!r}, expected {' or '.join(POOLINGS)}")
        if not self.forget or len(self.retain) < LEAST_RETAIN:
            raise ValueError(
                f"{len(self.forget)} forget and {len(self.retain)} retain records, expected at least 1 and "
                f"{LEAST_RETAIN}"
            )

    def request(self, session: EvaluationSession) -> None:
        """Announce the true answers with their states."""
        session.request(sequences=self._sequences(), hidden=self.pooling, layer=self.layer)

    def evaluate(self, session: EvaluationSession) -> Result:
        """Compute representations and metrics."""
        found = self.embed(session)
        ranks = lens_2(found)
        metrics = {"mean_rank": ranks.mean}
        if self.references is not None:
            metrics |= lens_1(found, self.references, self.retain_sample)
        details = {"ids": list(found.forget_ids), "ranks": ranks.ranks.tolist(), "embedded": found}
        return Result(metrics, details)

    def embed(self, session: EvaluationSession) -> Embedded:
        """Representations of all records."""
        states = session.scores(self._sequences(), hidden=self.pooling, layer=self.layer).hidden
        assert states is not None
        count = len(self.forget)
        return Embedded(
            tuple(record.id for record in self.forget),
            np.stack(states[:count]),
            tuple(record.id for record in self.retain),
            np.stack(states[count:]),
        )

    def _sequences(self) -> list[TokenSequence]:
        """All records, forget records first."""
        return [record.sequence for record in (*self.forget, *self.retain)]
