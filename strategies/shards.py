"""Shards: clients dealt to parts of a federation that never meet, each with a model of its own.

What a client sends gets into its shard's model alone, so that only this shard has to be trained again without it: SISA
(Bourtoule et al., *Machine Unlearning*, IEEE S&P 2021) with clients in the place of records. The global model of a
round is the shards' models one after the other, and what is served is made of them
(`oblivionis.models.shard_merges`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from strategies.arrays import view
from strategies.submodel import Submodel

T = TypeVar("T")

OF_ONE_SHARD = ("calibrate", "replay")
"""Kinds of exchanges in which the model that travels is that of a shard, since a protocol works on one at a time."""


@dataclass(frozen=True, slots=True)
class Shards:
    """Which client belongs to which shard, and where a shard's numbers lie; a `strategies.submodel.Fitting`.

    A global array (S · m, …) holds the shards' arrays (m, …) one after the other.

    Attributes
    ----------
    of_client : tuple of int
        The shard of each client, from 0.

    Raises
    ------
    ValueError
        For shards that are not numbered from 0, or one without a client.
    """

    of_client: tuple[int, ...]

    def __post_init__(self) -> None:
        if set(self.of_client) != set(range(self.count)):
            raise ValueError(f"each of {self.count} shards needs a client")

    @property
    def count(self) -> int:
        """Number of shards S."""
        return max(self.of_client, default=0) + 1

    @property
    def sizes(self) -> list[int]:
        """Clients of each shard."""
        counted = Counter(self.of_client)
        return [counted[shard] for shard in range(self.count)]

    def groups(self, items: Iterable[T], client: Callable[[T], int]) -> dict[int, list[T]]:
        """Items by the shard of their client, in their own order.

        Parameters
        ----------
        items : iterable
        client : callable (item) -> int

        Returns
        -------
        dict of shard to list
            Ascending; without shards of which there is nothing.
        """
        found: dict[int, list[T]] = {}
        for item in items:
            found.setdefault(self.of_client[client(item)], []).append(item)
        return dict(sorted(found.items()))

    def part(self, model: ArrayRecord, shard: int) -> ArrayRecord:
        """One shard's model of the global one.

        Parameters
        ----------
        model : ArrayRecord
            Arrays (S · m, …).
        shard : int

        Returns
        -------
        ArrayRecord
            Arrays (m, …).
        """
        return ArrayRecord({name: Array(self._split(array)[shard]) for name, array in model.items()})

    def changed(self, model: ArrayRecord, parts: Mapping[int, ArrayRecord]) -> ArrayRecord:
        """The global model with other models of some shards; those of the others stay bit for bit.

        Parameters
        ----------
        model : ArrayRecord
        parts : mapping of shard to ArrayRecord

        Returns
        -------
        ArrayRecord
        """
        if not parts:
            return model

        def array(name: str, old: Array) -> Array:
            pieces = [view(parts[k][name]) if k in parts else piece for k, piece in enumerate(self._split(old))]
            return Array(np.concatenate(pieces))

        return ArrayRecord({name: array(name, old) for name, old in model.items()})

    def __call__(self, kind: str, model: ArrayRecord) -> Callable[[int], Submodel | None]:
        """What each client receives of a global model: its shard's.

        Parameters
        ----------
        kind : str
            Kind of exchange, as `Listener.exchange_started` names it.
        model : ArrayRecord
            The global model; one shard's, which goes out as it is, where the kind is in `OF_ONE_SHARD`.

        Returns
        -------
        callable (client) -> Submodel or None
        """
        if kind in OF_ONE_SHARD:
            return lambda client: None
        known = [_OfShard(self.part(model, shard)) for shard in range(self.count)]
        return lambda client: known[self.of_client[client]]

    def _split(self, array: Array) -> list[NDArray]:
        """The shards' parts of a global array."""
        return np.split(view(array), self.count)


@dataclass(frozen=True, slots=True)
class _OfShard:
    """A shard's model, in the form of which the client's stays: the server's steps work on shards, too."""

    sent: ArrayRecord

    @property
    def settings(self) -> Mapping[str, str | int]:
        """The message says nothing else."""
        return {}

    def joined(self, answer: ArrayRecord) -> ArrayRecord:
        """The answer itself."""
        return answer


def prefix(shard: int) -> str:
    """What the names of a shard's arrays begin with in a state.

    Parameters
    ----------
    shard : int

    Returns
    -------
    str
    """
    return f"shard-{shard}/"


def state_of(state: Mapping[str, NDArray], shard: int) -> dict[str, NDArray]:
    """A shard's part of a state, by the names without `prefix`.

    Parameters
    ----------
    state : mapping of arrays
    shard : int

    Returns
    -------
    dict of arrays
    """
    start = prefix(shard)
    return {name.removeprefix(start): values for name, values in state.items() if name.startswith(start)}


def joined_states(states: Sequence[Mapping[str, NDArray]]) -> dict[str, NDArray]:
    """The states of all shards in one, their names with `prefix`.

    Parameters
    ----------
    states : sequence of mappings
        By shard.

    Returns
    -------
    dict of arrays
    """
    return {prefix(shard) + name: values for shard, state in enumerate(states) for name, values in state.items()}


def balanced(records: Sequence[int], shards: int) -> Shards:
    """Shards with about the same number of records: the largest client left goes to the shard with the fewest.

    To hold a shard's rounds again costs about its records. If each record is as likely as any other to be demanded, the
    expected cost is Σ R_s² / Σ R_s for shards of R_s records, least where all R_s are equal; so is that of the dearest
    demand, max R_s. (Graham 1969: the largest R_s is at most 4/3 of the least possible.)

    Parameters
    ----------
    records : sequence of int
        Of each client.
    shards : int, from 1 to the number of clients

    Returns
    -------
    Shards
    """
    of_client, filled = [0] * len(records), [(0, 0)] * shards
    for client in sorted(range(len(records)), key=lambda c: (-records[c], c)):
        shard = min(range(shards), key=lambda k: (min(filled[k][1], 1), *filled[k], k))
        of_client[client] = shard
        total, members = filled[shard]
        filled[shard] = total + records[client], members + 1
    return Shards(tuple(of_client))


def dealt(clients: int, shards: int, seed: int, risky: Collection[int] = ()) -> Shards:
    """Deal shuffled clients, those that are likely to ask before the others, to one shard after another.

    The sizes of shards differ by at most one, and risky clients lie in as few as hold them: all demands of one shard
    share a replay, and the other shards are touched by none.

    Parameters
    ----------
    clients : int
        At least as many as shards.
    shards : int, at least 1
    seed : int
    risky : collection of int

    Returns
    -------
    Shards
    """
    order = list(range(clients))
    random.Random(f"{seed}/shards").shuffle(order)
    order.sort(key=lambda client: client not in risky)
    of_client, start = [0] * clients, 0
    for shard in range(shards):
        end = start + (clients + shards - 1 - shard) // shards
        for client in order[start:end]:
            of_client[client] = shard
        start = end
    return Shards(tuple(of_client))
