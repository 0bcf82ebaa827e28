"""Client-level differential privacy: clipped updates, their mean with Gaussian noise, and only then a server step."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import Array, ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from numpy.typing import NDArray

from strategies import message_keys
from strategies.arrays import view
from strategies.flower_internals import make_message
from strategies.privacy.distributed_noise import COUNT_SHARE, counting, joint_norm, share_sigma
from strategies.secure.terms import Terms

TARGET_QUANTILE = 0.5
"""Adaptive clipping: target share of updates within the clipping norm, γ."""
RATE = 0.2
"""Adaptive clipping: learning rate of the norm, η."""


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
    to what the wrapped strategy made of the updates, which covers no step but the plain mean.

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
        mean, shortened = clipped_mean(sent, models, clients, self.clipping_norm)
        z, moved = self.noise_multiplier, self.clipping_norm
        if self.adaptive:
            count_deviation = max(clients / COUNT_SHARE, z) if z > 0 else 0.0
            moved = _moved(self.clipping_norm, (shortened + rng.normal(0.0, count_deviation)) / clients)
            z = (z**-2 - (2 * count_deviation) ** -2) ** -0.5 if z > 0 else 0.0
        new = _added(sent, _noised(mean, z * self.clipping_norm / clients, rng))
        self.clipping_norm = moved
        return new

    def unlearn(
        self, server_round: int, sent: ArrayRecord, models: Sequence[ArrayRecord], *, clients: int, summed: bool = True
    ) -> ArrayRecord:
        """φ + Σ clip(φ_u − φ, C) + N(0, (z·C)² I), or that over `clients` unless `summed`; `clients` were asked.

        Who asks was not drawn: nothing amplifies the privacy of this release. Raises ValueError as `train`.
        """
        if len(models) > clients:
            raise ValueError(f"{len(models)} models of {clients} clients")
        self._tell("unlearn", server_round, clients, None)
        mean, _ = clipped_mean(sent, models, clients, self.clipping_norm)
        deviation = self.noise_multiplier * self.clipping_norm / clients
        noised = _noised(mean, deviation, self._generator("unlearn", server_round))
        return _added(sent, noised, clients if summed else 1)

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
        metrics = MetricRecord({weight_key: 1, message_keys.PARTITION_ID: -1})
        ids = {"run_id": 0, "message_id": "", "src_node_id": 0, "dst_node_id": 0, "reply_to_message_id": ""}
        about = Metadata(**ids, group_id="", created_at=0.0, ttl=math.inf, message_type=message_keys.TRAIN)
        return make_message(about, RecordDict({arrays_key: arrays, message_keys.METRICS: metrics}))

    def _tell(self, kind: str, server_round: int, clients: int, population: int | None) -> None:
        if self._on_release is not None:
            z, norm = self.noise_multiplier, self.clipping_norm
            self._on_release(Release(kind, server_round, clients, population, z, norm))

    def _generator(self, kind: str, server_round: int) -> np.random.Generator:
        if self._seed is None:
            return np.random.default_rng(secrets.randbits(256))
        return np.random.default_rng([self._seed, server_round, ("train", "unlearn").index(kind)])


def clipped_mean(
    sent: ArrayRecord, models: Sequence[ArrayRecord], clients: int, norm: float
) -> tuple[dict[str, NDArray[np.float64]], int]:
    """Mean of clipped client updates, (1/m) Σ Δ_k min(1, C / ‖Δ_k‖₂) with Δ_k = φ_k − φ (McMahan et al., 2018).

    Parameters
    ----------
    sent : ArrayRecord
        The global model φ from which the clients started.
    models : sequence of ArrayRecord
        The models φ_k that came back, with the names and shapes of `sent`.
    clients : int, at least 1
        How many clients m were addressed; one without a model counts as a zero.
    norm : float above 0
        The clipping norm C, over all arrays together.

    Returns
    -------
    mean : dict of arrays, float64
        By the names of `sent`, in its shapes.
    shortened : int
        How many updates were longer than C.
    """
    base = {name: view(array).astype(np.float64) for name, array in sent.items()}
    mean = {name: np.zeros(old.shape) for name, old in base.items()}
    shortened = 0
    for model in models:
        update = {name: view(model[name]).astype(np.float64) - old for name, old in base.items()}
        with np.errstate(over="ignore"):
            lengths = [float(np.linalg.norm(values.reshape(-1))) for values in update.values()]
        length = math.sqrt(sum(part * part for part in lengths))
        factor = norm / length if length > norm else 1.0
        shortened += factor < 1
        for name, values in update.items():
            mean[name] += values * factor * (1 / clients)
    return mean, shortened


def _moved(norm: float, clipped_fraction: float) -> float:
    """C exp(−η (b̃ − γ)), Andrew et al. 2021, for the share b̃ of updates that were not clipped."""
    return norm * math.exp(RATE * (clipped_fraction - TARGET_QUANTILE))


def _noised(
    mean: dict[str, NDArray[np.float64]], deviation: float, rng: np.random.Generator
) -> dict[str, NDArray[np.float64]]:
    """Each number of `mean` with Gaussian noise of its own."""
    return {name: values + rng.normal(0.0, deviation, values.shape) for name, values in mean.items()}


def _added(sent: ArrayRecord, update: dict[str, NDArray[np.float64]], times: int = 1) -> ArrayRecord:
    """φ + `times` · update, in φ's dtype."""
    result = {}
    for name, array in sent.items():
        old = view(array)
        with np.errstate(over="ignore"):
            result[name] = Array((old.astype(np.float64) + times * update[name]).astype(old.dtype))
    return ArrayRecord(result)
