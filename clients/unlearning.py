"""Targeted unlearning on a client: the operator U of FedTU (Oblivionis eq. 6).

An epoch is one pass over the forget set. Each batch of it is paired with as many retain records, sampled without
replacement from a reshuffled cycle (`clients.update_plan`). What the loss needs of the model as received comes from a
copy of the trained parameters, not from a second model (`clients.update_gradient`). With a retain term, half of
`settings.batch_size` in a forward pass are retain records: the same memory as training, the same gradient as all at
once; likewise with alternatives.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from clients import losses
from clients.calibrated_forgetting import record_nll
from clients.flat_parameters import FlatParameters
from clients.forgetting_target import ForgettingTarget
from clients.gradient_rectification import Rectifier
from clients.optimisation import TrainSettings, Updater, local_work
from clients.unlearning_options import UnlearnOptions
from clients.unlearning_report import UnlearnReport
from clients.update_gradient import Measurement, Records, UpdateGradient
from clients.update_plan import PlannedUpdate, UpdatePlan, moved_layers
from evaluation.engine.sequences import TokenSequence

__all__ = ["UnlearnOptions", "UnlearnReport", "unlearn"]


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

    Parameters
    ----------
    model, flat : nn.Module, FlatParameters
    forget, retain : sequence of TokenSequence
        At least one forget record. Without retain records, or with alpha = 0, an optional retain term is absent.
    method, parameters : str, mapping
        A method of `clients.losses`, and its hyperparameters; those that are missing have their defaults.
    settings, seed, options
        As in `clients.training.train` and `UnlearnOptions`.
    on_step : callable (update from 1, loss), optional
        Called after each update.
    alternatives : sequence of sequences of TokenSequence
        For methods that need them: n other answers to each forget record's question; epoch e takes the (e mod n)th.

    Returns
    -------
    UnlearnReport

    Raises
    ------
    ValueError
        Without what the method or an option needs, for an unknown method or hyperparameter, for options that the method
        cannot take, and for float16 on CUDA where gradients are to be rectified.
    NonFiniteError
        When the loss or a parameter is not finite.
    """
    start, options, records = time.perf_counter(), options or UnlearnOptions(), Records(forget, retain, alternatives)
    plan = _checked_plan(method, parameters, settings.epochs, records, options, flat)
    with local_work(model, flat, seed, gradient_checkpointing=settings.gradient_checkpointing):
        work = _Unlearning.begun(model, flat, records, plan, settings, options, seed)
        for planned, due in work.due_updates():
            if not work.add_gradient(planned, due):
                break
            work.rectify(planned, due)
            work.step(due)
            if on_step is not None:
                on_step(work.updater.steps, work.measured[-1].loss)
        work.finish()
    return work.report(time.perf_counter() - start)


def _checked_plan(
    method: str,
    parameters: Mapping[str, Any],
    epochs: int,
    records: Records,
    options: UnlearnOptions,
    flat: FlatParameters,
) -> UpdatePlan:
    """The plan of an unlearning; ValueError unless method, records and options go together."""
    if not records.forget:
        raise ValueError("no sequence to forget")
    if options.held > len(records.retain):
        raise ValueError(f"{options.held} of {len(records.retain)} retain records cannot be held")
    loss = losses.get(method)
    plan = UpdatePlan.of(loss, parameters, epochs, options, bool(records.retain))
    if loss.needs_alternatives and not (len(records.alternatives) == len(records.forget) and all(records.alternatives)):
        raise ValueError(f"{loss.name} needs at least one alternative answer to the question of each forget record")
    if options.rectify is not None and flat.device.type == "cuda" and flat.compute_dtype == torch.float16:
        raise ValueError("gradients in float16 are scaled, and their products overflow: take bfloat16")
    if loss.finish_in is not None and (option := options.more_than_a_loss()):
        raise ValueError(f"{loss.name} trains a copy of the model and takes no {option}")
    return plan


@dataclass(slots=True)
class _Unlearning:
    """One unlearning under way: what computes and applies its updates, and what they have measured so far."""

    flat: FlatParameters
    options: UnlearnOptions
    plan: UpdatePlan
    updates: Sequence[PlannedUpdate]
    target: ForgettingTarget
    gradient: UpdateGradient
    updater: Updater
    rectifier: Rectifier | None
    values: Mapping[str, Any]
    received: Tensor | None
    measured: list[Measurement] = field(default_factory=list)
    stopped: bool = False
    finished_nll: float = math.nan
    gaps: tuple[float, float] = (math.nan, math.nan)

    @classmethod
    def begun(
        cls,
        model: nn.Module,
        flat: FlatParameters,
        records: Records,
        plan: UpdatePlan,
        settings: TrainSettings,
        options: UnlearnOptions,
        seed: int,
    ) -> _Unlearning:
        """Scale the plan to how far the records are from their target, and compute what it needs of this model."""
        target = ForgettingTarget.of(model, records.forget, plan, settings, options)
        settings, plan = target.slowed(settings), target.shortened(plan)
        counts = len(records.forget), len(records.retain)
        updates = [] if target.met else list(plan.updates(*counts, settings.records_per_update, seed))
        layer, moving = moved_layers(model, flat, plan.loss, plan.values)
        gradient = UpdateGradient.of(model, flat, records, plan, updates, layer, settings.batch_size, options)
        updater = Updater(flat, settings, len(updates), options.prox, moving, options.ball)
        rectifier = None if options.rectify is None else Rectifier(options.rectify, moving)
        received = None if plan.loss.finish_in is None else flat.vector.detach().clone()
        return cls(flat, options, plan, updates, target, gradient, updater, rectifier, plan.values, received)

    def due_updates(self) -> Iterator[tuple[PlannedUpdate, PlannedUpdate]]:
        """Each planned update that has records away from their target, and the part of it whose loss is computed."""
        for planned in self.updates:
            due = self.target.part(planned)
            if due is not None:
                yield planned, due

    def add_gradient(self, planned: PlannedUpdate, due: PlannedUpdate) -> bool:
        """Compute the gradient of an update; False where its records exceed the limit, so that it is not to be made."""
        measured = self.gradient.add(due, self.target.over_forgotten(planned), self.values, self.updater)
        self.stopped = self.options.stop(measured.nll)
        if self.stopped:
            self.flat.zero_grad()
        if not (self.stopped and self.measured):
            self.measured.append(measured)
        return not self.stopped

    def rectify(self, planned: PlannedUpdate, due: PlannedUpdate) -> None:
        """Project the gradient of an update that unlearns against that of its retain records, with GRU alone."""
        if self.rectifier is not None and planned.kind.unlearns:
            self.gradient.rectify(due.retain or planned.retain, self.rectifier, self.flat, self.updater)

    def step(self, update: PlannedUpdate) -> None:
        """Apply the gradient, and take the method's hyperparameters of the next update."""
        self.updater.step()
        self.values = self.plan.loss.advanced(update.epoch, self.measured[-1].means, self.values)

    def finish(self) -> None:
        """Check the parameters, replace them where the method trains a copy, and measure what is left to forget."""
        self.updater.finish()
        if (finish := self.plan.loss.finish_in) is not None:
            with torch.no_grad():
                self.flat.vector.copy_(finish(self.received, self.flat.vector.detach(), **self.values))
            self.updater.finish()
            model, forget, batch_size = self.gradient.model, self.target.forget, self.gradient.batch_size
            self.finished_nll = record_nll(model, forget, batch_size).mean().item()
        self.gaps = self.target.first_and_last(moved=self.updater.steps > 0)

    def report(self, seconds: float) -> UnlearnReport:
        """What was done and measured in all."""
        first_loss, last_loss = _first_and_last(m.loss for m in self.measured)
        first_nll, last_nll = _first_and_last(m.nll for m in self.measured)
        first_entropy, last_entropy = _first_and_last(m.entropy for m in self.measured)
        return UnlearnReport(
            num_examples=len(self.gradient.records.forget),
            num_retain=len(self.gradient.records.retain),
            retain_used=self.plan.paired,
            steps=self.updater.steps,
            first_loss=first_loss,
            last_loss=last_loss,
            first_forget_nll=first_nll,
            last_forget_nll=last_nll if self.received is None else self.finished_nll,
            first_forget_entropy=first_entropy,
            last_forget_entropy=last_entropy,
            stopped=self.stopped,
            seconds=seconds,
            first_gap=self.gaps[0],
            last_gap=self.gaps[1],
        )


def _first_and_last(values: Iterable[float]) -> tuple[float, float]:
    """First and last of the values that are not NaN; NaN where there is none."""
    known = [value for value in values if not math.isnan(value)] or [math.nan]
    return known[0], known[-1]
