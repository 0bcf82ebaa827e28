"""Local training and unlearning with record-level differential privacy: DP-SGD (Abadi et al. 2016)."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clients import losses
from clients.batch_quantities import (
    NEEDS_RECEIVED,
    BatchQuantities,
    ReferenceModels,
    References,
    check_quantities,
    expanded,
    log_likelihoods,
)
from clients.flat_parameters import FlatParameters
from clients.optimisation import Prox, TrainSettings, Updater, local_work
from clients.per_record_gradients import Losses, clipped_sum
from clients.reference_models import Received
from clients.training import TrainReport
from clients.unlearning_options import UnlearnOptions
from clients.unlearning_report import UnlearnReport
from evaluation.engine.forward import token_log_probs
from evaluation.engine.models import model_device
from evaluation.engine.packing import PackedBatch, sequence_nll
from evaluation.engine.sequences import TokenSequence


@dataclass(frozen=True, slots=True)
class Privacy:
    """Settings of DP-SGD: clipped per-record gradients, and Gaussian noise of standard deviation z·C on their sum.

    Attributes
    ----------
    noise_multiplier : float, at least 0
        z.
    clipping_norm : float above 0
        C, L2 norm to which each record's gradient is clipped.
    seed : int, optional
        Of record sampling and noise, for simulations and tests; None: fresh from the operating system, known to nobody.

    Raises
    ------
    ValueError
        For values out of range.
    """

    noise_multiplier: float
    clipping_norm: float
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(f"noise_multiplier must be finite and not negative, got {self.noise_multiplier}")
        if not 0 < self.clipping_norm < math.inf:
            raise ValueError(f"clipping_norm must be positive and finite, got {self.clipping_norm}")

    def generator(self, number: int, device: torch.device | str = "cpu") -> torch.Generator:
        """Random number generator `number` on `device`; each number gives an independent one."""
        seed = secrets.randbits(63) if self.seed is None else (self.seed + number) % 2**63
        return torch.Generator(device).manual_seed(seed)


def drawn(count: int, rate: float, generator: torch.Generator) -> list[int]:
    """Poisson sampling: numbers below `count`, each with probability `rate` by itself; possibly none.

    Parameters
    ----------
    count : int
    rate : float above 0
        From 1 on all are taken.
    generator : torch.Generator

    Returns
    -------
    list of int, ascending
    """
    if rate >= 1:
        return list(range(count))
    return (torch.rand(count, generator=generator, dtype=torch.float64) < rate).nonzero().flatten().tolist()


def train_privately(
    model: nn.Module,
    flat: FlatParameters,
    sequences: Sequence[TokenSequence],
    settings: TrainSettings,
    privacy: Privacy,
    *,
    prox: Prox | None = None,
    seed: int,
    on_step: Callable[[int], None] | None = None,
    exactly: bool = False,
) -> TrainReport:
    """As `clients.training.train`, by DP-SGD: each record's gradient is clipped, and noise added to their sum.

    The loss of a record is the mean cross-entropy over its answer tokens. With n records and b = min(n, records of an
    update), each of the epochs · ⌈n/b⌉ updates takes every record with probability b/n and divides by b. Noise comes
    before FedProx's term, `max_grad_norm` and the optimiser.

    Parameters
    ----------
    model, flat, sequences, settings, prox, seed
        As in `train`.
    privacy : Privacy
    on_step : callable (update from 1), optional
    exactly : bool
        As in `clipped_sum`.

    Returns
    -------
    TrainReport
        With NaN for the losses, which no noise would cover.

    Raises
    ------
    ValueError
        Without sequences, or for float16 on CUDA.
    NonFiniteError
        When a parameter is not finite.
    """
    if not sequences:
        raise ValueError("no sequence to train on")
    start = time.perf_counter()
    batch = min(len(sequences), settings.records_per_update)
    work = Work(model, flat, settings, privacy, seed, exactly)

    def gradient(generator: torch.Generator) -> None:
        chosen = drawn(len(sequences), batch / len(sequences), generator)
        for part in _parts(chosen, settings.batch_size):
            records = [sequences[i] for i in part]
            work.add(records, lambda some, records=records: _mean_losses(model, [records[i] for i in some]))

    steps = work.run(settings.epochs * -(-len(sequences) // batch), batch, gradient, prox, on_step)
    return TrainReport(len(sequences), steps, math.nan, math.nan, time.perf_counter() - start)


_HIDDEN = ("loss", "forget_nll", "forget_entropy")
"""What an unlearning reports of its first and last update, and no noise would cover."""


def unlearn_privately(
    model: nn.Module,
    flat: FlatParameters,
    forget: Sequence[TokenSequence],
    retain: Sequence[TokenSequence],
    method: str,
    parameters: Mapping[str, Any],
    settings: TrainSettings,
    privacy: Privacy,
    *,
    seed: int,
    options: UnlearnOptions | None = None,
    on_step: Callable[[int], None] | None = None,
    exactly: bool = False,
) -> UnlearnReport:
    """As `unlearn`, by DP-SGD, for losses that are a mean over forget records plus a mean over retain records.

    With b = min(forget records, records of an update) each update takes every forget record with probability b/n and,
    where the loss has a retain term, each retain record with probability min(1, b/m): as many of both, on average. Of
    fewer retain records, m < b, each term counts b/m times, so that the retain term is their mean here, too. The
    gradient of each record's own term is clipped after that, their sum with the noise divided by b: no record adds more
    than the clipping norm.

    Parameters
    ----------
    model, flat, forget, retain, method, parameters, settings, seed, options
        As in `unlearn`.
    privacy : Privacy
    on_step : callable (update from 1), optional
    exactly : bool
        As in `clipped_sum`.

    Returns
    -------
    UnlearnReport
        With NaN for losses, likelihoods and entropies, which no noise would cover.

    Raises
    ------
    ValueError
        As `unlearn`, and for a loss of another kind or options that are not clipped record by record.
    """
    if not forget:
        raise ValueError("no sequence to forget")
    options, start = options or UnlearnOptions(), time.perf_counter()
    loss = losses.get(method)
    check_private(loss, options)
    batch = min(len(forget), settings.records_per_update)
    work = Work(model, flat, settings, privacy, seed, exactly)
    terms = _Terms.of(model, flat, forget, retain, loss, parameters, options.retain_loss, settings.batch_size)
    updates = settings.epochs * -(-len(forget) // batch)
    steps = work.run(updates, batch, lambda draws: terms.add_gradient(work, batch, draws), options.prox, on_step)
    hidden = {f"{end}_{name}": math.nan for name in _HIDDEN for end in ("first", "last")}
    seconds = time.perf_counter() - start
    return UnlearnReport(len(forget), len(retain), terms.with_retain, steps, **hidden, stopped=False, seconds=seconds)


def check_private(loss: losses.Method, options: UnlearnOptions) -> None:
    """Check that every part of the gradient is about one record, so that it can be clipped.

    Parameters
    ----------
    loss : Method
    options : UnlearnOptions

    Raises
    ------
    ValueError
        For another loss, and for an option that goes by more than the gradients of single records.
    """
    if not loss.per_record:
        raise ValueError(f"{loss.name} is no sum of terms about one record each, which could be clipped")
    if option := options.more_than_a_loss():
        raise ValueError(f"{option} goes by more than clipped and noised gradients of single records")


@dataclass
class Work:
    """Updates of one exchange by DP-SGD.

    Attributes
    ----------
    model, flat, settings, privacy, seed, exactly
        As in `train_privately`.

    Raises
    ------
    ValueError
        For float16 on CUDA, whose scaled gradients cannot be clipped.
    """

    model: nn.Module
    flat: FlatParameters
    settings: TrainSettings
    privacy: Privacy
    seed: int
    exactly: bool

    def __post_init__(self) -> None:
        if self.flat.device.type == "cuda" and self.flat.compute_dtype == torch.float16:
            raise ValueError("gradients in float16 are scaled, and cannot be clipped to a norm: take bfloat16")

    def add(self, records: Sequence[TokenSequence], losses: Losses) -> None:
        """Add the clipped gradients of `records`; `losses` gives the loss of each of some of them."""
        exactly = self.exactly or self.settings.gradient_checkpointing  # under which hooks run twice
        clipped_sum(self.model, self.flat, records, losses, self.privacy.clipping_norm, exactly=exactly)

    def run(
        self,
        updates: int,
        batch: int,
        gradient: Callable[[torch.Generator], None],
        prox: Prox | None,
        on_step: Callable[[int], None] | None,
    ) -> int:
        """Make the updates.

        Parameters
        ----------
        updates : int
        batch : int
            What the noised sum is divided by.
        gradient : callable (torch.Generator)
            Samples records and leaves the sum of their clipped gradients in `flat.grad`.
        prox : Prox or None
        on_step : callable (update from 1) or None

        Returns
        -------
        int
            How many updates there were.
        """
        settings, privacy, grad = self.settings, self.privacy, self.flat.grad
        draws, noise = privacy.generator(0), privacy.generator(1, self.flat.device)
        updater = Updater(self.flat, settings, updates, prox)
        deviation = privacy.noise_multiplier * privacy.clipping_norm
        around = {"gradient_checkpointing": settings.gradient_checkpointing, "merged": False}
        with local_work(self.model, self.flat, self.seed, **around):
            for _ in range(updates):
                gradient(draws)
                added = torch.empty_like(grad).normal_(0.0, 1.0, generator=noise)
                grad.add_(added, alpha=deviation).div_(batch)
                updater.step()
                if on_step is not None:
                    on_step(updater.steps)
        updater.finish()
        return updater.steps


@dataclass(frozen=True)
class _Terms:
    """Terms of an unlearning loss, each about one record."""

    model: nn.Module
    forget: Sequence[TokenSequence]
    retain: Sequence[TokenSequence]
    loss: losses.Method
    values: Mapping[str, Any]
    around: ReferenceModels
    reference: Tensor | None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        flat: FlatParameters,
        forget: Sequence[TokenSequence],
        retain: Sequence[TokenSequence],
        loss: losses.Method,
        parameters: Mapping[str, Any],
        retain_loss: str,
        batch_size: int,
    ) -> _Terms:
        """The terms, with what they need of the model as received; ValueError for an unknown hyperparameter."""
        values = loss.parameters(parameters)
        check_quantities(loss.name, loss.names)
        wanted = expanded(loss.names, retain_loss) if retain else frozenset(loss.required)
        received = Received(model, flat) if wanted & NEEDS_RECEIVED else None
        needs_reference = "forget_reference_log_p" in loss.names
        reference = log_likelihoods(model, forget, batch_size) if needs_reference else None
        around = ReferenceModels(received=received, retain_loss=retain_loss)
        return cls(model, forget, retain, loss, values, around, reference)

    @property
    def with_retain(self) -> bool:
        """Whether retain records take part."""
        return bool(self.retain) and self.values.get("alpha") != 0 and bool(self._names("retain"))

    def add_gradient(self, work: Work, batch: int, draws: torch.Generator) -> None:
        """Add the clipped gradients of one update's records, about `batch` of each kind, sampled by `draws`."""
        size = work.settings.batch_size
        for part in _parts(drawn(len(self.forget), batch / len(self.forget), draws), size):
            work.add([self.forget[i] for i in part], lambda some, part=part: self.of_forget([part[i] for i in some]))
        if not self.with_retain:
            return
        weight = max(1.0, batch / len(self.retain))
        for part in _parts(drawn(len(self.retain), min(1.0, batch / len(self.retain)), draws), size):
            work.add(
                [self.retain[i] for i in part],
                lambda some, part=part: weight * self.of_retain([part[i] for i in some]),
            )

    def of_forget(self, numbers: Sequence[int]) -> Tensor:
        """(B,) the term of each of these forget records."""
        names = self._names("forget")
        references = References(None if self.reference is None else self.reference[list(numbers)])
        records = [self.forget[i] for i in numbers]
        given = self._given(
            BatchQuantities(self.model, records, [], references=references, wanted=names, around=self.around), names
        )
        return torch.stack([self.loss.function(**one, **self.values) for one in given])

    def of_retain(self, numbers: Sequence[int]) -> Tensor:
        """(B,) the loss with each of these retain records, and zeros for the forget quantities."""
        names = self._names("retain")
        records = [self.retain[i] for i in numbers]
        given = self._given(BatchQuantities(self.model, [], records, wanted=names, around=self.around), names)
        anything = {name: torch.zeros(1, device=model_device(self.model)) for name in self._names("forget")}
        return torch.stack([self.loss.function(**anything, **one, **self.values) for one in given])

    def _names(self, kind: str) -> list[str]:
        """Quantities of forget or of retain records."""
        return [name for name in self.loss.names if name.startswith(kind)]

    @staticmethod
    def _given(step: BatchQuantities, names: Sequence[str]) -> list[dict[str, Tensor]]:
        """The quantities `names` of each record of a batch, (1,) each."""
        values: dict[str, Any] = step.quantities(names)
        return [dict(zip(names, one, strict=True)) for one in zip(*(values[n].split(1) for n in names), strict=True)]


def _mean_losses(model: nn.Module, records: Sequence[TokenSequence]) -> Tensor:
    """(B,) mean cross-entropy over the answer tokens of each record."""
    batch = PackedBatch.build(records, model_device(model))
    return sequence_nll(token_log_probs(model, batch), batch)[1]


def _parts(chosen: Sequence[int], size: int) -> list[Sequence[int]]:
    """Consecutive parts of `size`."""
    return [chosen[start : start + size] for start in range(0, len(chosen), size)]
