"""A Llama on the CPU by its own forward pass with hand-written gradients (`evaluation.engine.llama`)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn import functional as F

from evaluation.engine.backends.base import AnswerRows, Backend
from evaluation.engine.decoder_loop import decode_rows
from evaluation.engine.decoders import Continuations, RowForward
from evaluation.engine.kernels import HEAD_ROWS
from evaluation.engine.llama import FusedLlama
from evaluation.engine.models import vocabulary_size
from evaluation.engine.packing import PackedBatch

WORKERS_BYTES = 1 << 28


def fused_workers(model: nn.Module) -> int:
    """How many batches may be scored at once, each by a thread of its own.

    On the CPU that is faster than all cores on one batch, whose small operations wait for the slowest core each; but
    each batch holds logits, which is why there may be fewer workers than cores.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    int, at least 1
    """
    return max(1, WORKERS_BYTES // (4 * HEAD_ROWS * vocabulary_size(model)))


class FusedBackend(Backend):
    """Rows without padding through `FusedLlama`.

    Parameters
    ----------
    model : nn.Module
    passes : {"many", "one"}
        As in `FusedLlama`.
    """

    name = "fused"

    def __init__(self, model: nn.Module, passes: str = "many") -> None:
        super().__init__(model)
        self._passes = passes
        self._made: FusedLlama | None = None

    @property
    def workers(self) -> int:
        return fused_workers(self.model)

    @property
    def _fused(self) -> FusedLlama:
        if self._made is None:
            self._made = FusedLlama(self.model, passes=self._passes)
        return self._made

    def logits(self, batch: PackedBatch) -> Tensor:
        return self._fused.logits(batch.input_ids, batch.position_ids, batch.layout, batch.keep)

    def logits_and_states(self, batch: PackedBatch, layer: int | None) -> tuple[Tensor, Tensor]:
        top, kept = self._states(batch, layer)
        return F.linear(top, self._fused.head), kept

    def layer_states(self, batch: PackedBatch, layer: int) -> Tensor:
        fused = FusedLlama(self.model, layer + 1, passes="one")
        return fused.hidden(batch.input_ids, batch.position_ids, batch.layout)

    def pieces(self, batch: PackedBatch, *, states: bool, layer: int | None) -> tuple[Iterator[Tensor], Tensor | None]:
        top, kept = self._states(batch, layer if states else None)
        # Logits of a few rows at a time stay in the cache.
        return (F.linear(rows, self._fused.head) for rows in top.split(HEAD_ROWS)), kept if states else None

    def answer_rows(self, batch: PackedBatch) -> AnswerRows:
        fused = self._fused
        values = fused.states(batch.input_ids, batch.position_ids, batch.layout, batch.keep)
        head = None
        if fused.head.requires_grad:
            values = F.linear(values, fused.head)
        else:
            head = fused.head
        return AnswerRows(values if batch.direct else values[batch.rows], head)

    def token_log_probs(self, batch: PackedBatch) -> Tensor:
        return self._fused.token_log_probs(batch)

    def row_forward(self) -> RowForward:
        return lambda *row: self._fused.logits(*row)

    def decode(self, work: Continuations) -> list[list[int]]:
        return decode_rows(self.model, work, self.row_forward())

    def _states(self, batch: PackedBatch, layer: int | None) -> tuple[Tensor, Tensor]:
        """What enters the head, and what leaves `layer` (None: the same), (K, d) each."""
        row = (batch.input_ids, batch.position_ids, batch.layout, batch.keep)
        if layer is None:
            states = self._fused.states(*row)
            return states, states
        return self._fused.states_and_layer(*row, layer)
