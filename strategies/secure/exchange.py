"""A FedFT or FedTU exchange as a secure sum: one answer, of all clients together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from strategies import message_keys
from strategies.arrays import blocks, store, view
from strategies.replies import ReplyCheck
from strategies.secure.server import SecureSum, Summed
from strategies.secure.terms import SecureSettings

TALLIES: Mapping[str, tuple[str, ...]] = {"train": ("train-loss", "train-seconds")}
"""Metrics of a reply that are summed, by kind of exchange."""


@dataclass(frozen=True, slots=True)
class SecureExchange:
    """Holds exchanges by `settings`; `partition` names the client that a message goes to."""

    grid: Grid
    partition: Callable[[Message], int]
    settings: SecureSettings

    def hold(
        self,
        kind: str,
        messages: Sequence[Message],
        sent: ArrayRecord,
        timeout: float,
        *,
        one_each: bool = False,
        committed: bool = False,
    ) -> Summed:
        """The sum of what the clients that `messages` go to answer, or a fault where there can be none.

        `sent`: the model that they start from; `one_each`: every update counts 1, or 0 where a client only covers;
        `committed`: who commits itself to nothing is left out.
        """
        numbers = sum(math.prod(array.shape) for array in sent.values())
        tallies = self.tallies(kind)
        try:
            terms = self.settings.terms(kind, len(messages), tallies, numbers, one_each=one_each)
        except ValueError as error:
            return Summed(fault=str(error))
        session = SecureSum(self.grid, self.partition, terms, min(timeout, self.settings.patience))
        if not terms.counting:
            return session.hold(messages, numbers, timeout, committed=committed)
        summed = session.hold(messages, numbers + 1, timeout, committed=committed)
        if summed.fault:
            return summed
        if self.settings.follow is not None:
            self.settings.follow(float(summed.update[-1]) / terms.counting, len(summed.survivors))
        return replace(summed, update=summed.update[:-1])

    def tallies(self, kind: str) -> tuple[str, ...]:
        """Which numbers of a reply are summed."""
        return TALLIES.get(kind, ()) if self.settings.tell else ()

    def verdict(self, kind: str, summed: Summed, sent: ArrayRecord, arrays_key: str, weight_key: str) -> ReplyCheck:
        """`summed`, without a fault and of some weight, as the one good answer: the clients' weighted mean."""
        named = zip(self.tallies(kind), summed.tallies, strict=True)
        told = {name: value / summed.weight for name, value in named}
        metrics = MetricRecord({weight_key: float(summed.weight), **told})
        model = moved(sent, summed.update / summed.weight)
        content = RecordDict({arrays_key: model, message_keys.METRICS: metrics})
        return ReplyCheck(message_keys.TOGETHER, Message(content, 1, message_keys.TRAIN))


def moved(arrays: ArrayRecord, update: NDArray[np.float64]) -> ArrayRecord:
    """φ + δ in φ's dtypes; `update` (n,) holds the numbers of all arrays, one array after the other."""
    result, start = {}, 0
    for name, array in arrays.items():
        base = view(array)
        flat, new = base.reshape(-1), np.empty(base.size, base.dtype)
        part = update[start : start + base.size]
        start += base.size
        for block in blocks(base.size):
            store(new, block, flat[block].astype(np.float64) + part[block])
        result[name] = Array(new.reshape(base.shape))
    return ArrayRecord(result)


def difference(after: NDArray, before: NDArray) -> NDArray[np.float64]:
    """What a client adds to the model that it was sent (n,), in float64."""
    return after.astype(np.float64) - before.astype(np.float64)
