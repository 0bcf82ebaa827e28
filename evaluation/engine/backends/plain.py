"""transformers' own forward pass and `generate` over sequences of one length, without padding or masks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evaluation.engine.backends.base import Backend, collected
from evaluation.engine.backends.transformers_generate import generate, parameters, settle_frequencies
from evaluation.engine.decoders import Continuations
from evaluation.engine.models import model_device, vocabulary_size
from evaluation.engine.packing import PackedBatch


class _Group(NamedTuple):
    """Sequences of one length: their numbers, token ids (R, n), entries of `batch.keep` among them and the places
    (row, column) of these."""

    sequences: Tensor
    ids: Tensor
    kept: Tensor
    rows: Tensor
    columns: Tensor


class PlainBackend(Backend):
    """Slow, and right for every causal language model: sequences of one length, the model's own pass and cache."""

    name = "plain"

    def logits(self, batch: PackedBatch) -> Tensor:
        return _in_order([(group.kept, self._kept(group)) for group in _groups(batch)])

    def logits_and_states(self, batch: PackedBatch, layer: int | None) -> tuple[Tensor, Tensor]:
        logits, states = [], []
        for group in _groups(batch):
            with collected(self.model, layer) as seen:
                whole = self.forward(group.ids)
            logits.append((group.kept, whole[group.rows, group.columns]))
            states.append((group.kept, seen[-1][group.rows, group.columns]))
        return _in_order(logits), _in_order(states)

    def layer_states(self, batch: PackedBatch, layer: int) -> Tensor:
        """All layers run: what a model does after one may depend on more than that layer's output."""
        layout = batch.layout
        padded: list[tuple[Tensor, Tensor]] = []
        for group in _groups(batch):
            with collected(self.model, layer) as seen:
                self.forward(group.ids)
            states = seen[-1][:, : layout.max_length]
            padded.append((group.sequences, F.pad(states, (0, 0, 0, layout.max_length - states.shape[1]))))
        return layout.unpad(_in_order(padded).unsqueeze(1))[:, 0]

    def decode(self, work: Continuations) -> list[list[int]]:
        return generate(self.model, work, together=False)

    def _kept(self, group: _Group) -> Tensor:
        """Logits (k, V) at the places that are wanted of a group."""
        length = group.ids.shape[1]
        logits = self.forward(group.ids, length - int(group.columns.min()) if len(group.columns) else 1)
        return logits[group.rows, group.columns - (length - logits.shape[1])]

    def forward(self, ids: Tensor, last: int | None = None) -> Tensor:
        """Logits (R, n, V) of sequences (R, n), or of at least their `last` places: then some states may be missing."""
        known = parameters(self.model)
        options: dict[str, object] = {"use_cache": False} if "use_cache" in known else {}
        if last is not None and "logits_to_keep" in known:
            options["logits_to_keep"] = last
        settle_frequencies(self.model)
        logits = self.model(input_ids=ids, **options).logits
        if logits.shape[1] != ids.shape[1] and "logits_to_keep" not in options:
            raise ValueError(f"no causal language model: {logits.shape[1]} logits for {ids.shape[1]} tokens")
        return logits


def _groups(batch: PackedBatch) -> Iterator[_Group]:
    """The sequences of a batch, those of one length together, short ones first.

    They are whole, with the last answer token, which nothing reads: rotary frequencies may depend on the length.
    """
    layout, device = batch.layout, batch.input_ids.device
    place = layout.scatter[batch.keep]
    row, column = place // layout.max_length, place % layout.max_length
    lengths = torch.tensor([len(s.prompt) + len(s.answer) for s in batch.sequences], device=device)
    for length in lengths.unique().tolist():
        sequences = (lengths == length).nonzero().squeeze(1)
        ids = torch.tensor([[*batch.sequences[i].prompt, *batch.sequences[i].answer] for i in sequences.tolist()])
        number = torch.full_like(lengths, -1)
        number[sequences] = torch.arange(len(sequences), device=device)
        kept = (number[row] >= 0).nonzero().squeeze(1)
        yield _Group(sequences, ids.to(device), kept, number[row[kept]], column[kept])


def _in_order(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Rows of all parts, put where their numbers say."""
    numbers = torch.cat([where for where, _ in parts])
    return torch.cat([values for _, values in parts])[numbers.argsort()]


@torch.no_grad()
def reads_ahead(model: nn.Module) -> bool:
    """Whether a token's logits depend on the next token, tried on two sequences of two tokens.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    bool

    Raises
    ------
    ValueError
        For logits that are not finite.
    """
    forward = PlainBackend(model).forward
    rows = min(vocabulary_size(model), 64)
    pairs = torch.tensor([[3 % rows, 5 % rows], [3 % rows, 7 % rows]], device=model_device(model))
    one, another = (forward(pair[None])[0, 0].float() for pair in pairs)
    if not one.isfinite().all():
        raise ValueError("what the model says is no number: its weights may be damaged")
    return not torch.allclose(one, another, rtol=1e-2, atol=1e-2 * float(one.std()))
