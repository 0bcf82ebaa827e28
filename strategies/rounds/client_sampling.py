"""Which clients fine-tune in a round, where it is not any of them with the same probability (that is Flower's own).

What a choice does to the mean of their updates is its own affair: `Selection.weights` says how each counts.
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

Reach = Callable[[Sequence[int]], Collection[int]]
"""Asks clients whether they are available; returns those that answered in time."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The clients of a round, ascending. `weights`: what each counts in the mean; None: the records that it tells."""

    clients: tuple[int, ...]
    weights: Mapping[int, float] | None = None


class Sampling(ABC):
    """Draws the clients of a round and hears what came of them. `weighs`: it gives weights of its own."""

    weighs: ClassVar[bool] = True

    @abstractmethod
    def draw(self, clients: Sequence[int], count: int, rng: random.Random, reach: Reach) -> Selection:
        """At most `count` of `clients`, ascending partition ids, by `rng`."""

    def heard(self, asked: Collection[int], losses: Mapping[int, float]) -> None:
        """Who was asked to train, and the losses of those that answered, by client; here nothing is made of them."""
        return None

    def state_dict(self) -> dict[str, np.ndarray]:
        """What must last beyond a round; it goes into checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state_dict` gave. Raises ValueError for a state where there is none."""
        if state:
            raise ValueError(f"{type(self).__name__} cannot load a state ({sorted(state)})")


class BySize(Sampling):
    """Client k with probability π_k = min(1, c · n_k), n_k being its records, `count` of them in all.

    Its update counts n_k / π_k (Horvitz and Thompson 1952), so that the sum over the drawn has the sum over all clients
    of n_k φ_k as its expectation: size is not counted twice. That is 1/c for all but those that are drawn for certain:
    the plain mean of scheme I of Li et al. 2020 (On the Convergence of FedAvg on Non-IID Data), drawn without
    replacement.

    `size`: n_k > 0 of a client, as the server knows it.
    """

    def __init__(self, size: Callable[[int], int]) -> None:
        self._size = size

    def draw(self, clients: Sequence[int], count: int, rng: random.Random, reach: Reach) -> Selection:
        drawn = by_size({client: self._size(client) for client in clients}, count, rng)
        return Selection(tuple(sorted(drawn)), {client: self._size(client) / float(drawn[client]) for client in drawn})


class PowerOfChoice(Sampling):
    """Of `candidates` clients, drawn by size, those with the largest loss when they last trained (rpow-d).

    A client that was never asked counts as ∞, so that each is heard once; ties are broken at random. One that told no
    loss when it was asked last counts as the smallest that was known then, so that rounds do not fill with clients that
    do not answer. Updates count alike. (Cho, Wang and Joshi 2022, Towards Understanding Biased Client Selection in
    Federated Learning, section 4; its pow-d asks all candidates for the loss of the present model
    instead, which costs a message and a pass for each.)

    `size`: records of a client, above 0. Raises ValueError for fewer than one candidate.
    """

    def __init__(self, candidates: int, size: Callable[[int], int]) -> None:
        if candidates < 1:
            raise ValueError(f"candidates is {candidates}, expected at least 1")
        self._candidates, self._size = candidates, size
        self._losses: dict[int, float] = {}

    def draw(self, clients: Sequence[int], count: int, rng: random.Random, reach: Reach) -> Selection:
        sizes = {client: self._size(client) for client in clients}
        candidates = list(by_size(sizes, max(self._candidates, count), rng))
        rng.shuffle(candidates)
        candidates.sort(key=lambda client: -self._losses.get(client, math.inf))
        chosen = tuple(sorted(candidates[:count]))
        return Selection(chosen, dict.fromkeys(chosen, 1.0))

    def heard(self, asked: Collection[int], losses: Mapping[int, float]) -> None:
        self._losses.update(losses)
        if self._losses:
            smallest = min(self._losses.values())
            self._losses.update({client: smallest for client in asked if client not in losses})

    def state_dict(self) -> dict[str, np.ndarray]:
        """The last known losses, and whose they are; also those that stand for clients that told none."""
        known = sorted(self._losses)
        losses = [self._losses[client] for client in known]
        return {"clients": np.array(known, dtype=np.int64), "losses": np.array(losses)} if known else {}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        if state and state.keys() != {"clients", "losses"}:
            raise ValueError(f"PowerOfChoice cannot load a state ({sorted(state)})")
        pairs = zip(state["clients"].tolist(), state["losses"].tolist(), strict=True) if state else ()
        self._losses = {int(client): float(loss) for client, loss in pairs}


class Available(Sampling):
    """Any of those that are there, with the same probability: who does not answer a small message is left out.

    Clients are asked in a random order, twice as many each time, until enough have answered; the first of them in that
    order are drawn.
    """

    weighs = False

    def draw(self, clients: Sequence[int], count: int, rng: random.Random, reach: Reach) -> Selection:
        order = rng.sample(clients, len(clients))
        found: list[int] = []
        asked = 0
        while len(found) < count and asked < len(order):
            group = order[asked : asked + max(count, asked)]
            there = set(reach(group))
            found += [client for client in group if client in there]
            asked += len(group)
        return Selection(tuple(sorted(found[:count])))


def by_size(sizes: Mapping[int, int], count: int, rng: random.Random) -> dict[int, Fraction]:
    """`count` clients (all, if there are no more) with π_k = min(1, c · n_k) each: those drawn, with their π_k.

    Systematic sampling of a shuffled list (Madow 1949; Hartley and Rao 1962): the clients' sizes lie end to end on a
    line of length T, and `count` points a step T/count apart are laid on it from a random start. Who is longer than the
    step is taken for certain, beforehand. In whole numbers, so that the π_k are exact. Raises ValueError for a size
    below 1.
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
    return certain | dict(_laid_out(sizes, others, left, total, rng.randrange(total)))


def _laid_out(
    sizes: Mapping[int, int], order: Iterable[int], count: int, total: int, start: int
) -> Iterable[tuple[int, Fraction]]:
    """Those of `order` on which a point falls, with the probability of that: on a line `count` times as long."""
    end, point = 0, start
    for client in order:
        end += sizes[client] * count
        if point < end:
            yield client, Fraction(sizes[client] * count, total)
            point += total
