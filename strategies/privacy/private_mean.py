"""Client-level differential privacy on a trusted server: clipped updates and Gaussian noise on their mean.

The noised mean is formed before any server step.
"""

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
from strategies.secure.agreed_parameters import Terms

TARGET_QUANTILE = 0.5
"""Adaptive clipping: target share of updates within the clipping norm, γ."""
RATE = 0.2
"""Adaptive clipping: learning rate of the norm, η."""


@dataclass(frozen=True, slots=True)
class Release:
    """One noised sum of clipped updates that leaves the trusted server, for privacy accounting.

    Attributes
    ----------
    kind : str
        `train` or `unlearn`, as `Listener.exchange_started` names exchanges.
    server_round : int
    clients : int
        Clients m that were addressed.
    population : int or None
        Of how many these were sampled without replacement; None where nobody was sampled.
    noise_multiplier, clipping_norm : float
        z and C: the standard deviation of the noise on the sum is z·C in each number.
    """

    kind: str
    server_round: int
    clients: int
    population: int | None
    noise_multiplier: float
    clipping_norm: float


class PrivateMean:
    """Differentially private mean of client updates: (1/m) Σ clip(Δ_k, C) + N(0, (z·C/m)² I) (McMahan et al., 2018).

    Every client counts alike, m is how many were addressed, and one that did not answer counts as zero. Whatever
    follows, such as FedAdam's step, is post-processing. (Flower's wrappers add the noise to the result of the wrapped
    strategy, which covers no step but the plain mean.)

    Parameters
    ----------
    noise_multiplier : float, at least 0
        z, relative to C; replacing one client moves the sum by 2C at most.
    clipping_norm : float above 0
        C, the L2 norm to which updates are clipped.
    adaptive : bool
        C follows the median length of the updates (Andrew et al. 2021). Part of the noise then goes to the count of
        clipped updates, such that z still holds for both together.
    seed : int, optional
        Reproducible noise, for simulations and tests; None: 256 fresh random bits from the operating system per
        release.
    on_release : callable (Release), optional
        Called before anything is released.

    Raises
    ------
    ValueError
        If a value is out of range.
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
        """Seed of the client sampling: `public` where the noise has a seed, otherwise secret random bits.

        Amplification by sampling holds only against those who do not know who was sampled.
        """
        return public if self._seed is not None else secrets.randbits(256)

    def train(
        self, server_round: int, sent: ArrayRecord, models: Sequence[ArrayRecord], *, clients: int, population: int
    ) -> ArrayRecord:
        """Private release of a round of training: φ + the private mean of the updates φ_k − φ.

        With `adaptive` the clipping norm moves afterwards.

        Parameters
        ----------
        server_round : int
        sent : ArrayRecord
            φ, the model that the clients received.
        models : sequence of ArrayRecord
            φ_k of those that answered, with the names and shapes of `sent`.
        clients : int
            Clients that were addressed.
        population : int
            Clients that these were sampled from.

        Returns
        -------
        ArrayRecord
            In the shapes and dtypes of `sent`.

        Raises
        ------
        ValueError
            Unless len(models) <= clients <= population.
        """
        if not len(models) <= clients <= population:
            raise ValueError(f"{len(models)} models of {clients} clients out of {population}")
        self._report("train", server_round, clients, population)
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
        """Private release of an unlearning exchange: φ + Σ clip(φ_u − φ, C) + N(0, (z·C)² I).

        Clients that ask to forget are not sampled: nothing amplifies the privacy of this release.

        Parameters
        ----------
        server_round, sent, models
            As `train`.
        clients : int
            Clients that were addressed.
        summed : bool
            False: sum and noise are divided by `clients`.

        Returns
        -------
        ArrayRecord
            In the shapes and dtypes of `sent`.

        Raises
        ------
        ValueError
            For more models than clients.
        """
        if len(models) > clients:
            raise ValueError(f"{len(models)} models of {clients} clients")
        self._report("unlearn", server_round, clients, None)
        mean, _ = clipped_mean(sent, models, clients, self.clipping_norm)
        deviation = self.noise_multiplier * self.clipping_norm / clients
        noised = _noised(mean, deviation, self._generator("unlearn", server_round))
        return _added(sent, noised, clients if summed else 1)

    def shared(self, kind: str, terms: Terms, numbers: int) -> Terms:
        """Terms of a secure sum in which clients clip their updates and add the noise themselves.

        The shares of as many clients as the threshold make all of the noise; with more clients there is more. With
        `adaptive`, in training alone, the clients also add whether they were clipped.

        Parameters
        ----------
        kind : str
            Kind of exchange.
        terms : Terms
            Those of the secure sum without privacy.
        numbers : int
            Numbers in an update.

        Returns
        -------
        Terms

        Raises
        ------
        ValueError
            If the quantisation step is too coarse for the noise; see `share_sigma`.
        """
        z, norm = self.noise_multiplier, self.clipping_norm
        count = counting(z, norm, terms.clients) if self.adaptive and kind == "train" else 0.0
        clipped = replace(terms, norm=norm, clipping=max(min(terms.clipping, norm), count / 2), counting=count)
        share = share_sigma(z, joint_norm(norm, count), clipped.step, numbers + bool(count), terms.threshold)
        return replace(clipped, noise=share)

    def follow(self, halves: float, clients: int) -> None:
        """Adapt the clipping norm after a secure sum.

        Parameters
        ----------
        halves : float
            The noised sum over the clients of ½, or −½ where one was clipped.
        clients : int
            Clients in the sum.
        """
        self.clipping_norm = _moved(self.clipping_norm, 0.5 - halves / clients)

    def announce(self, kind: str, server_round: int, clients: int, population: int | None) -> None:
        """Report the release of a secure sum whose noise the clients add; arguments as in `Release`."""
        self._report(kind, server_round, clients, population)

    def reply(self, arrays: ArrayRecord, arrays_key: str, weight_key: str) -> Message:
        """The one reply that stands for all replies of an exchange, without the clients' metrics, which are not noised.

        Parameters
        ----------
        arrays : ArrayRecord
            The released model.
        arrays_key, weight_key : str
            Names of the records and of the weight, which is 1.

        Returns
        -------
        Message
        """
        metrics = MetricRecord({weight_key: 1, message_keys.PARTITION_ID: -1})
        ids = {"run_id": 0, "message_id": "", "src_node_id": 0, "dst_node_id": 0, "reply_to_message_id": ""}
        about = Metadata(**ids, group_id="", created_at=0.0, ttl=math.inf, message_type=message_keys.TRAIN)
        return make_message(about, RecordDict({arrays_key: arrays, message_keys.METRICS: metrics}))

    def _report(self, kind: str, server_round: int, clients: int, population: int | None) -> None:
        """Pass a release to `on_release`."""
        if self._on_release is not None:
            z, norm = self.noise_multiplier, self.clipping_norm
            self._on_release(Release(kind, server_round, clients, population, z, norm))

    def _generator(self, kind: str, server_round: int) -> np.random.Generator:
        """The noise generator of one release: by seed, kind and round, or fresh from the operating system."""
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
        Clients m that were addressed; one without a model counts as zero.
    norm : float above 0
        The clipping norm C, over all arrays together.

    Returns
    -------
    mean : dict of arrays, float64
        By the names of `sent`, in its shapes.
    shortened : int
        Updates that were longer than C.
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
    """Next clipping norm C exp(−η (b̃ − γ)) (Andrew et al. 2021) for the share b̃ of updates not clipped."""
    return norm * math.exp(RATE * (clipped_fraction - TARGET_QUANTILE))


def _noised(
    mean: dict[str, NDArray[np.float64]], deviation: float, rng: np.random.Generator
) -> dict[str, NDArray[np.float64]]:
    """`mean` with independent Gaussian noise of standard deviation `deviation` on each number."""
    return {name: values + rng.normal(0.0, deviation, values.shape) for name, values in mean.items()}


def _added(sent: ArrayRecord, update: dict[str, NDArray[np.float64]], times: int = 1) -> ArrayRecord:
    """φ + `times` · update, in φ's dtype."""
    result = {}
    for name, array in sent.items():
        old = view(array)
        with np.errstate(over="ignore"):
            result[name] = Array((old.astype(np.float64) + times * update[name]).astype(old.dtype))
    return ArrayRecord(result)
