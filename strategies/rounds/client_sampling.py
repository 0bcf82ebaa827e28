"""Client sampling schemes for fine-tuning other than Flower's uniform one: by size, by loss, by availability.

`Selection.weights` corrects for what a scheme does to the mean of the updates.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from strategies.stateful import Stateful

Reach = Callable[[Sequence[int]], Collection[int]]
"""Asks clients whether they are available; returns those that answered in time."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The clients selected for a round.

    Attributes
    ----------
    clients : tuple of int
        Ascending partition ids.
    weights : mapping of float, optional
        What each counts in the mean; None: the weight that its reply reports.
    """

    clients: tuple[int, ...]
    weights: Mapping[int, float] | None = None


class Sampling(Stateful, ABC):
    """A client sampling scheme; `weighs` says whether it gives weights of its own."""

    weighs: ClassVar[bool] = True

    @abstractmethod
    def draw(self, clients: Sequence[int], count: int, rng: random.Random, reach: Reach) -> Selection:
        """Select clients.

        Parameters
        ----------
        clients : sequence of int
            Ascending partition ids to select from.
        count : int
            At most so many.
        rng : random.Random
        reach : Reach
            Asks clients whether they are there.

        Returns
        -------
        Selection
        """

    def heard(self, asked: Collection[int], losses: Mapping[int, float]) -> None:
        """Take note of the clients asked to train, and of the losses that were reported, by client. Ignored here."""
        return None


class BySize(Sampling):
    """Sampling proportional to size: client k with probability π_k = min(1, c · n_k), `count` clients in all.

    Its update has the weight n_k / π_k (Horvitz and Thompson 1952), so that the expected sum over the selected clients
    is the sum over all clients of n_k φ_k. That weight is 1/c for all but those that are selected for certain: the
    unweighted mean of scheme I of Li et al. 2020 (On the Convergence of FedAvg on Non-IID Data), without replacement.

    Parameters
    ----------
    size : callable (client) -> int
        Records n_k > 0 of a client, as the server knows them.
    """

    def __init__(self, size: Callable[[int], int]) -> None:
        self._size = size

    def draw(self, clients: Sequence[int], count: int, rng: random.Random, reach: Reach) -> Selection:
        """Select clients with probabilities proportional to size; see `Sampling.draw`."""
        drawn = by_size({client: self._size(client) for client in clients}, count, rng)
        return Selection(tuple(sorted(drawn)), {client: self._size(client) / float(drawn[client]) for client in drawn})


class PowerOfChoice(Sampling):
    """Power of choice (rpow-d): of candidates sampled by size, those with the largest loss when they last trained.

    A client that was never asked counts as ∞, so that each is asked once; ties are broken at random. One that reported
    no loss when it was last asked counts as the smallest known then, so that rounds do not fill with clients that do
    not answer. Updates have equal weights. Cho, Wang and Joshi 2022, Towards Understanding Biased Client Selection in
    Federated Learning, section 4; its pow-d asks all candidates for the loss of the current model instead, which costs
    a message and a forward pass for each.

    Parameters
    ----------
    candidates : int, at least 1
    size : callable (client) -> int
        Records of a client, above 0.

    Raises
    ------
    ValueError
        For fewer than one candidate.
    """

    def __init__(self, candidates: int, size: Callable[[int], int]) -> None:
        if candidates < 1:
            raise ValueError(f"candidates is {candidates}, expected at least 1")
        self._candidates, self._size = candidates, size
        self._losses: dict[int, float] = {}

    def draw(self, clients: Sequence[int], count: int, rng: random.Random, reach: Reach) -> Selection:
        """Select the candidates with the largest last known losses; see `Sampling.draw`."""
        sizes = {client: self._size(client) for client in clients}
        candidates = list(by_size(sizes, max(self._candidates, count), rng))
        rng.shuffle(candidates)
        candidates.sort(key=lambda client: -self._losses.get(client, math.inf))
        chosen = tuple(sorted(candidates[:count]))
        return Selection(chosen, dict.fromkeys(chosen, 1.0))

    def heard(self, asked: Collection[int], losses: Mapping[int, float]) -> None:
        """Store the losses; a client that reported none gets the smallest known one."""
        self._losses.update(losses)
        if self._losses:
            smallest = min(self._losses.values())
            self._losses.update({client: smallest for client in asked if client not in losses})

    def state_dict(self) -> dict[str, np.ndarray]:
        """The last known losses and their clients, including the losses that stand for clients that reported none.

        Returns
        -------
        dict
            `clients` (n,) int64 and `losses` (n,) float64; empty before the first round.
        """
        clients = sorted(self._losses)
        losses = [self._losses[client] for client in clients]
        return {"clients": np.array(clients, dtype=np.int64), "losses": np.array(losses)} if clients else {}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore a `state_dict`; ValueError for another state."""
        if state and state.keys() != {"clients", "losses"}:
            raise ValueError(f"PowerOfChoice cannot load a state ({sorted(state)})")
        pairs = zip(state["clients"].tolist(), state["losses"].tolist(), strict=True) if state else ()
        self._losses = {int(client): float(loss) for client, loss in pairs}


class Available(Sampling):
    """Uniform sampling among the clients that answer a small message.

    Clients are asked in a random order, twice as many each time, until enough have answered; the first of them in that
    order are selected.
    """

    weighs = False

    def draw(self, clients: Sequence[int], count: int, rng: random.Random, reach: Reach) -> Selection:
        """Select among the clients that answer; see `Sampling.draw`."""
        order = rng.sample(clients, len(clients))
        available: list[int] = []
        asked = 0
        while len(available) < count and asked < len(order):
            group = order[asked : asked + max(count, asked)]
            reached = set(reach(group))
            available += [client for client in group if client in reached]
            asked += len(group)
        return Selection(tuple(sorted(available[:count])))


def by_size(sizes: Mapping[int, int], count: int, rng: random.Random) -> dict[int, Fraction]:
    """Sample without replacement with inclusion probabilities π_k = min(1, c · n_k) that sum to `count`.

    Systematic sampling of a shuffled list (Madow 1949; Hartley and Rao 1962): the sizes lie end to end on a line of
    length T, and `count` points at steps of T/count are laid on it from a random start. A client longer than the step
    is taken for certain, beforehand. All in integers, so that the π_k are exact.

    Parameters
    ----------
    sizes : mapping of int
        n_k >= 1 by client.
    count : int
        How many to sample; all if there are no more.
    rng : random.Random

    Returns
    -------
    dict of Fraction
        π_k of the sampled clients.

    Raises
    ------
    ValueError
        For a size below 1.
    """
    if wrong := [client for client, size in sizes.items() if size < 1]:
        raise ValueError(f"client {wrong[0]} has the size {sizes[wrong[0]]}, expected at least 1")
    count = min(count, len(sizes))
    total, left = sum(sizes.values()), count
    certain: dict[int, Fraction] = {}
    for client in sorted(sizes, key=lambda c: -sizes[c]):
        if left == 0 or sizes[client] * left < total:
            break
        certain[client] = Fraction(1)
        total, left = total - sizes[client], left - 1
    if left == 0:
        return certain
    others = [client for client in sizes if client not in certain]
    rng.shuffle(others)
    return certain | dict(_systematic(sizes, others, left, total, rng.randrange(total)))


def _systematic(
    sizes: Mapping[int, int], order: Iterable[int], count: int, total: int, start: int
) -> Iterable[tuple[int, Fraction]]:
    """Systematic sampling: clients lie on a line, each `count` times its size long; one is sampled where a point falls.

    The points are `start`, `start` + `total`, …; yields (client, its probability).
    """
    end, point = 0, start
    for client in order:
        end += sizes[client] * count
        if point < end:
            yield client, Fraction(sizes[client] * count, total)
            point += total
