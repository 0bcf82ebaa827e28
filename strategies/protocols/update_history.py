"""What a server remembers of FedFT: in each round the model that it sent and the models that came back.

Some protocols need it, to repeat the rounds without a client or for a model of the other clients. The rounds that led
to the current model are its lineage. Erasing a client replaces the lineage; the model does not depend on a client that
took part in none of its rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from flwr.app import ArrayRecord

from strategies.arrays import Mean, fingerprint, merged
from strategies.client_update import ClientUpdate, shares


@dataclass(frozen=True, slots=True)
class RoundUpdates:
    """The updates of one round of FedFT.

    Attributes
    ----------
    stage : str
    round : int
    sent : ArrayRecord
        The global model that the clients started from.
    state : mapping of arrays
        The aggregator's `state_dict` at that time.
    clients : sequence of ClientUpdate, by partition
        The valid ones; may be empty.
    """

    stage: str
    round: int
    sent: ArrayRecord
    state: Mapping[str, np.ndarray] = field(default_factory=dict)
    clients: Sequence[ClientUpdate] = ()


@dataclass(frozen=True, slots=True)
class PastRound:
    """A round of the lineage.

    Attributes
    ----------
    stage : str
    round : int
    clients : tuple of int
        The clients whose updates were aggregated.
    stored : bool
        Whether the round is still stored, with these updates or, where only models are kept, without.
    hashes : mapping of client to str
        SHA-256 of the updates where only models are kept.
    replayed : int
        Where only models are kept the round of the stage `unlearn` in which it was held again last; 0: never.
    model : str
        SHA-256 of the model that the clients started from, where only models are kept.
    entries : mapping of client to str
        `ClientUpdate.entry` of those that reported one, where only models are kept.
    """

    stage: str
    round: int
    clients: tuple[int, ...]
    stored: bool
    hashes: Mapping[int, str] = field(default_factory=dict)
    replayed: int = 0
    model: str = ""
    entries: Mapping[int, str] = field(default_factory=dict)


class Rewriting(Protocol):
    """A new lineage that is being written; its rounds are given in order."""

    def keep(self, past: PastRound) -> None:
        """Take over a round of the old lineage as it is, stored or not."""
        ...

    def write(self, updates: RoundUpdates, *, stored: bool = True) -> None:
        """Add a round with new updates, which are stored unless `stored` is false."""
        ...


class History(Protocol):
    """Remembers the rounds of FedFT; the updates of only one round at a time need be in memory."""

    stage: str
    """The stage that the run is in."""

    def record(self, updates: RoundUpdates) -> None:
        """Add a round to the lineage; the history decides whether its updates are stored."""
        ...

    def rounds(self) -> Sequence[PastRound]:
        """All rounds of the lineage, oldest first."""
        ...

    def read(self, past: PastRound) -> RoundUpdates:
        """The updates of a round that is `stored`."""
        ...

    def rewriting(self, server_round: int, /) -> AbstractContextManager[Rewriting]:
        """Context in which a new lineage is written; it replaces the current one if the context ends without error.

        Parameters
        ----------
        server_round : int
            The round in which that happens.

        Returns
        -------
        context manager of Rewriting
        """
        ...


class MemoryHistory:
    """A history in memory.

    Parameters
    ----------
    stage : str
        The stage that the run is in.
    keep : int, at least 0, optional
        How many rounds are stored, the newest; None: all.
    every : int, at least 1
        Of a stage's rounds 1, 1 + `every`, 1 + 2 · `every`, … are stored.
    models_only : bool
        Store the model and the aggregator's state of a round, and of the clients' updates the hashes alone.
    """

    def __init__(
        self, stage: str = "train", *, keep: int | None = None, every: int = 1, models_only: bool = False
    ) -> None:
        self.stage = stage
        self._keep, self._every, self._models_only = keep, every, models_only
        self._rounds: list[PastRound] = []
        self._stored: dict[tuple[str, int], RoundUpdates] = {}

    def record(self, updates: RoundUpdates) -> None:
        """Add a round to the lineage, and delete the oldest stored updates beyond `keep`."""
        self._add(updates, stored=is_stored(updates.round, self._every))
        kept = [past for past in self._rounds if past.stored]
        for past in kept[: max(0, len(kept) - self._keep)] if self._keep is not None else []:
            del self._stored[past.stage, past.round]
            self._rounds[self._rounds.index(past)] = replace(past, stored=False)

    def rounds(self) -> list[PastRound]:
        """All rounds of the lineage, oldest first."""
        return list(self._rounds)

    def read(self, past: PastRound) -> RoundUpdates:
        """The updates of a round that is `stored`."""
        return self._stored[past.stage, past.round]

    @contextmanager
    def rewriting(self, server_round: int) -> Iterator[Rewriting]:
        """Context in which a new lineage is written; see `History.rewriting`."""
        new = _InMemory(self, server_round)
        yield new
        self._rounds, self._stored = new.history._rounds, new.history._stored

    def _add(self, updates: RoundUpdates, *, stored: bool, replayed: int = 0) -> None:
        """Add a round to the lineage, and store it or not."""
        past = past_round(updates, stored=stored, models_only=self._models_only, replayed=replayed)
        self._rounds.append(past)
        if stored:
            kept = replace(updates, clients=()) if self._models_only else updates
            self._stored[updates.stage, updates.round] = kept


class _InMemory:
    """A `Rewriting` of a `MemoryHistory`; the new lineage is in `history`."""

    def __init__(self, old: MemoryHistory, server_round: int) -> None:
        self._old, self.history = old, MemoryHistory(old.stage, models_only=old._models_only)
        self._round = server_round

    def keep(self, past: PastRound) -> None:
        self.history._rounds.append(past)
        if past.stored:
            self.history._stored[past.stage, past.round] = self._old.read(past)

    def write(self, updates: RoundUpdates, *, stored: bool = True) -> None:
        self.history._add(updates, stored=stored, replayed=self._round)


def past_round(updates: RoundUpdates, *, stored: bool, models_only: bool, replayed: int = 0) -> PastRound:
    """The line of the lineage about a round.

    Parameters
    ----------
    updates : RoundUpdates
    stored, models_only : bool
        As in `PastRound` and `MemoryHistory`.
    replayed : int
        In which round of the stage `unlearn` it is held again; 0: it is the round itself.

    Returns
    -------
    PastRound
    """
    clients = tuple(update.partition for update in updates.clients)
    if not models_only:
        return PastRound(updates.stage, updates.round, clients, stored)
    hashes = {update.partition: fingerprint(update.arrays) for update in updates.clients}
    entries = {update.partition: update.entry for update in updates.clients if update.entry}
    model = fingerprint(updates.sent)
    return PastRound(updates.stage, updates.round, clients, stored, hashes, replayed, model, entries)


def starts(rounds: Sequence[PastRound], asking: Collection[int], label: str) -> tuple[dict[int, int], dict[int, str]]:
    """Where in a lineage the rounds begin that depend on clients.

    Parameters
    ----------
    rounds : sequence of PastRound
    asking : collection of int
        The clients.
    label : str
        The method's name in reasons.

    Returns
    -------
    places : dict of client to int
        The newest stored round that is no later than the first in which the client took part. A client that never took
        part has none.
    refused : dict of client to str
        Why there is none for a client that took part.
    """
    places, refused = dict[int, int](), dict[int, str]()
    for client in asking:
        first = next((i for i, past in enumerate(rounds) if client in past.clients), None)
        if first is None:
            continue
        place = next((i for i in reversed(range(first + 1)) if rounds[i].stored), None)
        if place is None:
            refused[client] = _too_far_back(rounds, first, label)
        else:
            places[client] = place
    return places, refused


def _too_far_back(rounds: Sequence[PastRound], first: int, label: str) -> str:
    """Why a client that first took part in the round at place `first` cannot be erased."""
    since = rounds[first]
    oldest = next((past for past in rounds if past.stored), None)
    stored = "none is stored" if oldest is None else f"the oldest stored one is round {oldest.round} of {oldest.stage}"
    return (
        f"{label} needs the updates from round {since.round} of {since.stage} on, in which the client first took "
        f"part; {stored}"
    )


def is_stored(server_round: int, every: int) -> bool:
    """Whether the updates of a round are stored: those of the rounds 1, 1 + Δt, 1 + 2Δt, ….

    Parameters
    ----------
    server_round : int, at least 1
    every : int, at least 1
        Δt, the retaining interval of FedEraser (Liu et al., IWQoS 2021).

    Returns
    -------
    bool
    """
    return (server_round - 1) % every == 0


def mean_of_others(history: History, asking: Collection[int], mean: Mean | None = None) -> ArrayRecord:
    """The model of the clients that do not ask: the weighted mean of their models in the newest round.

    Older rounds are not used: they may be from before another client was unlearned.

    Parameters
    ----------
    history : History
    asking : collection of int
        The clients that ask.
    mean : Mean, optional
        How models are averaged; None: number by number.

    Returns
    -------
    ArrayRecord
        The model that the round began with if no other client took part in it.

    Raises
    ------
    ValueError
        If the newest round is not stored.
    """
    past = history.rounds()
    if not past or not past[-1].stored:
        raise ValueError("the newest round is not stored: there is no model of the other clients")
    newest = history.read(past[-1])
    others = [update for update in newest.clients if update.partition not in asking]
    if not others:
        return newest.sent
    return merged(newest.sent, [update.arrays for update in others], shares(others), mean)
