"""One client's part of a round of FedFT, as the aggregators and the history see it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, RecordDict

from strategies import message_keys


@dataclass(frozen=True, slots=True)
class ClientUpdate:
    """One accepted reply: the client, its weight n_k > 0 (num-examples), its model φ_k, its local optimiser steps.

    `partition` is -1 and `steps` is None where the reply does not tell.
    """

    partition: int
    weight: float
    arrays: ArrayRecord
    steps: float | None = None

    @classmethod
    def of(cls, content: RecordDict, weight_key: str, partition: int | None = None) -> ClientUpdate:
        """The update in a checked reply, which has one ArrayRecord and one MetricRecord; `partition` if it is known.

        Its ArrayRecord is a copy that shares the numbers: some of Flower's strategies empty that of the reply.
        """
        arrays = next(iter(content.array_records.values()))
        metrics = next(iter(content.metric_records.values()))
        steps = metrics.get(message_keys.TRAIN_STEPS)
        claimed = metrics.get(message_keys.PARTITION_ID, -1) if partition is None else partition
        return cls(
            int(claimed),  # type: ignore[arg-type]
            float(metrics[weight_key]),  # type: ignore[arg-type]
            ArrayRecord(dict(arrays)),
            float(steps) if isinstance(steps, int | float) else None,
        )


def shares(updates: Sequence[ClientUpdate]) -> list[float]:
    """α_k = n_k / Σ n_j, in the order of `updates`; they sum to 1 also where Σ n_j is more than float64 holds."""
    total = sum(update.weight for update in updates)
    if math.isfinite(total):
        return [update.weight / total for update in updates]
    largest = max(update.weight for update in updates)
    total = sum(update.weight / largest for update in updates)
    return [update.weight / largest / total for update in updates]
