"""The model's own forward pass over right-padded batches with a mask, and `generate` over left-padded ones."""

from __future__ import annotations

from torch import Tensor

from evaluation.engine.backends.base import Backend, collected, shortened
from evaluation.engine.backends.transformers_generate import generate, parameters
from evaluation.engine.decoders import Continuations
from evaluation.engine.packing import PackedBatch


class PaddedBackend(Backend):
    """Sequences of different lengths together: for attention that packing cannot give (windows, soft caps, sinks)."""

    name = "padded"

    def logits(self, batch: PackedBatch) -> Tensor:
        logits, where = self._forward(batch)
        return logits[where]

    def logits_and_states(self, batch: PackedBatch, layer: int | None) -> tuple[Tensor, Tensor]:
        with collected(self.model, layer) as seen:
            logits, where = self._forward(batch, crop=False)
        return logits[where], seen[-1][where] if layer is None else _row(batch, seen[-1])[batch.keep]

    def layer_states(self, batch: PackedBatch, layer: int) -> Tensor:
        with collected(self.model, layer) as seen, shortened(self.model, layer):
            self._forward(batch, crop=False)
        return _row(batch, seen[-1])

    def decode(self, work: Continuations) -> list[list[int]]:
        return generate(self.model, work, together=True)

    def _forward(self, batch: PackedBatch, *, crop: bool = True) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Logits of a right-padded batch with an attention mask, and where in them the places `keep` are.

        crop: leave out the logits before the first of these places, and states with them.
        """
        layout = batch.layout
        shape = (layout.size, layout.max_length)
        mask = layout.real.view(shape).long()
        ids = batch.input_ids[layout.gather].view(shape) * mask
        padded = layout.scatter[batch.keep]
        row, column = padded // layout.max_length, padded % layout.max_length
        options: dict[str, object] = {"use_cache": False}
        if crop and "logits_to_keep" in parameters(self.model):
            first = int(column.min())
            options["logits_to_keep"] = shape[1] - first
            column = column - first
        return self.model(input_ids=ids, attention_mask=mask, **options).logits, (row, column)


def _row(batch: PackedBatch, padded: Tensor) -> Tensor:
    """(B, L, d) of a right-padded batch -> (N, d) of its row."""
    return batch.layout.unpad(padded.unsqueeze(1))[:, 0]
