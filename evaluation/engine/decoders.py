"""Decoders: rows of running sequences that grow token by token, on which `evaluation.engine.decoder_loop` runs.

`PackedDecoder` puts one new token of every running sequence into one row and keeps keys and values left-aligned in a
preallocated table, so nothing is padded, concatenated or moved as sequences grow. `evaluation.engine.shared_decoder`
has the one for many continuations of each prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evaluation.engine.packing import CausalLayout, Layout, attend_causal, row_layout

PREFILL_TOKENS = 4096
CPU_BLOCK = 128

Choose = Callable[[Tensor, list[int]], Tensor]
"""Logits (B, V) of the next token and the number of the continuation of each row -> chosen token ids (B,)."""
RowForward = Callable[[Tensor, Tensor, Layout, Tensor], Tensor]
"""Token ids (N,), position ids (N,), layout, places to keep (K,) of a row -> logits (K, V)."""


@dataclass(frozen=True)
class Continuations:
    """Prompts to continue, `copies` times each.

    The continuations of prompt i have the numbers i·copies … (i+1)·copies − 1, which `choose` is given.

    Attributes
    ----------
    prompts : sequence of token ids
    limits : sequence of int
        Most new tokens of each prompt's continuations.
    copies : int, at least 1
    stops : frozenset of int
        Token ids at which a continuation ends.
    choose : Choose
        Picks the next tokens.
    pad_id : int
    rows : int, at least 1
        Most continuations that run together.
    prompt_tokens : int
        Most tokens of prompts in memory, where prompts are kept apart from their continuations.
    """

    prompts: Sequence[Sequence[int]]
    limits: Sequence[int]
    copies: int
    stops: frozenset[int]
    choose: Choose
    pad_id: int
    rows: int
    prompt_tokens: int

    def prompt(self, number: int) -> Sequence[int]:
        """The prompt of a continuation."""
        return self.prompts[number // self.copies]

    def limit(self, number: int) -> int:
        """How many tokens a continuation may have."""
        return self.limits[number // self.copies]


class Decoder(Protocol):
    """Rows of running sequences, numbered 0..size-1; new ones are added at the end."""

    @property
    def size(self) -> int:
        """How many rows run."""
        ...

    @property
    def open(self) -> bool:
        """Whether prompts can be added now."""
        ...

    def admits(self, number: int) -> bool:
        """Whether there is memory for a row of this prompt, free rows given."""
        ...

    def add(self, numbers: Sequence[int]) -> Tensor:
        """Append a row for each of the prompts with these numbers -> logits (rows, V) of their first new token."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token (size,) to each row -> logits (size, V) of the next."""
        ...

    def keep(self, rows: list[int]) -> list[int]:
        """Drop all other rows; returns the kept old row numbers in their new order."""
        ...

    def forget(self, number: int) -> None:
        """No row of this prompt will be added any more."""
        ...


class PackedDecoder:
    """Left-aligned table of keys and values per attention layer, filled by the packing attention function."""

    def __init__(
        self, forward: RowForward, device: torch.device, prompts: Sequence[Sequence[int]], rows: int, columns: int
    ) -> None:
        self.forward, self.device = forward, device
        self.prompts, self.rows, self.columns = prompts, rows, columns
        self.size = self.finite = 0
        self.lengths: list[int] = []
        self.tables: dict[nn.Module, list[Tensor]] = {}

    @property
    def open(self) -> bool:
        return self.size < self.rows

    def table(self, module: nn.Module, key: Tensor, value: Tensor) -> list[Tensor]:
        """Keys and values (rows, H_kv, columns, D) of this layer.

        Of the running rows, each row's own up to its length, and anything finite in the first `finite` columns.
        """
        if module not in self.tables:
            self.tables[module] = [x.new_empty(self.rows, x.shape[1], self.columns, x.shape[-1]) for x in (key, value)]
        return self.tables[module]

    def add(self, numbers: Sequence[int]) -> Tensor:
        return torch.cat(
            [self._prefill([self.prompts[i] for i in part]) for part in prefill_parts(numbers, self.prompts)]
        )

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        layout, ids, positions, places = row_layout(prompts, share=True, device=self.device)
        keep = torch.tensor([row[-1] for row in places], device=self.device)
        logits = self.forward(ids, positions, _Prefill(self, layout), keep)
        self.size += len(prompts)
        self.finite = max(self.finite, layout.max_length)
        self.lengths += [len(prompt) for prompt in prompts]
        return logits

    def admits(self, number: int) -> bool:
        """A row holds its prompt."""
        return True

    def forget(self, number: int) -> None:
        """Nothing is kept of a prompt but its rows."""

    def step(self, tokens: Tensor) -> Tensor:
        lengths = torch.tensor(self.lengths, device=self.device)
        return self._step(tokens, lengths, Step(self, lengths))

    def _step(self, tokens: Tensor, positions: Tensor, layout: Step) -> Tensor:
        keep = torch.arange(self.size, device=self.device)
        logits = self.forward(tokens, positions, layout, keep)
        self.lengths = [length + 1 for length in self.lengths]
        self.finite = max(self.finite, layout.width)
        return logits

    def keep(self, rows: list[int]) -> list[int]:
        stay = {row for row in rows if row < len(rows)}
        movers = [row for row in rows if row >= len(rows)]
        holes = [row for row in range(len(rows)) if row not in stay]
        if holes:
            source, target = (torch.tensor(x, device=self.device) for x in (movers, holes))
            width = max(self.lengths[row] for row in movers)
            for table in self.tables.values():
                for x in table:
                    x[target, :, :width] = x[source, :, :width]
        order = list(range(len(rows)))
        for hole, mover in zip(holes, movers, strict=True):
            order[hole] = mover
        self.lengths = [self.lengths[row] for row in order]
        self.size = len(order)
        return order


@dataclass(frozen=True)
class _Prefill:
    """Prompts attend causally; their keys and values go to the rows after the running ones."""

    decoder: PackedDecoder
    causal: CausalLayout

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, dropout: float
    ) -> Tensor:
        layout, start, finite = self.causal, self.decoder.size, self.decoder.finite
        keys, values = layout.pad(key), layout.pad(value)
        for table, new in zip(self.decoder.table(module, key, value), (keys, values), strict=True):
            table[:start, :, finite : layout.max_length] = 0
            table[start : start + layout.size, :, : layout.max_length] = new
            table[start : start + layout.size, :, layout.max_length : finite] = 0
        return layout.unpad(attend_causal(layout.pad(query), keys, values, scale, dropout))


class Step:
    """One new token per row attends to its row's keys and values, the new ones included."""

    def __init__(self, decoder: PackedDecoder, lengths: Tensor) -> None:
        self.decoder, self.lengths = decoder, lengths
        self.rows = torch.arange(decoder.size, device=lengths.device)
        self.width = max(decoder.lengths) + 1
        self.beyond = torch.arange(self.width, device=lengths.device) > lengths[:, None]
        self.mask: Tensor | None = None
        # Rows near each other are of similar length: each block reads no further than its longest.
        size = CPU_BLOCK if lengths.device.type == "cpu" else decoder.size
        starts = range(0, decoder.size, size)
        self.blocks = [(slice(a, a + size), max(decoder.lengths[a : a + size]) + 1) for a in starts]

    def extend(self, module: nn.Module, key: Tensor, value: Tensor) -> tuple[list[Tensor], Tensor]:
        """The layer's keys and values with the new ones (R, H_kv, D) in, and the mask (R, 1, 1, width) to add."""
        tables = self.decoder.table(module, key, value)
        for table, new in zip(tables, (key, value), strict=True):
            table[: self.decoder.size, :, self.decoder.finite : self.width] = 0
            table[self.rows, :, self.lengths] = new
        if self.mask is None:
            mask = torch.zeros(self.beyond.shape, dtype=key.dtype, device=key.device)
            self.mask = mask.masked_fill_(self.beyond, float("-inf"))[:, None, None]
        return tables, self.mask

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, dropout: float
    ) -> Tensor:
        (keys, values), mask = self.extend(module, key, value)
        size, heads, head_dim = query.shape
        # Query heads that share a key head become queries of that head.
        grouped = query.reshape(size, keys.shape[1], heads // keys.shape[1], head_dim)
        attend = attend_few if query.device.type == "cpu" else F.scaled_dot_product_attention
        attended = [
            attend(
                grouped[rows],
                keys[:size][rows, :, :width],
                values[:size][rows, :, :width],
                attn_mask=mask[rows, ..., :width],
                dropout_p=dropout,
                scale=scale,
            )
            for rows, width in self.blocks
        ]
        return torch.cat(attended).reshape(size, heads, values.shape[-1])


def attend_few(
    query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor, dropout_p: float, scale: float | None
) -> Tensor:
    """`scaled_dot_product_attention` for very few queries of each row, where its blocks are too large.

    Parameters
    ----------
    query : tensor (R, H, n, D)
    key, value : tensor (R, H, m, D)
    attn_mask : tensor that broadcasts to (R, H, n, m)
        Added to the scores.
    dropout_p : float in [0, 1)
    scale : float or None
        Of the scores; None: 1 / sqrt(D).

    Returns
    -------
    tensor (R, H, n, D)
    """
    flat_query, flat_key, flat_value = (x.flatten(0, 1) for x in (query, key, value))
    scores = torch.bmm(flat_query, flat_key.transpose(1, 2)).mul_(query.shape[-1] ** -0.5 if scale is None else scale)
    weights = scores.view(*query.shape[:3], -1).add_(attn_mask).softmax(-1)
    return torch.bmm(F.dropout(weights, dropout_p).flatten(0, 1), flat_value).view(*query.shape[:3], -1)


def prefill_parts(numbers: Sequence[int], prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The prompts to add, in groups of at most `PREFILL_TOKENS` tokens; a longer prompt is a group of its own.

    Parameters
    ----------
    numbers : sequence of int
        Of the prompts to add.
    prompts : sequence of token ids
        All prompts.

    Returns
    -------
    list of lists of int
        Numbers of the prompts.
    """
    parts: list[list[int]] = []
    used = PREFILL_TOKENS
    for i in numbers:
        if used + len(prompts[i]) > PREFILL_TOKENS:
            parts.append([])
            used = 0
        parts[-1].append(i)
        used += len(prompts[i])
    return parts
