"""A FedFT or FedTU exchange as a secure sum: one reply for all clients together."""

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
from strategies.secure.agreed_parameters import SecureSettings
from strategies.secure.masking import Masking
from strategies.secure.server import SecureSum, Summed

TALLIES: Mapping[str, tuple[str, ...]] = {"train": ("train-loss", "train-seconds")}
"""Metrics of a reply that are summed, by kind of exchange."""


@dataclass(frozen=True, kw_only=True)
class SecureExchange(Masking):
    """Holds exchanges as secure sums.

    Attributes
    ----------
    grid : Grid
    client_of : callable (Message) -> int
        The client that a message goes to.
    settings : SecureSettings
    """

    grid: Grid
    client_of: Callable[[Message], int]
    settings: SecureSettings

    @property
    def sums(self) -> bool:
        """Always."""
        return True

    def sum_up(
        self,
        kind: str,
        messages: Sequence[Message],
        sent: ArrayRecord,
        timeout: float,
        *,
        one_each: bool = False,
        committed: bool = False,
    ) -> Summed:
        """Hold one exchange; see `Masking.sum_up`.

        With adaptive clipping the count is taken out of the update and passed to `settings.follow`.
        """
        numbers = sum(math.prod(array.shape) for array in sent.values())
        tallies = TALLIES.get(kind, ()) if self.settings.tell else ()
        try:
            terms = self.settings.terms(kind, len(messages), tallies, numbers, one_each=one_each)
        except ValueError as error:
            return Summed(fault=str(error))
        session = SecureSum(self.grid, self.client_of, terms, min(timeout, self.settings.patience))
        if not terms.counting:
            return session.hold(messages, numbers, timeout, committed=committed)
        summed = session.hold(messages, numbers + 1, timeout, committed=committed)
        if summed.fault:
            return summed
        if self.settings.follow is not None:
            self.settings.follow(float(summed.update[-1]) / terms.counting, len(summed.survivors))
        return replace(summed, update=summed.update[:-1])


def mean_reply(summed: Summed, sent: ArrayRecord, arrays_key: str, weight_key: str) -> ReplyCheck:
    """A sum as one valid reply, which holds the clients' weighted mean.

    Parameters
    ----------
    summed : Summed
        Without a fault and of a weight above 0.
    sent : ArrayRecord
        The model that the clients started from.
    arrays_key, weight_key : str

    Returns
    -------
    ReplyCheck
        Of the client `message_keys.TOGETHER`.
    """
    names = () if summed.terms is None else summed.terms.names
    means = {name: value / summed.weight for name, value in zip(names, summed.tallies, strict=True)}
    metrics = MetricRecord({weight_key: float(summed.weight), **means})
    model = moved(sent, summed.update / summed.weight)
    content = RecordDict({arrays_key: model, message_keys.METRICS: metrics})
    return ReplyCheck(message_keys.TOGETHER, Message(content, 1, message_keys.TRAIN))


def moved(arrays: ArrayRecord, update: NDArray[np.float64]) -> ArrayRecord:
    """Add a flat update to a model.

    Parameters
    ----------
    arrays : ArrayRecord
        The model φ.
    update : array (n,), float64
        The numbers of all arrays, one array after the other.

    Returns
    -------
    ArrayRecord
        φ + update in φ's shapes and dtypes.
    """
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
    """A client's update, `after` − `before`.

    Parameters
    ----------
    after, before : array (n,)
        Its model, and the one that it started from.

    Returns
    -------
    array (n,), float64
    """
    return after.astype(np.float64) - before.astype(np.float64)
