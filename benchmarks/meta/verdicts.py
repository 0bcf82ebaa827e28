"""What the models say of each metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchmarks.meta import results, statistics
from benchmarks.meta.metrics import JUDGES, Judge
from benchmarks.meta.models import JUDGED, STATES
from benchmarks.meta.settings import Intervals
from benchmarks.meta.statistics import Bootstrap, Estimate

_ALL = list(range(1, len(JUDGED)))


@dataclass(frozen=True)
class Verdict:
    """What the models say of a metric.

    values: how many of `models` have one; by_kind: AUC before attacks for each of `OTHERS`; aucs: that of all of them
    in each of `STATES`; within: before attacks, compared with models of the same federation; accuracies: balanced
    accuracy in each state by a threshold that was chosen before attacks; tau: Kendall's τ-b of `pairs` pairs of
    federations.
    """

    judge: Judge
    values: int
    models: int
    by_kind: Sequence[Estimate]
    aucs: Sequence[Estimate]
    within: Estimate
    accuracies: Sequence[Estimate]
    tau: Estimate
    pairs: int

    @classmethod
    def of(cls, judge: Judge, values: np.ndarray, drawn: Bootstrap) -> Verdict:
        """values: as in `statistics`, in the metric's own direction."""
        turned = judge.sign * values
        tau, pairs = statistics.agreement(turned, drawn)
        return cls(
            judge,
            int(np.isfinite(values).sum()),
            values.size,
            [statistics.auc(turned, 0, [place], drawn) for place in _ALL],
            [statistics.auc(turned, state, _ALL, drawn) for state in range(len(STATES))],
            statistics.auc_within(turned, 0, _ALL, drawn),
            statistics.balanced_accuracy(turned, drawn),
            tau,
            pairs,
        )


def verdicts(frame: pd.DataFrame, given: Intervals) -> list[Verdict]:
    """One for each metric of `JUDGES`; frame: what `results.collect` returns."""
    values = results.values_of(frame)
    drawn = Bootstrap.drawn(len(values[JUDGES[0].key]), given.resamples, given.confidence, given.seed)
    return [Verdict.of(judge, values[judge.key], drawn) for judge in JUDGES]
