"""The gradient of one update of an unlearning, and what is measured while it is computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clients import losses
from clients.batch_quantities import (
    NEEDS_RECEIVED,
    BatchQuantities,
    ReferenceModels,
    References,
    expanded,
    log_likelihoods,
)
from clients.calibrated_forgetting import Target, kept_predictions
from clients.entropy import Entropy
from clients.flat_parameters import FlatParameters
from clients.gradient_rectification import Rectifier
from clients.optimisation import Updater
from clients.reference_models import Received, incompetent_teacher
from clients.unlearning_options import UnlearnOptions
from clients.update_plan import PlannedUpdate, UpdateKind, UpdatePlan
from evaluation.engine.forward import AnswerRows
from evaluation.engine.sequences import TokenSequence


class Records(NamedTuple):
    """The records of an unlearning.

    Attributes
    ----------
    forget, retain : sequence of TokenSequence
    alternatives : sequence of sequences of TokenSequence
        Other answers to each forget record's question, or none.
    """

    forget: Sequence[TokenSequence]
    retain: Sequence[TokenSequence]
    alternatives: Sequence[Sequence[TokenSequence]]

    def alternative(self, index: int, epoch: int) -> int:
        """Which of the alternatives of a forget record an epoch takes."""
        return epoch % len(self.alternatives[index])


@dataclass(slots=True)
class Measurement:
    """What an update measured before it changed anything.

    Attributes
    ----------
    loss : float
    nll, entropy : float
        Means over its forget records, nats per token; NaN for what is not computed.
    means : dict of float
        Where the method has a state, the mean of each quantity over the update's records.
    """

    loss: float
    nll: float
    entropy: float
    means: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: UpdateKind) -> Measurement:
        """Nothing measured yet."""
        entropy = 0.0 if "forget_entropy" in kind.wanted else math.nan
        return cls(0.0, 0.0 if kind.has_forget_nll else math.nan, entropy)

    def add(self, loss: float, quantities: BatchQuantities, share: float) -> None:
        """Add the results of a pass over a `share` of the update's records."""
        self.loss += loss
        if not math.isnan(self.nll):
            self.nll += quantities.forget_nll.mean().item() * share
        if not math.isnan(self.entropy):
            self.entropy += quantities.forget_entropy.mean().item() * share

    def add_means(self, values: Mapping[str, Tensor | list[Tensor] | None], share: float) -> None:
        """Add to the means those of a `share` of the records."""
        for name, value in values.items():
            if isinstance(value, Tensor) and value.ndim == 1:
                self.means[name] = self.means.get(name, 0.0) + value.mean().item() * share


@dataclass(frozen=True, slots=True)
class _ReceivedPredictions:
    """What the model as received says of the records, by their index; None: not requested, NaN: not needed.

    forget (n,): log-likelihoods; alternatives: those of each record's alternatives; retain (m,): mean negative ones.
    forget_rows, retain_rows: what predicts each record's answer tokens; None where it would take too much memory, too.
    """

    forget: Tensor | None = None
    alternatives: tuple[Tensor, ...] | None = None
    retain: Tensor | None = None
    forget_rows: Sequence[AnswerRows] | None = None
    retain_rows: Mapping[int, AnswerRows] | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        records: Records,
        names: frozenset[str],
        updates: Sequence[PlannedUpdate],
        batch_size: int,
    ) -> _ReceivedPredictions:
        """Compute with `model`, still the one received, what the quantities `names` of the updates need."""
        forget = alternatives = retain = forget_rows = retain_rows = None
        drawn = sorted({i for update in updates if update.kind.retain for i in update.retain})
        if not names.isdisjoint(("forget_reference_kl", "forget_adjusted_kl")):
            forget_rows = kept_predictions(model, records.forget, batch_size)
        if "retain_reference_kl" in names:
            kept = kept_predictions(model, [records.retain[i] for i in drawn], batch_size)
            retain_rows = None if kept is None else dict(zip(drawn, kept, strict=True))
        if "forget_reference_log_p" in names:
            forget = log_likelihoods(model, records.forget, batch_size)
        if "alternative_reference_log_p" in names:
            epochs = updates[-1].epoch + 1 if updates else 0
            given = [group[:epochs] for group in records.alternatives]
            values = log_likelihoods(model, [answer for group in given for answer in group], batch_size)
            alternatives = values.split([len(group) for group in given])
        if "retain_reference_nll" in names:
            values = log_likelihoods(model, [records.retain[i] for i in drawn], batch_size)
            lengths = values.new_tensor([len(records.retain[i].answer) for i in drawn])
            retain = values.new_full((len(records.retain),), math.nan)
            retain[drawn] = -values / lengths
        return cls(forget, alternatives, retain, forget_rows, retain_rows)

    def references(self, forget: Sequence[int], alternatives: Sequence[int], retain: Sequence[int]) -> References:
        """References of these forget records, of which of their alternatives, and of these retain records."""
        replaced = None
        if self.alternatives is not None and alternatives:
            replaced = torch.stack([self.alternatives[i][k] for i, k in zip(forget, alternatives, strict=True)])
        return References(
            forget_log_p=None if self.forget is None else self.forget[forget],
            alternative_log_p=replaced,
            retain_nll=None if self.retain is None else self.retain[retain],
            forget_rows=None if self.forget_rows is None else [self.forget_rows[i] for i in forget],
            retain_rows=None if self.retain_rows is None else [self.retain_rows[i] for i in retain],
        )


@dataclass(frozen=True, slots=True)
class UpdateGradient:
    """Computes the gradients of updates on the records of one unlearning.

    Attributes
    ----------
    model : nn.Module
    records : Records
    loss : Method
    batch_size : int
        Sequences in a pass.
    entropy : Entropy
    around : ReferenceModels
    received : likelihoods of the records under the model as received
    target : Target or None
    first_held : int
        Index of the first retain record that is held.
    """

    model: nn.Module
    records: Records
    loss: losses.Method
    batch_size: int
    entropy: Entropy
    around: ReferenceModels
    received: _ReceivedPredictions
    target: Target | None
    first_held: int

    @classmethod
    def of(
        cls,
        model: nn.Module,
        flat: FlatParameters,
        records: Records,
        plan: UpdatePlan,
        updates: Sequence[PlannedUpdate],
        layer: int,
        batch_size: int,
        options: UnlearnOptions,
    ) -> UpdateGradient:
        """Compute what the updates of a plan need of the model as received, while `model` still is that.

        Parameters
        ----------
        model : nn.Module
        flat : FlatParameters
        records : Records
        plan : UpdatePlan
        updates : sequence of PlannedUpdate
            All updates of the plan.
        layer : int
            The decoder layer whose states are read.
        batch_size : int
        options : UnlearnOptions

        Returns
        -------
        UpdateGradient
        """
        values, target = plan.values, options.target
        wanted = expanded(plan.wanted, options.retain_loss, holds=options.held > 0)
        around = ReferenceModels(
            received=Received(model, flat) if wanted & NEEDS_RECEIVED else None,
            teacher=incompetent_teacher(model, values["teacher_seed"]) if "forget_teacher_kl" in wanted else None,
            temperature=values.get("temperature", 1.0),
            strength=values.get("strength", 0.0),
            layer=layer,
            retain_loss=options.retain_loss,
            holds=options.held > 0,
            base=None if target is None else Received(model, flat, target.base),
            sharpness=1.0 if target is None else target.sharpness,
        )
        received = _ReceivedPredictions.of(model, records, wanted, updates, batch_size)
        first_held, count = len(records.retain) - options.held, len(records.retain)
        if options.held_to_base and around.base is not None and received.retain_rows is not None:
            own = [i for i in received.retain_rows if i >= count - options.held_to_base]
            with around.base.in_place():
                kept = kept_predictions(model, [records.retain[i] for i in own], batch_size)
            if kept is not None:
                rows = {**received.retain_rows, **dict(zip(own, kept, strict=True))}
                received = replace(received, retain_rows=rows)
        return cls(model, records, plan.loss, batch_size, options.entropy, around, received, target, first_held)

    def add(
        self, update: PlannedUpdate, over_forgotten: list[int], values: Mapping[str, Any], updater: Updater
    ) -> Measurement:
        """Add the gradient of one update, `batch_size` sequences in a pass.

        Parameters
        ----------
        update : PlannedUpdate
        over_forgotten : list of int
            Indices of further forget records, which are to become likelier.
        values : mapping
            Hyperparameters.
        updater : Updater

        Returns
        -------
        Measurement

        Raises
        ------
        NonFiniteError
            When the loss is not finite.
        """
        kind, total = update.kind, len(update.forget) + len(over_forgotten)
        measured = Measurement.of(kind)
        if over_forgotten:
            self._pull_back(over_forgotten, total, measured, updater)
        per_pass = kind.per_pass(self.batch_size)
        for first in range(0, len(update.forget), per_pass):
            part = slice(first, first + per_pass)
            quantities = self._quantities(update, update.forget[part], update.retain[part])
            given = quantities.quantities(kind.names)
            loss = self.loss.function(**given, **values)
            if kind.regularised:
                loss = loss + self.entropy.term(quantities.forget_entropy, quantities.retain_entropy)
            share = len(update.forget[part]) / total
            loss = loss * share
            updater.backward(loss)
            measured.add(loss.item(), quantities, share)
            if self.loss.advance_in is not None:
                measured.add_means(given, share)
        return measured

    def rectify(self, retain: Sequence[int], rectifier: Rectifier, flat: FlatParameters, updater: Updater) -> None:
        """Rectify the gradient of an update by that of the mean loss of the retain records with these indices."""
        unlearning = flat.grad.clone()
        flat.zero_grad()
        for first in range(0, len(retain), self.batch_size):
            part = retain[first : first + self.batch_size]
            loss = BatchQuantities(self.model, [], [self.records.retain[i] for i in part]).retain_nll
            assert loss is not None
            updater.backward(loss.sum() / len(retain))
        flat.grad.copy_(rectifier.rectify(unlearning, flat.grad))

    def _pull_back(self, indices: list[int], total: int, measured: Measurement, updater: Updater) -> None:
        """Add the gradient that makes likelier the records below their target; the update has `total` records."""
        assert self.target is not None
        for first in range(0, len(indices), self.batch_size):
            part = indices[first : first + self.batch_size]
            wanted = set() if math.isnan(measured.entropy) else {"forget_entropy"}
            quantities = BatchQuantities(self.model, [self.records.forget[i] for i in part], [], wanted=wanted)
            nll, share = quantities.forget_nll, len(part) / total
            loss = (nll - self.target.nll[part].to(nll)).square().mean() * share
            updater.backward(loss)
            measured.add(loss.item(), quantities, share)

    def _quantities(self, update: PlannedUpdate, forget: list[int], retain: list[int]) -> BatchQuantities:
        """The quantities of one pass over these records."""
        kind, records = update.kind, self.records
        others = [records.alternative(i, update.epoch) for i in forget] if kind.alternatives else []
        return BatchQuantities(
            self.model,
            [records.forget[i] for i in forget] if kind.forget else [],
            [records.retain[i] for i in retain] if kind.retain else [],
            alternatives=[records.alternatives[i][k] for i, k in zip(forget, others, strict=True)] if others else [],
            wanted=kind.wanted,
            references=self._with_targets(self._references(forget, others, retain), forget),
            around=self.around,
        )

    def _references(self, forget: list[int], others: list[int], retain: list[int]) -> References:
        """Reference values of the model as received, and which of the retain records are held."""
        found = self.received.references(forget, others, retain)
        if self.first_held == len(self.records.retain):
            return found
        return found._replace(retain_held=torch.tensor([i >= self.first_held for i in retain]))

    def _with_targets(self, references: References, forget: list[int]) -> References:
        """`references` with the targets of these forget records."""
        if self.target is None:
            return references
        lowered = None if self.target.lowered is None else [self.target.lowered[i] for i in forget]
        rows = None if self.target.rows is None else [self.target.rows[i] for i in forget]
        recited = None if self.target.recited is None else [self.target.recited[i] for i in forget]
        return references._replace(
            forget_target_nll=self.target.nll[forget],
            forget_target_lowered=lowered,
            forget_target_rows=rows,
            forget_recited=recited,
        )
