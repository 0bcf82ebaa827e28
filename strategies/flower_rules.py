"""Rules of Flower's for combining the clients' numbers, on top of this project's sampling, checks and dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from strategies import protocol
from strategies.arrays import blocks, store, view
from strategies.client_update import ClientUpdate
from strategies.fedavg import FedAvg
from strategies.flower import Unchecked


@dataclass(frozen=True, slots=True)
class Piece:
    """What Flower's strategies read of a reply."""

    content: RecordDict


def apply_rule(
    rule: Unchecked, rows: Sequence[NDArray], weights: Sequence[float]
) -> tuple[NDArray[np.float64], MetricRecord | None]:
    """What `rule` makes of the clients' numbers (n,) each, in float64: numbers (n,) and metrics.

    Metrics: the weight, and `partition-id`, here the place in `rows`.
    """
    pieces = []
    for place, (row, weight) in enumerate(zip(rows, weights, strict=True)):
        metrics = MetricRecord({protocol.NUM_EXAMPLES: weight, protocol.PARTITION_ID: place})
        arrays = ArrayRecord({protocol.ADAPTER: Array(row.astype(np.float64))})
        pieces.append(Piece(RecordDict({protocol.ARRAYS: arrays, protocol.METRICS: metrics})))
    result, metrics = rule.aggregate_train(0, pieces)
    assert result is not None, "Flower gives None without replies only"
    return result[protocol.ADAPTER].numpy(), metrics


class CoordinateWise(FedAvg):
    """A rule of Flower's over one number of all clients at a time, every client counting the same.

    It is applied block by block in float64: Flower's own loop would hold all models several times over, in the dtype in
    which they came.
    """

    takes_mean = False

    def __init__(self, rule: Unchecked, **sampling: Any) -> None:
        super().__init__(**sampling)
        self._rule = rule

    def combine(self, sent: ArrayRecord, updates: Sequence[ClientUpdate]) -> ArrayRecord:
        """The rule's number at every place, in the dtypes of `sent`."""
        result, weights = {}, [update.weight for update in updates]
        for name, array in sent.items():
            base = view(array)
            rows = [view(update.arrays[name]).reshape(-1) for update in updates]
            new = np.empty(base.size, base.dtype)
            for block in blocks(base.size):
                store(new, block, apply_rule(self._rule, [row[block] for row in rows], weights)[0])
            result[name] = Array(new.reshape(base.shape))
        return ArrayRecord(result)
