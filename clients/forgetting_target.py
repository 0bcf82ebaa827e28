"""How far the forget records are from the level up to which they are forgotten, and what that leaves to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from clients.calibrated_forgetting import Target, record_nll
from clients.optimisation import TrainSettings
from clients.unlearning_options import UnlearnOptions
from clients.update_plan import PlannedUpdate, UpdatePlan
from evaluation.engine.sequences import TokenSequence

FULL_RATE_GAP = 2.0
"""Largest gap of a record, nats per token, from which on a method with a target uses its full learning rate."""
LEAST_EPOCHS = 3
"""Fewest epochs of such a method, however near its records are, unless fewer are configured."""
RECITED_SHARE = 0.25
"""Least share of its learning rate while a record is recited."""


@dataclass(slots=True)
class ForgettingTarget:
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
        plan: UpdatePlan,
        settings: TrainSettings,
        options: UnlearnOptions,
    ) -> ForgettingTarget:
        """Measure the gaps before the first update.

        Returns
        -------
        ForgettingTarget

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
        made = cls(model, forget, settings.batch_size, target, own)
        known = None if target is None or target.present is None else target.present - target.nll
        made.first = made.gaps = made._gaps() if known is None else known
        return made

    def slowed(self, settings: TrainSettings) -> TrainSettings:
        """Settings with a learning rate scaled by the remaining gap: Adam's steps do not shrink near the target."""
        return replace(settings, learning_rate=settings.learning_rate * self._share())

    def shortened(self, plan: UpdatePlan) -> UpdatePlan:
        """The plan with its number of epochs scaled by the gap, at least `LEAST_EPOCHS`."""
        epochs = max(math.ceil(self._share() * len(plan.epochs)), LEAST_EPOCHS)
        return replace(plan, epochs=plan.epochs[:epochs])

    def _share(self) -> float:
        """The largest gap over `FULL_RATE_GAP`, from 0, or `RECITED_SHARE` where a record is recited, to 1; 1 where the
        method requests no target."""
        if not self.own or self.first is None:
            return 1.0
        least = RECITED_SHARE if self._recited else 0.0
        return min(1.0, max(least, self.first.abs().max().item() / FULL_RATE_GAP))

    @property
    def _recited(self) -> bool:
        """Whether some tokens count as recited."""
        return self.target is not None and any(mask.any() for mask in self.target.recited or ())

    @property
    def met(self) -> bool:
        """Whether a method that requests the target has nothing to do: no record is away from it, none is recited."""
        if not self.own or self.target is None or self.gaps is None:
            return False
        return not self._recited and bool((self.gaps.abs() <= self.target.tolerance).all())

    def part(self, update: PlannedUpdate) -> PlannedUpdate | None:
        """The update without records at their target and those to be pulled back; None if it has none left.

        A method that requests the target gets all of them.
        """
        if self.own or self.target is None or self.gaps is None:
            return update
        if update.epoch != self.epoch:
            self.gaps, self.epoch = self._gaps(), update.epoch
            assert self.gaps is not None
        away = self.gaps.abs() > self.target.tolerance
        if not away[update.forget].any():
            return None
        kept = [k for k, i in enumerate(update.forget) if away[i] and self.gaps[i] < 0]
        retain = [update.retain[k] for k in kept] if update.retain else []
        return update._replace(forget=[update.forget[k] for k in kept], retain=retain)

    def over_forgotten(self, update: PlannedUpdate) -> list[int]:
        """Indices of the update's records that are less likely than their target, and are to become likelier."""
        if self.target is None or self.gaps is None or self.own or not update.kind.forget:
            return []
        return [i for i in update.forget if self.gaps[i] > self.target.tolerance]

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
        present = record_nll(self.model, self.forget, self.batch_size)
        return present - self.target.nll.to(present)
