"""What a server remembers of FedFT: in each round the model that it sent and the models that came back.

Protocols that erase a client need it, to go through the rounds again, or for a model of the other clients.
The rounds that led to the present model are its lineage. Erasing a client writes a new one; a client that no round of
the lineage names has left nothing in the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from flwr.app import ArrayRecord

from strategies.arrays import Mean, merged
from strategies.client_update import ClientUpdate, shares


@dataclass(frozen=True, slots=True)
class RoundUpdates:
    """One round of FedFT.

    `sent`: the global model that the clients started from; `state`: what the aggregator's `state_dict` was then;
    `clients`: the accepted replies, ordered by partition, none where nobody answered well.
    """

    stage: str
    round: int
    sent: ArrayRecord
    state: Mapping[str, np.ndarray] = field(default_factory=dict)
    clients: Sequence[ClientUpdate] = ()


@dataclass(frozen=True, slots=True)
class PastRound:
    """A round of the lineage: whose updates are in the model, and whether they are still `stored`."""

    stage: str
    round: int
    clients: tuple[int, ...]
    stored: bool


class Rewriting(Protocol):
    """A lineage in the making; its rounds are given in order."""

    def keep(self, past: PastRound) -> None:
        """Take over a round as it is, stored or not."""
        ...

    def write(self, updates: RoundUpdates) -> None:
        """Add a round with other updates than before."""
        ...


class History(Protocol):
    """Remembers the rounds of FedFT. Reading takes the memory of one round."""

    stage: str
    """The stage that the run is in."""

    def record(self, updates: RoundUpdates) -> None:
        """Add a round to the lineage, with its updates if they are to be stored."""
        ...

    def rounds(self) -> Sequence[PastRound]:
        """All rounds of the lineage, oldest first."""
        ...

    def read(self, past: PastRound) -> RoundUpdates:
        """The updates of a stored round."""
        ...

    def rewriting(self, server_round: int, /) -> AbstractContextManager[Rewriting]:
        """Put a new lineage, made in this round, in the present one's place when the context ends without error."""
        ...


class MemoryHistory:
    """A history in memory. Stores every `every`-th round of a stage, from its first, and of these the newest `keep`."""

    def __init__(self, stage: str = "train", *, keep: int | None = None, every: int = 1) -> None:
        self.stage = stage
        self._keep, self._every = keep, every
        self._rounds: list[PastRound] = []
        self._stored: dict[tuple[str, int], RoundUpdates] = {}

    def record(self, updates: RoundUpdates) -> None:
        """Add a round; beyond `keep` the oldest stored one goes."""
        self._add(updates, stored=is_stored(updates.round, self._every))
        kept = [past for past in self._rounds if past.stored]
        for past in kept[: max(0, len(kept) - self._keep)] if self._keep is not None else []:
            del self._stored[past.stage, past.round]
            self._rounds[self._rounds.index(past)] = replace(past, stored=False)

    def rounds(self) -> list[PastRound]:
        return list(self._rounds)

    def read(self, past: PastRound) -> RoundUpdates:
        return self._stored[past.stage, past.round]

    @contextmanager
    def rewriting(self, server_round: int) -> Iterator[Rewriting]:
        new = _InMemory(self)
        yield new
        self._rounds, self._stored = new.history._rounds, new.history._stored

    def _add(self, updates: RoundUpdates, *, stored: bool) -> None:
        clients = tuple(update.partition for update in updates.clients)
        self._rounds.append(PastRound(updates.stage, updates.round, clients, stored))
        if stored:
            self._stored[updates.stage, updates.round] = updates


class _InMemory:
    def __init__(self, old: MemoryHistory) -> None:
        self._old, self.history = old, MemoryHistory(old.stage)

    def keep(self, past: PastRound) -> None:
        self.history._rounds.append(past)
        if past.stored:
            self.history._stored[past.stage, past.round] = self._old.read(past)

    def write(self, updates: RoundUpdates) -> None:
        self.history._add(updates, stored=True)


def is_stored(server_round: int, every: int) -> bool:
    """Whether a round, from 1, is one of those that are stored: 1, 1 + Δt, 1 + 2Δt, …; `every` is Δt."""
    return (server_round - 1) % every == 0


def mean_of_others(history: History, asking: Collection[int], mean: Mean | None = None) -> ArrayRecord:
    """The model of the clients that do not ask: the weighted mean of their models in the newest round.

    Where nobody else took part in it, the model that the round began with. Older rounds do not count: they may be from
    before another client was unlearned. Raises ValueError when the newest round is not stored.
    """
    past = history.rounds()
    if not past or not past[-1].stored:
        raise ValueError("the newest round is not stored: there is no model of the other clients")
    newest = history.read(past[-1])
    others = [update for update in newest.clients if update.partition not in asking]
    if not others:
        return newest.sent
    return merged(newest.sent, [update.arrays for update in others], shares(others), mean)
