"""ε of composed Gaussian mechanisms at a given δ, and the noise that a target ε takes: `dp_accounting` does the sums.

Clients are replaced: a client-level release is a sum of updates of norm C at most, of which one may become any other,
so that it moves by 2C. Records are added or removed: a sum of gradients of norm C at most moves by C.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

REPLACED = 2.0
"""By how many clipping norms a sum of clipped vectors moves when one of them becomes another one."""
LEAST_NOISE, MOST_NOISE = 1e-2, 1e6
ORDERS = (*range(2, 25), 28, 32, 40, 48, 64, 96, 128, 512, 1024)
"""Rényi orders; whole ones, for which the sampled Gaussian has a finite sum."""


class Event(NamedTuple):
    """A Gaussian mechanism, on all of the data or on a sample.

    `noise_multiplier`: deviation of the noise over the sensitivity under the neighbouring relation. `clients` of
    `population` are drawn without replacement, or each record by itself with probability `rate`.
    """

    noise_multiplier: float
    clients: int = 1
    population: int = 1
    rate: float = 1.0

    @property
    def sampled(self) -> bool:
        """Whether sampling amplifies its privacy."""
        return self.clients < self.population or self.rate < 1.0

    @classmethod
    def of_clients(cls, noise_multiplier: float, clients: int = 1, population: int = 1) -> Event:
        """Of a sum of clients' clipped updates with noise of `noise_multiplier` clipping norms."""
        return cls(noise_multiplier / REPLACED, clients, population)

    @classmethod
    def of_records(cls, noise_multiplier: float, rate: float) -> Event:
        """Of a step of DP-SGD: a sum of records' clipped gradients, each record taking part with probability `rate`."""
        return cls(noise_multiplier, rate=rate)


Events = Mapping[Event, int]
"""How often each mechanism was used."""


def epsilon(events: Events, delta: float) -> float:
    """ε at δ of all `events` together: of plain Gaussians exactly (Balle and Wang 2018), else by Rényi orders.

    Sampling without replacement: Wang, Balle and Kasiviswanathan 2019, Theorem 27; Poisson: Mironov, Talwar and Zhang
    2019. Never more than without the sampling. 0 without events.
    """
    return _epsilon(frozenset((event, count) for event, count in events.items() if count), delta)


def unsampled(events: Events, delta: float) -> float:
    """`epsilon` against an attacker who knows which clients or records were sampled."""
    plain: dict[Event, int] = {}
    for event, count in events.items():
        known = Event(event.noise_multiplier)
        plain[known] = plain.get(known, 0) + count
    return epsilon(plain, delta)


def added(*parts: Events) -> dict[Event, int]:
    """All of several accounts."""
    total: dict[Event, int] = {}
    for part in parts:
        for event, count in part.items():
            total[event] = total.get(event, 0) + count
    return total


def calibrated(planned: Callable[[float], Iterable[Events]], target: float, delta: float) -> float:
    """The least noise multiplier with which each of the `planned` accounts stays within the `target` ε at δ.

    `planned` says by noise multiplier what is going to be spent, its accounts always in the same order. Raises
    ValueError where no noise from 0.01 to 10⁶ does.
    """
    from dp_accounting import calibrate_dp_mechanism, mechanism_calibration

    least, count = LEAST_NOISE, len(list(planned(1.0)))
    for number in range(count):
        if epsilon(_nth(planned, least, number), delta) <= target:
            continue
        if epsilon(_nth(planned, MOST_NOISE, number), delta) > target:
            raise ValueError(f"no noise keeps ε within {target:g} at δ = {delta:g}: what was spent before is too much")
        least = calibrate_dp_mechanism(
            _Accountant,  # type: ignore[arg-type]
            lambda z, number=number: _nth(planned, z, number),  # type: ignore[arg-type]
            target,
            delta,
            mechanism_calibration.LowerEndpointAndGuess(least, max(1.0, 2 * least)),
            tol=1e-4,
        )
    return float(least)


class _Accountant:
    """`epsilon` as what `calibrate_dp_mechanism` asks for."""

    def __init__(self) -> None:
        import dp_accounting

        self.ledger, self._events = dp_accounting.NoOpDpEvent(), {}

    def compose(self, events: Events) -> _Accountant:
        self._events = added(self._events, events)
        return self

    def get_epsilon(self, delta: float) -> float:
        return epsilon(self._events, delta)


def _nth(planned: Callable[[float], Iterable[Events]], noise_multiplier: float, number: int) -> Events:
    return list(planned(noise_multiplier))[number]


@functools.lru_cache(maxsize=4096)
def _epsilon(events: frozenset[tuple[Event, int]], delta: float) -> float:
    import dp_accounting

    if not events:
        return 0.0
    precision = sum(count / event.noise_multiplier**2 for event, count in events)
    plain = float(dp_accounting.get_epsilon_gaussian(precision**-0.5, delta))
    if not any(event.sampled for event, _ in events):
        return plain
    from dp_accounting import rdp

    orders = list(ORDERS)
    total = np.sum([count * renyi(event) for event, count in events], axis=0)
    return min(plain, float(rdp.compute_epsilon(orders, total, delta)[0]))


@functools.lru_cache(maxsize=4096)
def renyi(event: Event) -> np.ndarray:
    """The Rényi divergences of `event` at `ORDERS`."""
    import dp_accounting
    from dp_accounting import rdp

    gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    mechanism: dp_accounting.DpEvent = gaussian
    if event.clients < event.population:
        mechanism = dp_accounting.SampledWithoutReplacementDpEvent(event.population, event.clients, gaussian)
    elif event.rate < 1.0:
        relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        mechanism = dp_accounting.PoissonSampledDpEvent(event.rate, gaussian)
    else:
        relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    return rdp.RdpAccountant(list(ORDERS), relation).compose(mechanism)._rdp  # it tells of them in no other way
