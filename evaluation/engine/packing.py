"""Many (prompt, answer) sequences in one row without padding.

All tokens of a batch lie in a single row (1, N) whose position ids restart with every sequence. Only attention needs
to know where a sequence begins: a `Layout` tells it. Sequences may share prefixes (one prompt, many answers): each
distinct prefix token then lies in the row once. `evaluation.engine.forward` runs models on such rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evaluation.engine.sequences import TokenSequence


class Layout(Protocol):
    """What the attention function asks to attend: how the tokens of the row belong together."""

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, dropout: float
    ) -> Tensor:
        """query (N, H, D), key and value (N, H_kv, D) of the row -> attention output (N, H, D)."""
        ...


class _Move(torch.autograd.Function):
    """Rows `index` of x, where `inverse` undoes the move: the gradient is a gather too, and zero at `holes`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor, keep: Tensor | None) -> Tensor:
        ctx.inverse, ctx.keep = inverse, keep
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad = grads[0].contiguous().index_select(0, ctx.inverse)
        if ctx.keep is not None:
            grad = grad * ctx.keep
        return grad, None, None, None


@dataclass(frozen=True)
class CausalLayout:
    """B sequences of at most L tokens inside a row of N tokens.

    Attributes
    ----------
    size, max_length : int
        B and L.
    gather : tensor (B·L,), int
        Row token at each padded place, 0 where there is none.
    scatter : tensor (N,), int
        A padded place of each row token.
    real : tensor (B·L, 1, 1), bool
        True at places that hold a token.
    shared : bool
        Whether some row token lies in several sequences.
    keys : tensor (T,), int
        The row tokens of all sequences, one sequence after the other.
    spans : tuple of (start, stop, first, last)
        Of each sequence whose row tokens start..stop belong to no sequence before it: they are the last ones among
        first..last, which index `keys` if shared, else the row. Every row token lies in start..stop of one span.
    plans : dict
        What kernels derive from the layout, kept for the next layer.
    """

    size: int
    max_length: int
    gather: Tensor
    scatter: Tensor
    real: Tensor
    shared: bool
    keys: Tensor
    spans: tuple[tuple[int, int, int, int], ...]
    plans: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def pad(self, x: Tensor) -> Tensor:
        """(N, H, D) of the row -> (B, H, L, D)."""
        if self.shared or not x.requires_grad:
            y = x.index_select(0, self.gather)
        else:
            y = _Move.apply(x, self.gather, self.scatter, None)
        return y.view(self.size, self.max_length, *x.shape[1:]).transpose(1, 2)

    def unpad(self, y: Tensor) -> Tensor:
        """(B, H, L, D) -> (N, H, D) of the row."""
        flat = y.transpose(1, 2).reshape(self.size * self.max_length, y.shape[1], y.shape[3])
        if self.shared or not y.requires_grad:
            return flat.index_select(0, self.scatter)
        return _Move.apply(flat, self.scatter, self.gather, self.real.to(flat.dtype))

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, dropout: float
    ) -> Tensor:
        return self.unpad(attend_causal(self.pad(query), self.pad(key), self.pad(value), scale, dropout))


def attend_causal(query: Tensor, key: Tensor, value: Tensor, scale: float | None, dropout: float) -> Tensor:
    """Causal attention.

    Parameters
    ----------
    query : tensor (B, H, L, D)
    key, value : tensor (B, H_kv, L, D)
        H a multiple of H_kv.
    scale : float or None
        Of the scores; None: 1 / sqrt(D).
    dropout : float in [0, 1)

    Returns
    -------
    tensor (B, H, L, D)
    """
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        dropout_p=dropout,
        scale=scale,
        is_causal=True,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens both sequences begin with.

    Parameters
    ----------
    first, second : sequence of int

    Returns
    -------
    int
    """
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return i
    return min(len(first), len(second))


def prefix_tree(sequences: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[int]]:
    """Places in a row for the tokens of sequences, such that equal prefixes share their places.

    Parameters
    ----------
    sequences : sequence of token ids

    Returns
    -------
    places : list of lists of int
        Of every token of every sequence: 0..N-1 without gaps, increasing along each sequence.
    owned : list of int
        How many tokens of each sequence, its last ones and neighbours in the row, belong to it first.
    """
    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    places: list[list[int]] = [[] for _ in sequences]
    owned = [0] * len(sequences)
    previous: Sequence[int] = ()
    previous_places: list[int] = []
    used = 0
    for i in order:
        current = sequences[i]
        common = common_prefix(previous, current)
        fresh = len(current) - common
        places[i] = previous_places[:common] + list(range(used, used + fresh))
        owned[i] = fresh
        used += fresh
        previous, previous_places = current, places[i]
    return places, owned


WORTH_SHARING = 0.1
"""Share of the tokens that must be left out for shared prefixes to pay where they need not be shared."""


def _worth_sharing(sequences: Sequence[Sequence[int]]) -> bool:
    total = sum(map(len, sequences))
    return sum(prefix_tree(sequences)[1]) <= (1 - WORTH_SHARING) * total


@dataclass(frozen=True)
class PackedBatch:
    """B sequences packed into one row of N tokens; M answer tokens, predicted from K row places.

    Answer tokens lie in the order of the sequences.

    Attributes
    ----------
    sequences : tuple of B TokenSequence
    input_ids, position_ids : tensor (N,), int
    lengths, answer_lengths : tensor (B,), int
        Tokens of prompt and answer, and of the answer.
    layout : CausalLayout
    keep : tensor (K,), int
        Row places whose logits are needed.
    rows : tensor (M,), int
        The entry of `keep` that predicts each answer token.
    state_rows : tensor (M + sequences built with `last`,), int
        `rows`, followed in each sequence built with `last` by the entry of its last answer token.
    labels : tensor (M,), int
        The answer tokens.
    segment : tensor (M,), int
        The index of their sequence.
    direct : bool
        Whether `rows` is 0..K-1.
    """

    sequences: tuple[TokenSequence, ...]
    input_ids: Tensor
    position_ids: Tensor
    lengths: Tensor
    answer_lengths: Tensor
    layout: CausalLayout
    keep: Tensor
    rows: Tensor
    state_rows: Tensor
    labels: Tensor
    segment: Tensor
    direct: bool

    @classmethod
    def build(
        cls,
        sequences: Sequence[TokenSequence],
        device: torch.device | str | None = None,
        *,
        share: bool | None = False,
        last: bool | Sequence[bool] = False,
    ) -> PackedBatch:
        """Pack sequences.

        The last answer token is only a label, so it is left out of the row unless `last` asks for its state.

        Parameters
        ----------
        sequences : sequence of B TokenSequence
        device : torch.device or str, optional
        share : bool or None
            Compute equal prefixes (a common prompt) once; None: where that pays.
        last : bool or sequence of B bool
            Keep the last answer token, of all sequences or of each.

        Returns
        -------
        PackedBatch

        Raises
        ------
        ValueError
            For an empty list, prompt or answer.
        """
        sequences = _checked(sequences)
        with_last = [last] * len(sequences) if isinstance(last, bool) else list(last)
        inputs = [
            s.prompt + (s.answer if whole else s.answer[:-1]) for s, whole in zip(sequences, with_last, strict=True)
        ]
        if share is None:
            share = _worth_sharing(inputs)
        layout, ids, positions, places = row_layout(inputs, share=share, device=device)
        keep = _integers(row[len(s.prompt) - 1 :] for s, row in zip(sequences, places, strict=True))
        state_rows = torch.arange(keep.numel())
        if share:
            keep, state_rows = torch.unique(keep, return_inverse=True)
        answer_lengths = torch.tensor([len(s.answer) for s in sequences])
        labels = _integers(s.answer for s in sequences)
        segment = torch.repeat_interleave(torch.arange(len(sequences)), answer_lengths)
        return cls(
            sequences=sequences,
            input_ids=ids,
            position_ids=positions,
            lengths=torch.tensor([len(s.prompt) + len(s.answer) for s in sequences], device=device),
            answer_lengths=answer_lengths.to(device),
            layout=layout,
            keep=keep.to(device),
            rows=state_rows[_predicting(answer_lengths, with_last)].to(device),
            state_rows=state_rows.to(device),
            labels=labels.to(device),
            segment=segment.to(device),
            direct=not (share or any(with_last)),
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt and answer."""
        return max(len(prompt) + len(answer) for prompt, answer in self.sequences)

    @property
    def num_tokens(self) -> int:
        """Tokens the model computes, N."""
        return self.input_ids.numel()


def _checked(sequences: Sequence[TokenSequence]) -> tuple[TokenSequence, ...]:
    """The sequences as tuples; ValueError for an empty list, prompt or answer."""
    checked = tuple(TokenSequence(tuple(s[0]), tuple(s[1])) for s in sequences)
    if not checked:
        raise ValueError("cannot pack an empty list of sequences")
    for i, s in enumerate(checked):
        if not s.prompt or not s.answer:
            raise ValueError(f"sequence {i} has an empty {'answer' if s.prompt else 'prompt'}")
    return checked


def _predicting(answer_lengths: Tensor, with_last: Sequence[bool]) -> Tensor:
    """Which of the rows with a state predict an answer token: all but those of last answer tokens."""
    extra = torch.tensor(with_last)
    ends = torch.cumsum(answer_lengths + extra, 0)
    predicts = torch.ones(int(ends[-1]), dtype=torch.bool)
    predicts[(ends - 1)[extra]] = False
    return predicts


def row_layout(
    sequences: Sequence[Sequence[int]], *, share: bool, device: torch.device | str | None = None
) -> tuple[CausalLayout, Tensor, Tensor, list[list[int]]]:
    """Put sequences into one row.

    Parameters
    ----------
    sequences : sequence of token ids
    share : bool
        Compute equal prefixes once.
    device : torch.device or str, optional

    Returns
    -------
    layout : CausalLayout
    input_ids, position_ids : tensor (N,), int
    places : list of lists of int
        The row place of every token of every sequence.
    """
    sizes = [len(s) for s in sequences]
    ends = list(itertools.accumulate(sizes))
    if share:
        places, owned = prefix_tree(sequences)
    else:
        places, owned = [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)], sizes
    lengths = torch.tensor(sizes)
    longest = int(lengths.max())
    flat_places = _integers(places)
    flat_ids = _integers(sequences)
    real = torch.arange(longest) < lengths[:, None]
    padded = real.flatten().nonzero().squeeze(1)
    total = int(flat_places.max()) + 1
    shared = total < flat_places.numel()
    spans = tuple(
        (row[-1] + 1 - own, row[-1] + 1, *((end - len(row), end) if shared else (row[0], row[-1] + 1)))
        for row, own, end in zip(places, owned, ends, strict=True)
        if own
    )
    gather = torch.zeros(real.numel(), dtype=torch.long)
    gather[padded] = flat_places
    scatter, ids, positions = (torch.empty(total, dtype=torch.long) for _ in range(3))
    scatter[flat_places] = padded
    ids[flat_places] = flat_ids
    positions[flat_places] = padded % longest
    layout = CausalLayout(
        size=len(sequences),
        max_length=longest,
        gather=gather.to(device),
        scatter=scatter.to(device),
        real=real.flatten()[:, None, None].to(device),
        shared=shared,
        keys=flat_places.to(device),
        spans=spans,
    )
    return layout, ids.to(device), positions.to(device), places


def _integers(parts: Iterable[Sequence[int]]) -> Tensor:
    """The parts one after the other, int64."""
    return torch.from_numpy(np.array(list(itertools.chain.from_iterable(parts)), dtype=np.int64))


def sequence_nll(logp: Tensor, batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Negative log-likelihood of each sequence.

    Parameters
    ----------
    logp : tensor (M,)
        Log-probabilities of the answer tokens.
    batch : PackedBatch

    Returns
    -------
    total, mean : tensor (B,), at least 0
        Sum and mean over the answer tokens, nats.
    """
    total = logp.new_zeros(batch.answer_lengths.numel()).index_add(0, batch.segment, -logp)
    return total, total / batch.answer_lengths
