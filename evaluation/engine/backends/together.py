"""The members of an ensemble, each run in one of the other ways, and their logits combined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from evaluation.engine.backends.base import Backend
from evaluation.engine.decoder_loop import decode_rows
from evaluation.engine.decoders import Continuations, RowForward
from evaluation.engine.ensemble import Ensemble, mean_of_log_probs
from evaluation.engine.packing import Layout, PackedBatch

T = TypeVar("T")


class EnsembleBackend(Backend):
    """Runs one member after another; states are the means of the members' states.

    Parameters
    ----------
    ensemble : Ensemble
    members : sequence of Backend
        One for each member, all of the same way.
    """

    name = "together"

    def __init__(self, ensemble: Ensemble, members: Sequence[Backend]) -> None:
        super().__init__(ensemble)
        self._ensemble, self._members = ensemble, members

    def logits(self, batch: PackedBatch) -> Tensor:
        return mean_of_log_probs(self._each(lambda member: member.logits(batch)))

    def pieces(self, batch: PackedBatch, *, states: bool, layer: int | None) -> tuple[Iterator[Tensor], Tensor | None]:
        found = list(self._each(lambda member: member.pieces(batch, states=states, layer=layer)))
        kept = _mean([kept for _, kept in found if kept is not None]) if states else None
        return self._mixed([pieces for pieces, _ in found]), kept

    def logits_and_states(self, batch: PackedBatch, layer: int | None) -> tuple[Tensor, Tensor]:
        found = list(self._each(lambda member: member.logits_and_states(batch, layer)))
        return mean_of_log_probs([logits for logits, _ in found]), _mean([states for _, states in found])

    def layer_states(self, batch: PackedBatch, layer: int) -> Tensor:
        return _mean(list(self._each(lambda member: member.layer_states(batch, layer))))

    def decode(self, work: Continuations) -> list[list[int]]:
        """The members' caches lie in memory together: so many times fewer rows run at once."""
        forwards = [self._of(number, member.row_forward()) for number, member in enumerate(self._members)]
        fewer = replace(work, rows=max(1, work.rows // len(forwards)))
        return decode_rows(self._ensemble, fewer, *forwards)

    def _each(self, work: Callable[[Backend], T]) -> Iterator[T]:
        """What `work` gives for each member, with its weights in the model."""
        for number, member in enumerate(self._members):
            self._ensemble.choose(number)
            yield work(member)

    def _mixed(self, members: Sequence[Iterator[Tensor]]) -> Iterator[Tensor]:
        """The logits of the mixture, as many rows at a time as in the members' pieces."""

        def piece(number: int) -> Tensor | None:
            self._ensemble.choose(number)
            return next(members[number], None)

        while (first := piece(0)) is not None:
            others = (more for number in range(1, len(members)) if (more := piece(number)) is not None)
            yield mean_of_log_probs(chain([first], others))

    def _of(self, number: int, forward: RowForward) -> RowForward:
        """The pass of a member, which puts its weights into the model before."""

        def chosen(ids: Tensor, positions: Tensor, layout: Layout, keep: Tensor) -> Tensor:
            self._ensemble.choose(number)
            return forward(ids, positions, layout, keep)

        return chosen


def _mean(states: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(states)).mean(0)
