"""Client-level differential privacy: clipped updates, their mean with Gaussian noise, and only then a server step."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from numpy.typing import NDArray

from strategies import protocol
from strategies.arrays import view
from strategies.distributed_noise import COUNT_SHARE, counting, joint_norm, share_sigma
from strategies.flower import compute_stdv, make_message
from strategies.secure.terms import Terms

TARGET_QUANTILE = 0.5
"""Adaptive clipping: the share of updates that are to be longer than the clipping norm."""
RATE = 0.2
"""Adaptive clipping: how fast the norm moves, η."""
_TINY = 1e-150
"""Flower divides by an update's length, which of a client that sends nothing new is 0; beside any noise this is 0."""


@dataclass(frozen=True, slots=True)
class Release:
    """One noised sum of clipped updates that leaves the trusted server.

    `kind`: `train` or `unlearn`, as `Listener.exchange_started` names exchanges. `clients`: how many were addressed, m;
    `population`: of how many these were drawn without replacement, None where nobody drew. The noise on the sum
    deviates by z·C in each number: `noise_multiplier` z, `clipping_norm` C.
    """

    kind: str
    server_round: int
    clients: int
    population: int | None
    noise_multiplier: float
    clipping_norm: float


class PrivateMean:
    """Makes one update of the clients' updates Δ_k: (1/m) Σ clip(Δ_k, C) + N(0, (z·C/m)² I), McMahan et al. 2018.

    Every client counts alike, m is how many were addressed, and who did not answer counts as a zero. What follows,
    FedAdam's step say, only sees this: post-processing. Flower's wrappers stand the other way round: they add the noise
    to what the wrapped strategy made of the updates, which covers no step but the plain mean. Clipping and noise are
    theirs here, around Flower's FedAvg of updates (not of models) in float64.

    `noise_multiplier` z ≥ 0, relative to C; replacing one client moves the sum by 2C at most. `adaptive`: C follows the
    median length of the updates (Andrew et al. 2021), from `clipping_norm` on; part of the noise then goes to the count
    of clipped updates, such that z still holds for both together. `seed`: noise that can be repeated, for simulations
    and tests; None: a fresh seed of 256 bits for each release from the operating system. `on_release` is called before
    anything leaves. Raises ValueError for values out of range.
    """

    def __init__(
        self,
        noise_multiplier: float,
        clipping_norm: float,
        *,
        adaptive: bool = False,
        seed: int | None = None,
        on_release: Callable[[Release], None] | None = None,
    ) -> None:
        if not 0 <= noise_multiplier < math.inf:
            raise ValueError(f"noise_multiplier is {noise_multiplier}, expected a finite number, at least 0")
        if not 0 < clipping_norm < math.inf:
            raise ValueError(f"clipping_norm is {clipping_norm}, expected a finite number above 0")
        self.noise_multiplier, self.clipping_norm, self.adaptive = noise_multiplier, clipping_norm, adaptive
        self._seed, self._on_release = seed, on_release

    def sampling_seed(self, public: object) -> object:
        """What to seed the drawing of clients with: `public`, unless noise is secret. Then who was drawn is, too, for
        sampling amplifies privacy only against who does not know it."""
        return public if self._seed is not None else secrets.randbits(256)

    def train(
        self, server_round: int, sent: ArrayRecord, models: Sequence[ArrayRecord], *, clients: int, population: int
    ) -> ArrayRecord:
        """φ + the private mean of the updates φ_k − φ, for φ = `sent`; `clients` of `population` were addressed.

        Raises ValueError for more models than clients, or more clients than there are.
        """
        if not len(models) <= clients <= population:
            raise ValueError(f"{len(models)} models of {clients} clients out of {population}")
        self._tell("train", server_round, clients, population)
        rng = self._generator("train", server_round)
        updates = _updates(sent, models, clients)
        z, norm = self.noise_multiplier, self.clipping_norm
        if not self.adaptive:
            return _added(sent, _fixed(updates, z, norm, rng))
        deviation = max(clients / COUNT_SHARE, z)
        adaptive = _Adaptive(
            FlowerFedAvg(),
            z,
            clients,
            initial_clipping_norm=norm,
            target_clipped_quantile=TARGET_QUANTILE,
            clipped_count_stddev=deviation if z > 0 else 0.0,
        )
        adaptive.rng = rng
        mean = _reduced(adaptive, updates)
        self.clipping_norm = adaptive.next_norm
        return _added(sent, mean)

    def unlearn(
        self, server_round: int, sent: ArrayRecord, models: Sequence[ArrayRecord], *, clients: int, summed: bool = True
    ) -> ArrayRecord:
        """φ + Σ clip(φ_u − φ, C) + N(0, (z·C)² I), or that over `clients` unless `summed`; `clients` were asked.

        Who asks was not drawn: nothing amplifies the privacy of this release. Raises ValueError as `train`.
        """
        if len(models) > clients:
            raise ValueError(f"{len(models)} models of {clients} clients")
        self._tell("unlearn", server_round, clients, None)
        updates = _updates(sent, models, clients)
        mean = _fixed(updates, self.noise_multiplier, self.clipping_norm, self._generator("unlearn", server_round))
        return _added(sent, mean, clients if summed else 1)

    def shared(self, kind: str, terms: Terms, numbers: int) -> Terms:
        """The terms of a secure sum in which the clients clip their updates of so many numbers and bring the noise.

        As many as the threshold bring all of it; where more are left there is more. Where the norm moves, by training
        alone, the clients also add whether they were clipped. ValueError where the steps are too coarse for the noise.
        """
        z, norm = self.noise_multiplier, self.clipping_norm
        count = counting(z, norm, terms.clients) if self.adaptive and kind == "train" else 0.0
        clipped = replace(terms, norm=norm, clipping=max(min(terms.clipping, norm), count / 2), counting=count)
        share = share_sigma(z, joint_norm(norm, count), clipped.step, numbers + bool(count), terms.threshold)
        return replace(clipped, noise=share)

    def follow(self, halves: float, clients: int) -> None:
        """Move the norm after a secure sum; `halves`: the noised sum over `clients` of ½, −½ where one was clipped."""
        self.clipping_norm = _moved(self.clipping_norm, 0.5 - halves / clients)

    def announce(self, kind: str, server_round: int, clients: int, population: int | None) -> None:
        """A secure sum is about to be held, whose noise the clients bring: one more release."""
        self._tell(kind, server_round, clients, population)

    def reply(self, arrays: ArrayRecord, arrays_key: str, weight_key: str) -> Message:
        """The one reply that stands for all of an exchange. It tells no number of the clients: none was noised."""
        metrics = MetricRecord({weight_key: 1, protocol.PARTITION_ID: -1})
        return _message(RecordDict({arrays_key: arrays, protocol.METRICS: metrics}))

    def _tell(self, kind: str, server_round: int, clients: int, population: int | None) -> None:
        if self._on_release is not None:
            z, norm = self.noise_multiplier, self.clipping_norm
            self._on_release(Release(kind, server_round, clients, population, z, norm))

    def _generator(self, kind: str, server_round: int) -> np.random.Generator:
        if self._seed is None:
            return np.random.default_rng(secrets.randbits(256))
        return np.random.default_rng([self._seed, server_round, ("train", "unlearn").index(kind)])


class _Noise:
    """Noise of a generator of one's own in place of numpy's global one, which is seeded by whoever comes first."""

    rng: np.random.Generator
    noise_multiplier: float
    clipping_norm: float
    num_sampled_clients: int

    def _add_noise_to_aggregated_arrays(self, aggregated: ArrayRecord) -> ArrayRecord:
        deviation = compute_stdv(self.noise_multiplier, self.clipping_norm, self.num_sampled_clients)
        noised = {n: np.asarray(a.numpy()) for n, a in aggregated.items()}
        return ArrayRecord({n: Array(a + self.rng.normal(0.0, deviation, a.shape)) for n, a in noised.items()})


class _Fixed(_Noise, DifferentialPrivacyServerSideFixedClipping):
    """Flower's, with that noise."""


class _Adaptive(_Noise, DifferentialPrivacyServerSideAdaptiveClipping):
    """Flower's, with that noise. Flower moves the norm before it adds the noise, which would then be that of another
    norm than the updates were clipped to, and moves it away from the quantile: here it moves afterwards, towards it."""

    next_norm: float

    def _noisy_fraction(self, count: int, total: int) -> float:
        return (count + self.rng.normal(0.0, self.clipped_count_stddev)) / total

    def _geometric_update(self, clipped_fraction: float) -> None:
        self.next_norm = _moved(self.clipping_norm, clipped_fraction)


def _moved(norm: float, clipped_fraction: float) -> float:
    """C exp(−η (b̃ − γ)), Andrew et al. 2021, for the share b̃ of updates that were not clipped."""
    return norm * math.exp(RATE * (clipped_fraction - TARGET_QUANTILE))


def _fixed(updates: list[ArrayRecord], z: float, norm: float, rng: np.random.Generator) -> ArrayRecord:
    fixed = _Fixed(FlowerFedAvg(), z, norm, len(updates))
    fixed.rng = rng
    return _reduced(fixed, updates)


def _reduced(wrapper: Any, updates: Sequence[ArrayRecord]) -> ArrayRecord:
    """What one of Flower's wrappers makes of the updates, each of which counts alike."""
    wrapper.current_arrays = ArrayRecord({n: Array(np.zeros(a.shape)) for n, a in updates[0].items()})
    weight = MetricRecord({protocol.NUM_EXAMPLES: 1})
    replies = [_message(RecordDict({protocol.ARRAYS: update, protocol.METRICS: weight})) for update in updates]
    arrays, _ = wrapper.aggregate_train(0, replies)
    assert arrays is not None
    return arrays


def _message(content: RecordDict) -> Message:
    """A reply that no client sent."""
    ids = {"run_id": 0, "message_id": "", "src_node_id": 0, "dst_node_id": 0, "reply_to_message_id": ""}
    return make_message(
        Metadata(**ids, group_id="", created_at=0.0, ttl=math.inf, message_type=protocol.TRAIN), content
    )


def _updates(sent: ArrayRecord, models: Sequence[ArrayRecord], clients: int) -> list[ArrayRecord]:
    """φ_k − φ in float64, and nothing new of those clients that sent no model."""
    base = {name: view(array).astype(np.float64) for name, array in sent.items()}
    found = []
    for model in models:
        update: dict[str, NDArray] = {name: view(model[name]).astype(np.float64) - old for name, old in base.items()}
        found.append(_nothing(base) if not any(u.any() for u in update.values()) else _record(update))
    return found + [_nothing(base)] * (clients - len(models))


def _nothing(base: dict[str, NDArray]) -> ArrayRecord:
    arrays = {name: np.zeros(old.shape) for name, old in base.items()}
    next(a for a in arrays.values() if a.size).flat[0] = _TINY
    return _record(arrays)


def _record(arrays: dict[str, NDArray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _added(sent: ArrayRecord, update: ArrayRecord, times: int = 1) -> ArrayRecord:
    """φ + `times` · update, in φ's dtype."""
    result = {}
    for name, array in sent.items():
        old = view(array)
        with np.errstate(over="ignore"):
            result[name] = Array((old.astype(np.float64) + times * view(update[name])).astype(old.dtype))
    return ArrayRecord(result)
