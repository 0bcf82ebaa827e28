"""Targeted unlearning on a client: the operator U of FedTU (Oblivionis eq. 6)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clients import losses
from clients.batch_quantities import (
    NEEDS_RECEIVED,
    NEEDS_STATES,
    RETAIN_LOSSES,
    BatchQuantities,
    ReferenceModels,
    References,
    check_quantities,
    expanded,
    log_likelihoods,
)
from clients.calibrated_forgetting import Target, record_nll
from clients.entropy import Entropy
from clients.flat_parameters import FlatParameters
from clients.gradient_rectification import Rectifier
from clients.optimisation import Ball, Prox, TrainSettings, Updater, local_work
from clients.reference_models import Received, incompetent_teacher
from clients.training import batches
from evaluation.engine.models import decoder_layers
from evaluation.engine.sequences import TokenSequence

FULL_RATE_GAP = 2.0
"""Largest gap of a record, nats per token, from which on a method with a target uses its full learning rate."""
LEAST_EPOCHS = 3
"""Fewest epochs of such a method, however near its records are, unless fewer are configured."""


@dataclass(frozen=True, slots=True)
class UnlearnReport:
    """Result of an unlearning.

    Attributes
    ----------
    num_examples, num_retain : int
        Forget records, and retain records available.
    retain_used : bool
        Whether retain records took part.
    steps : int
        Updates.
    first_loss, last_loss : float
        Of the first and of the last update.
    first_forget_nll, last_forget_nll : float
        Mean over the forget records of an update, before it, nats per answer token; the last one that of all of them at
        the end where the method trains a copy (`losses.Method.finish_in`).
    first_forget_entropy, last_forget_entropy : float
        The same of the entropy; NaN where the method did not request it.
    stopped : bool
        Whether `forget_nll_limit` ended it early.
    seconds : float
    first_gap, last_gap : float
        Mean distance of the records' negative log-likelihood from their target, before the first update and after the
        last one, nats per token; NaN without a target.
    """

    num_examples: int
    num_retain: int
    retain_used: bool
    steps: int
    first_loss: float
    last_loss: float
    first_forget_nll: float
    last_forget_nll: float
    first_forget_entropy: float
    last_forget_entropy: float
    stopped: bool
    seconds: float
    first_gap: float = math.nan
    last_gap: float = math.nan


@dataclass(frozen=True, slots=True)
class UnlearnOptions:
    """Options of an unlearning that go with any method; by default none.

    Attributes
    ----------
    prox : Prox, optional
        FedProx's term.
    ball : Ball, optional
        After each update the parameters are projected to it (PGA).
    entropy : Entropy
        Adds its term to the loss; with a weight for them, retain records take part whatever the method.
    retain_loss : {"nll", "kl"}
        Retain term of a loss that leaves it open: negative log-likelihood, or KL(received‖model).
    forget_nll_limit : float above 0, optional
        Stop before the update at which the forget records' mean negative log-likelihood exceeds it (gradient ascent is
        unbounded), also before the first one: then nothing changes. No limit where the method does not request
        likelihoods of forget records.
    target : Target, optional
        Level up to which each record is forgotten. A method that requests it (`forget_target_nll`) does nothing where
        all records are there already, and its learning rate and its epochs are scaled by the largest gap over
        `FULL_RATE_GAP`, if that is less than 1; the epochs to no fewer than `LEAST_EPOCHS`. Under any other method each
        epoch takes the records that are not there: of those known too well the method's loss, while those less likely
        than their target are pulled back, by their squared distance from it.
    rectify : float in (0, 1], optional
        γ of GRU (`clients.gradient_rectification.Rectifier`); None: no rectification. The gradient of each update that
        has forget records is projected against that of the mean negative log-likelihood of as many retain records,
        before clipping and the optimiser, so it takes a second pass.

    Raises
    ------
    ValueError
        For values out of range.
    """

    prox: Prox | None = None
    ball: Ball | None = None
    entropy: Entropy = field(default_factory=Entropy)
    retain_loss: str = "nll"
    forget_nll_limit: float | None = None
    target: Target | None = None
    rectify: float | None = None

    def __post_init__(self) -> None:
        if self.rectify is not None and not 0 < self.rectify <= 1:
            raise ValueError(f"rectify must lie in (0, 1] or be None, got {self.rectify}")
        if self.forget_nll_limit is not None and not self.forget_nll_limit > 0:
            raise ValueError(f"forget_nll_limit must be positive or None, got {self.forget_nll_limit}")
        if self.retain_loss not in RETAIN_LOSSES:
            raise ValueError(f"unknown retain_loss {self.retain_loss!r}, expected one of {', '.join(RETAIN_LOSSES)}")

    def stop(self, nll: float) -> bool:
        """Whether the forget records' mean negative log-likelihood exceeds the limit, so that no update follows."""
        return self.forget_nll_limit is not None and nll > self.forget_nll_limit


def unlearn(
    model: nn.Module,
    flat: FlatParameters,
    forget: Sequence[TokenSequence],
    retain: Sequence[TokenSequence],
    method: str,
    parameters: Mapping[str, Any],
    settings: TrainSettings,
    *,
    seed: int,
    options: UnlearnOptions | None = None,
    on_step: Callable[[int, float], None] | None = None,
    alternatives: Sequence[Sequence[TokenSequence]] = (),
) -> UnlearnReport:
    """Unlearn `forget` with a loss, preserving `retain` (Oblivionis eq. 6).

    An epoch is one pass over the forget set. Each batch of it is paired with as many retain records, sampled without
    replacement from a reshuffled cycle. What the loss needs of the model as received comes from a copy of the trained
    parameters, not from a second model. Without retain records (or with alpha = 0) an optional retain term is absent,
    and the report says so. With a retain term, half of `settings.batch_size` in a forward pass are retain records: the
    same memory as training, the same gradient as all at once; likewise with alternatives.

    Parameters
    ----------
    model : nn.Module
    flat : FlatParameters
    forget, retain : sequence of TokenSequence
        At least one forget record.
    method : str
        A method of `clients.losses`.
    parameters : mapping
        Its hyperparameters; those that are missing have their defaults.
    settings : TrainSettings
    seed : int
    options : UnlearnOptions, optional
    on_step : callable (update from 1, loss), optional
        Called after each update.
    alternatives : sequence of sequences of TokenSequence
        For methods that need them: of each forget record, in order, n other answers to its question; epoch e, from 0,
        takes the (e mod n)th.

    Returns
    -------
    UnlearnReport

    Raises
    ------
    ValueError
        Without forget records; for an unknown method or hyperparameter; without retain records, alternatives or a
        target that the method needs; where gradients are to be rectified and there are no retain records, or they are
        scaled (float16 on CUDA); for options that depend on what the updates do to forget records where the method
        trains a copy.
    NonFiniteError
        When the loss or a parameter is not finite.
    """
    if not forget:
        raise ValueError("no sequence to forget")
    options = options or UnlearnOptions()
    plan = _Plan.of(losses.get(method), parameters, settings.epochs, options, bool(retain))
    if plan.loss.needs_alternatives and not (len(alternatives) == len(forget) and all(alternatives)):
        raise ValueError(f"{method} needs at least one alternative answer to the question of each forget record")
    if options.rectify is not None and flat.device.type == "cuda" and flat.compute_dtype == torch.float16:
        raise ValueError("gradients in float16 are scaled, and their products overflow: take bfloat16")
    _check_copy(plan.loss, options)
    start = time.perf_counter()
    size = settings.records_per_update
    history: list[_Measured] = []
    stopped = False
    with local_work(model, flat, seed, gradient_checkpointing=settings.gradient_checkpointing):
        aim = Aim.of(model, forget, plan, settings, options)
        settings, plan = aim.slowed(settings), aim.shortened(plan)
        work = list(plan.work(len(forget), len(retain), size, seed))
        records = _Records(forget, retain, alternatives if plan.loss.needs_alternatives else ())
        gradient, moving = _prepare(model, flat, records, plan, work, settings, options)
        updater = Updater(flat, settings, len(work), options.prox, moving, options.ball)
        rectifier = None if options.rectify is None else Rectifier(options.rectify, moving)
        values, finish = plan.values, plan.loss.finish_in
        received = None if finish is None else flat.vector.detach().clone()
        for task in work:
            part = aim.part(task)
            if part is None:
                continue
            measured = gradient.add(part, aim.over_forgotten(task), values, updater)
            stopped = options.stop(measured.nll)
            if stopped:
                flat.zero_grad()
                history = history or [measured]
                break
            history.append(measured)
            if rectifier is not None and task.update.unlearns:
                gradient.rectify(part.partners or task.partners, rectifier, flat, updater)
            updater.step()
            values = plan.loss.advanced(task.epoch, measured.means, values)
            if on_step is not None:
                on_step(updater.steps, measured.loss)
        updater.finish()
        ends = _ends(history)
        if finish is not None:
            with torch.no_grad():
                flat.vector.copy_(finish(received, flat.vector.detach(), **values))
            updater.finish()
            ends["last_forget_nll"] = record_nll(model, forget, settings.batch_size).mean().item()
        gaps = aim.first_and_last(moved=updater.steps > 0)
    seconds = time.perf_counter() - start
    return UnlearnReport(
        num_examples=len(forget),
        num_retain=len(retain),
        retain_used=plan.paired,
        steps=updater.steps,
        **ends,
        stopped=stopped,
        seconds=seconds,
        first_gap=gaps[0],
        last_gap=gaps[1],
    )


def _check_copy(loss: losses.Method, options: UnlearnOptions) -> None:
    """Raise ValueError for options that depend on what updates do to forget records where these are made on a copy."""
    told = [name for name in ("ball", "forget_nll_limit", "target", "rectify") if getattr(options, name) is not None]
    told += ["entropy"] if options.entropy.forget or options.entropy.retain else []
    if loss.finish_in is not None and told:
        raise ValueError(f"{loss.name} trains a copy of the model and takes no {told[0]}")


@dataclass(frozen=True, slots=True)
class Update:
    """One kind of update.

    Attributes
    ----------
    names : tuple of str
        The quantities of the loss.
    wanted : frozenset of str
        All quantities to compute.
    forget, retain, alternatives : bool
        Which records take part.
    regularised : bool
        Whether the entropy term is added.
    """

    names: tuple[str, ...]
    wanted: frozenset[str]
    forget: bool
    retain: bool
    alternatives: bool
    regularised: bool

    @classmethod
    def of(
        cls, loss: losses.Method, names: tuple[str, ...], values: Mapping[str, Any], entropy: Entropy, available: bool
    ) -> Update:
        """The update of a loss with these quantities.

        Parameters
        ----------
        loss : Method
        names : tuple of str
            Quantities of the phase.
        values : mapping
            Hyperparameters.
        entropy : Entropy
        available : bool
            Whether there are retain records.

        Returns
        -------
        Update

        Raises
        ------
        ValueError
            If the update needs retain records and there are none, or for an unknown quantity.
        """
        check_quantities(loss.name, names)
        of_retain = [name for name in names if name.startswith("retain")]
        required = bool(of_retain) and loss.needs_retain
        if required and not available:
            raise ValueError(f"{loss.name} needs retain records and the client has none")
        if not required and (not available or values.get("alpha") == 0):
            names = tuple(name for name in names if name not in of_retain)
        regularised = entropy.forget != 0 or (entropy.retain != 0 and available)
        retain = any(name in of_retain for name in names) or (entropy.retain != 0 and available)
        more = {"forget_entropy", "retain_entropy"} if retain else {"forget_entropy"}
        return cls(
            names,
            frozenset(names) | (more if regularised else set()),
            regularised or any(name.startswith("forget") for name in names),
            retain,
            any(name.startswith("alternative") for name in names),
            regularised,
        )

    def per_pass(self, batch_size: int) -> int:
        """Forget records in a pass of `batch_size` sequences; a retain record and another answer may go with each."""
        return max(1, batch_size // max(1, self.forget + self.retain + self.alternatives))

    @property
    def unlearns(self) -> bool:
        """Whether forget records take part, or other answers to their questions."""
        return self.forget or self.alternatives

    @property
    def tells_nll(self) -> bool:
        """Whether the likelihoods of the forget records are computed."""
        return any(name.startswith("forget") and name not in NEEDS_STATES for name in self.wanted)


class Task(NamedTuple):
    """One update.

    Attributes
    ----------
    epoch : int, from 0
    update : Update
    chosen : list of int
        Numbers of its forget records.
    partners : list of int
        Numbers of as many retain records, or none.
    """

    epoch: int
    update: Update
    chosen: list[int]
    partners: list[int]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A method with its hyperparameters, and the updates that each epoch makes of every batch.

    With `rectified` their gradients are projected against those of retain records.
    """

    loss: losses.Method
    values: Mapping[str, Any]
    epochs: tuple[tuple[Update, ...], ...]
    rectified: bool = False

    @classmethod
    def of(
        cls, loss: losses.Method, parameters: Mapping[str, Any], epochs: int, options: UnlearnOptions, available: bool
    ) -> _Plan:
        """The plan of an unlearning.

        Raises ValueError for an unknown hyperparameter, as `Update.of`, and if gradients are to be rectified and no
        retain record is available or no update has forget records.
        """
        values = loss.parameters(parameters)
        kinds = tuple(
            tuple(Update.of(loss, names, values, options.entropy, available) for names in loss.phases(epoch, values))
            for epoch in range(epochs)
        )
        rectified = options.rectify is not None
        if rectified and not available:
            raise ValueError(f"{loss.name}: to rectify its gradients takes retain records, and the client has none")
        if rectified and not any(update.unlearns for updates in kinds for update in updates):
            raise ValueError(f"{loss.name} has no gradient of forget records to rectify")
        return cls(loss, values, kinds, rectified)

    @property
    def paired(self) -> bool:
        """Whether retain records take part."""
        return self.rectified or any(update.retain for updates in self.epochs for update in updates)

    def work(self, forget: int, retain: int, size: int, seed: int) -> Iterator[Task]:
        """All updates in order, each of at most `size` forget records."""
        order = torch.Generator().manual_seed(seed)
        cycle = _Cycle(retain, torch.Generator().manual_seed(seed + 1))
        for epoch, updates in enumerate(self.epochs):
            for chosen in batches(forget, size, order):
                partners = cycle.draw(len(chosen)) if self.paired else []
                for update in updates:
                    yield Task(epoch, update, chosen, partners)


@dataclass(slots=True)
class Aim:
    """Which records are not at their target yet; without a target all of them, always.

    Attributes
    ----------
    model : nn.Module
    forget : sequence of n TokenSequence
    batch_size : int
    target : Target or None
    own : bool
        Whether the method itself requests the target.
    first, gaps : tensor (n,) or None
        By how much the records exceed their targets, before the first update, and at the beginning of epoch `epoch`.
    epoch : int
    """

    model: nn.Module
    forget: Sequence[TokenSequence]
    batch_size: int
    target: Target | None
    own: bool
    first: Tensor | None = None
    gaps: Tensor | None = None
    epoch: int = 0

    @classmethod
    def of(
        cls,
        model: nn.Module,
        forget: Sequence[TokenSequence],
        plan: _Plan,
        settings: TrainSettings,
        options: UnlearnOptions,
    ) -> Aim:
        """Measure the gaps before the first update.

        Returns
        -------
        Aim

        Raises
        ------
        ValueError
            Where the method requests a target and there is none, or one of other records.
        """
        own, target = "forget_target_nll" in plan.loss.names, options.target
        if own and target is None:
            raise ValueError(f"{plan.loss.name} forgets up to a target, and none was estimated")
        if target is not None and len(target.nll) != len(forget):
            raise ValueError("the target is of other records than those to forget")
        aim = cls(model, forget, settings.batch_size, target, own)
        known = None if target is None or target.present is None else target.present - target.nll
        aim.first = aim.gaps = aim._gaps() if known is None else known
        return aim

    def slowed(self, settings: TrainSettings) -> TrainSettings:
        """Settings with a learning rate scaled by the remaining gap: Adam's steps do not shrink near the target."""
        return replace(settings, learning_rate=settings.learning_rate * self._share())

    def shortened(self, plan: _Plan) -> _Plan:
        """The plan with its number of epochs scaled by the gap, at least `LEAST_EPOCHS`."""
        epochs = max(math.ceil(self._share() * len(plan.epochs)), LEAST_EPOCHS)
        return replace(plan, epochs=plan.epochs[:epochs])

    def _share(self) -> float:
        """The largest gap over `FULL_RATE_GAP`, in [0, 1]; 1 where the method requests no target."""
        if not self.own or self.first is None:
            return 1.0
        return min(1.0, self.first.abs().max().item() / FULL_RATE_GAP)

    def part(self, task: Task) -> Task | None:
        """The task without records at their target and those to be pulled back; None if it has none left.

        A method that requests the target gets all of them, unless each one was there before the first update.
        """
        if self.target is None or self.gaps is None:
            return task
        if not self.own and task.epoch != self.epoch:
            self.gaps, self.epoch = self._gaps(), task.epoch
            assert self.gaps is not None
        away = self.gaps.abs() > self.target.tolerance
        if self.own:
            return task if away.any() else None
        if not away[task.chosen].any():
            return None
        kept = [k for k, i in enumerate(task.chosen) if away[i] and self.gaps[i] < 0]
        partners = [task.partners[k] for k in kept] if task.partners else []
        return task._replace(chosen=[task.chosen[k] for k in kept], partners=partners)

    def over_forgotten(self, task: Task) -> list[int]:
        """Numbers of the task's records that are less likely than their target, and are to become likelier."""
        if self.target is None or self.gaps is None or self.own or not task.update.forget:
            return []
        return [i for i in task.chosen if self.gaps[i] > self.target.tolerance]

    def first_and_last(self, *, moved: bool) -> tuple[float, float]:
        """Mean distance from the target before the first update, and now.

        Parameters
        ----------
        moved : bool
            Whether there was an update.

        Returns
        -------
        first, last : float
            Nats per token; NaN without a target.
        """
        last = self._gaps() if moved else self.first
        if self.first is None or last is None:
            return math.nan, math.nan
        return self.first.abs().mean().item(), last.abs().mean().item()

    def _gaps(self) -> Tensor | None:
        """(n,) by how much each record's mean negative log-likelihood exceeds its target's, nats per token."""
        if self.target is None:
            return None
        found = record_nll(self.model, self.forget, self.batch_size)
        return found - self.target.nll.to(found)


@dataclass(slots=True)
class _Measured:
    """Loss of an update, mean negative log-likelihood and entropy of its forget records; NaN for what is not computed.

    means: where the method has a state, the mean of each quantity over the update's records.
    """

    loss: float
    nll: float
    entropy: float
    means: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, update: Update) -> _Measured:
        """Nothing measured yet."""
        return cls(0.0, 0.0 if update.tells_nll else math.nan, 0.0 if "forget_entropy" in update.wanted else math.nan)

    def add(self, loss: float, step: BatchQuantities, share: float) -> None:
        """Add the results of a pass over a `share` of the update's records."""
        self.loss += loss
        if not math.isnan(self.nll):
            self.nll += step.forget_nll.mean().item() * share
        if not math.isnan(self.entropy):
            self.entropy += step.forget_entropy.mean().item() * share

    def note(self, quantities: Mapping[str, Tensor | list[Tensor] | None], share: float) -> None:
        """Add to the means those of a `share` of the records."""
        for name, value in quantities.items():
            if isinstance(value, Tensor) and value.ndim == 1:
                self.means[name] = self.means.get(name, 0.0) + value.mean().item() * share


class _Records(NamedTuple):
    """The records of an unlearning; `alternatives`: other answers to each forget record's question, or none."""

    forget: Sequence[TokenSequence]
    retain: Sequence[TokenSequence]
    alternatives: Sequence[Sequence[TokenSequence]]

    def alternative(self, number: int, epoch: int) -> int:
        """Which of the alternatives of a forget record an epoch takes."""
        return epoch % len(self.alternatives[number])


@dataclass(frozen=True, slots=True)
class _Received:
    """Likelihoods of the records under the model as received, by their numbers; None: not requested, NaN: not needed.

    forget (n,): log-likelihoods; alternatives: those of each record's alternatives; retain (m,): mean negative ones.
    """

    forget: Tensor | None
    alternatives: tuple[Tensor, ...] | None
    retain: Tensor | None

    @classmethod
    def of(
        cls, model: nn.Module, records: _Records, names: Collection[str], work: Sequence[Task], batch_size: int
    ) -> _Received:
        """Compute with `model`, still the one received, what the quantities `names` of the tasks `work` need."""
        forget = alternatives = retain = None
        if "forget_reference_log_p" in names:
            forget = log_likelihoods(model, records.forget, batch_size)
        if "alternative_reference_log_p" in names:
            epochs = work[-1].epoch + 1
            given = [group[:epochs] for group in records.alternatives]
            found = log_likelihoods(model, [answer for group in given for answer in group], batch_size)
            alternatives = found.split([len(group) for group in given])
        if "retain_reference_nll" in names:
            drawn = sorted({partner for task in work if task.update.retain for partner in task.partners})
            found = log_likelihoods(model, [records.retain[i] for i in drawn], batch_size)
            lengths = found.new_tensor([len(records.retain[i].answer) for i in drawn])
            retain = found.new_full((len(records.retain),), math.nan)
            retain[drawn] = -found / lengths
        return cls(forget, alternatives, retain)

    def references(self, part: Sequence[int], others: Sequence[int], partners: Sequence[int]) -> References:
        """References of forget records `part`, their alternatives `others`, and retain records `partners`."""
        replaced = None
        if self.alternatives is not None and others:
            replaced = torch.stack([self.alternatives[i][k] for i, k in zip(part, others, strict=True)])
        return References(
            None if self.forget is None else self.forget[part],
            replaced,
            None if self.retain is None else self.retain[partners],
        )


@dataclass(frozen=True, slots=True)
class _Gradient:
    """Computes the gradients of updates on the records of one unlearning."""

    model: nn.Module
    records: _Records
    loss: losses.Method
    batch_size: int
    entropy: Entropy
    around: ReferenceModels
    received: _Received
    target: Target | None

    def add(self, task: Task, away: list[int], values: Mapping[str, Any], updater: Updater) -> _Measured:
        """Add the gradient of one update by the hyperparameters `values`, `batch_size` sequences in a pass.

        away: numbers of further forget records, which are to become likelier.
        """
        update, total = task.update, len(task.chosen) + len(away)
        measured = _Measured.of(update)
        if away:
            self._pull_back(away, total, measured, updater)
        per_pass = update.per_pass(self.batch_size)
        for first in range(0, len(task.chosen), per_pass):
            part = slice(first, first + per_pass)
            step = self._step(task, task.chosen[part], task.partners[part])
            given = step.quantities(update.names)
            value = self.loss.function(**given, **values)
            if update.regularised:
                value = value + self.entropy.term(step.forget_entropy, step.retain_entropy)
            share = len(task.chosen[part]) / total
            value = value * share
            updater.backward(value)
            measured.add(value.item(), step, share)
            if self.loss.advance_in is not None:
                measured.note(given, share)
        return measured

    def rectify(self, partners: Sequence[int], rectifier: Rectifier, flat: FlatParameters, updater: Updater) -> None:
        """Rectify the gradient of an update by that of the mean loss of the retain records `partners`."""
        unlearning = flat.grad.clone()
        flat.zero_grad()
        for first in range(0, len(partners), self.batch_size):
            part = partners[first : first + self.batch_size]
            loss = BatchQuantities(self.model, [], [self.records.retain[i] for i in part]).retain_nll
            assert loss is not None
            updater.backward(loss.sum() / len(partners))
        flat.grad.copy_(rectifier.rectify(unlearning, flat.grad))

    def _pull_back(self, away: list[int], total: int, measured: _Measured, updater: Updater) -> None:
        """Add the gradient that makes likelier the records below their target; `total` is the update's."""
        assert self.target is not None
        for first in range(0, len(away), self.batch_size):
            part = away[first : first + self.batch_size]
            wanted = set() if math.isnan(measured.entropy) else {"forget_entropy"}
            step = BatchQuantities(self.model, [self.records.forget[i] for i in part], [], wanted=wanted)
            share = len(part) / total
            value = (step.forget_nll - self.target.nll[part].to(step.forget_nll)).square().mean() * share
            updater.backward(value)
            measured.add(value.item(), step, share)

    def _targets(self, references: References, chosen: list[int]) -> References:
        """`references` with the targets of the chosen forget records."""
        if self.target is None:
            return references
        lowered = None if self.target.lowered is None else [self.target.lowered[i] for i in chosen]
        rows = None if self.target.rows is None else [self.target.rows[i] for i in chosen]
        return references._replace(
            forget_target_nll=self.target.nll[chosen], forget_target_lowered=lowered, forget_target_rows=rows
        )

    def _step(self, task: Task, chosen: list[int], partners: list[int]) -> BatchQuantities:
        """The quantities of one pass."""
        update, records = task.update, self.records
        others = [records.alternative(i, task.epoch) for i in chosen] if update.alternatives else []
        return BatchQuantities(
            self.model,
            [records.forget[i] for i in chosen] if update.forget else [],
            [records.retain[i] for i in partners] if update.retain else [],
            alternatives=[records.alternatives[i][k] for i, k in zip(chosen, others, strict=True)] if others else [],
            wanted=update.wanted,
            references=self._targets(self.received.references(chosen, others, partners), chosen),
            around=self.around,
        )


def _prepare(
    model: nn.Module,
    flat: FlatParameters,
    records: _Records,
    plan: _Plan,
    work: Sequence[Task],
    settings: TrainSettings,
    options: UnlearnOptions,
) -> tuple[_Gradient, Tensor | None]:
    """The gradient computation, with references from the model as received, and which numbers of the vector move."""
    loss, values = plan.loss, plan.values
    kinds = (update for updates in plan.epochs for update in updates)
    wanted = expanded({name for update in kinds for name in update.wanted}, options.retain_loss)
    depth, moving = moved_layers(model, flat, loss, values)
    around = ReferenceModels(
        received=Received(model, flat) if wanted & NEEDS_RECEIVED else None,
        teacher=incompetent_teacher(model, values["teacher_seed"]) if "forget_teacher_kl" in wanted else None,
        temperature=values.get("temperature", 1.0),
        strength=values.get("strength", 0.0),
        layer=depth,
        retain_loss=options.retain_loss,
        base=None if options.target is None else Received(model, flat, options.target.base),
        sharpness=1.0 if options.target is None else options.target.sharpness,
    )
    received = _Received.of(model, records, wanted, work, settings.batch_size)
    parts = (options.entropy, around, received, options.target)
    return _Gradient(model, records, loss, settings.batch_size, *parts), moving


def moved_layers(
    model: nn.Module, flat: FlatParameters, loss: losses.Method, values: Mapping[str, Any]
) -> tuple[int, Tensor | None]:
    """Decoder layer whose states a loss reads, and which parameters move for it.

    Parameters
    ----------
    model : nn.Module
    flat : FlatParameters
    loss : Method
    values : mapping
        Hyperparameters.

    Returns
    -------
    layer : int
        From 0.
    moving : tensor (size,), bool, or None
        0 and None for a loss that reads no layer.

    Raises
    ------
    ValueError
        Where the model has no such layer, or nothing in the layers that move is trained.
    """
    if loss.layers_in is None:
        return 0, None
    name, modules = decoder_layers(model)
    layers = loss.layers_in(len(modules), **values)
    moving = flat.mask([f".{name}.{layer}." for layer in layers])
    if not moving.any():
        raise ValueError(f"{loss.name}: nothing is trained in the layers {layers[0]} to {layers[-1]}")
    return layers[-1], moving


def _ends(history: Sequence[_Measured]) -> dict[str, float]:
    """First and last loss, likelihood and entropy of the updates, NaN where none has it."""
    ends = {}
    for name, key in (("loss", "loss"), ("nll", "forget_nll"), ("entropy", "forget_entropy")):
        told = [v for m in history if not math.isnan(v := getattr(m, name))] or [math.nan]
        ends |= {f"first_{key}": told[0], f"last_{key}": told[-1]}
    return ends


class _Cycle:
    """Endless sampling from range(count) without replacement, reshuffled when used up."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self._count, self._generator = count, generator
        self._left: list[int] = []

    def draw(self, number: int) -> list[int]:
        """The next `number` of them."""
        drawn: list[int] = []
        while len(drawn) < number:
            if not self._left:
                self._left = torch.randperm(self._count, generator=self._generator).tolist()
            take = number - len(drawn)
            drawn += self._left[:take]
            self._left = self._left[take:]
        return drawn
