"""Padding-free forward passes: many (prompt, answer) sequences in one row, no padding in the linear layers.

All tokens of a batch lie in a single row (1, N) whose position ids restart with every sequence. Only attention needs
to know where a sequence begins: a private attention function gathers queries, keys and values into (B, H, L, D),
attends causally, and puts the result back into the row. Sequences may share prefixes (one prompt, many answers): each
distinct prefix token then lies in the row once, and the gather repeats it where it is needed.

The attention function is installed in a model the first time it is used; calls without a layout run the model's own
"sdpa" attention, so that the model behaves as before everywhere else. Models that cannot take it (see
`supports_packing`) are run with right-padded batches instead, with the same results.
"""

from __future__ import annotations

import contextvars
import inspect
import itertools
import threading
import weakref
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

ATTENTION = "oblivionis_packed"
MODES = ("auto", "packed", "padded")

_no_mask: contextvars.ContextVar[bool] = contextvars.ContextVar("oblivionis_no_mask", default=False)
_supported: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


class Sequence(NamedTuple):
    """One (prompt, answer) pair of token ids; both non-empty, the answer ends with EOS if the record is complete."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


class Layout(Protocol):
    """What the attention function asks to attend: how the tokens of the row belong together."""

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, dropout: float
    ) -> Tensor:
        """query (N, H, D), key and value (N, H_kv, D) of the row -> attention output (N, H, D)."""
        ...


class PackingError(RuntimeError):
    """The model does not hand the layout to its attention, or its attention wants what packing cannot give."""


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

    gather (B*L,): row token at each padded place, 0 where there is none; scatter (N,): a padded place of each row
    token; real (B*L, 1, 1): 1 at places that hold a token; shared: some row token lies in several sequences.
    """

    size: int
    max_length: int
    gather: Tensor
    scatter: Tensor
    real: Tensor
    shared: bool

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
    """Causal attention of (B, H, L, D) queries on (B, H_kv, L, D) keys and values; H a multiple of H_kv."""
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        dropout_p=dropout,
        scale=scale,
        is_causal=True,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    layout: Layout | None = kwargs.pop("packing", None)
    if layout is None:
        if _no_mask.get():
            raise PackingError(f"{type(module).__name__} was not handed the layout by its model")
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if any(kwargs.get(name) is not None for name in ("softcap", "s_aux", "position_bias")):
        raise PackingError(f"{type(module).__name__} uses an attention that packing does not know")
    row_query, row_key, row_value = (x[0].transpose(0, 1) for x in (query, key, value))
    output = layout.attend(
        module,
        row_query,
        row_key,
        row_value,
        scale=kwargs.get("scaling"),
        dropout=kwargs.get("dropout", 0.0) or 0.0,
    )
    return output.unsqueeze(0), None


def _mask(*args: Any, **kwargs: Any) -> Tensor | None:
    return None if _no_mask.get() else sdpa_mask(*args, **kwargs)


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, _mask)


def base_model(model: nn.Module) -> nn.Module:
    """The Hugging Face model inside a PEFT wrapper, or the model itself."""
    unwrap = getattr(model, "get_base_model", None)
    return unwrap() if callable(unwrap) else model  # type: ignore[return-value]


def text_config(model: nn.Module) -> Any:
    """The configuration of the language model, also where it is a part of a larger one."""
    config: Any = base_model(model).config
    return config.gettext_config() if hasattr(config, "gettext_config") else config


def vocabulary_size(model: nn.Module) -> int:
    """Number of logits per position."""
    return int(text_config(model).vocab_size)


def model_device(model: nn.Module) -> torch.device:
    """Device of the model's first parameter: where token ids go."""
    return next(model.parameters()).device


def _window(model: nn.Module) -> int | None:
    """Longest sequence without a sliding window or a chunk border, None where attention has neither."""
    config = text_config(model)
    if getattr(config, "use_sliding_window", True) is False:
        return None
    sizes = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return min((int(size) for size in sizes if size), default=None)


def supports_packing(model: nn.Module) -> bool:
    """Whether the model computes the same with packing as with padding: tried once per model on two short sequences.

    Needs the model's own attention to be "sdpa" and to go through transformers' attention interface; state-space
    layers, soft-capped or biased attention do not qualify. May change the model's attention name, nothing else.
    """
    base = base_model(model)
    if base not in _supported:
        _supported[base] = _try_packing(model)
    return _supported[base]


def install(model: nn.Module) -> str:
    """Make the packing attention the model's attention; returns the name of the one before."""
    base: Any = base_model(model)
    before = base.config._attn_implementation
    if before != ATTENTION:
        base.set_attn_implementation(ATTENTION)
    return before


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, every module's own train or eval flag as before afterwards."""
    flags = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in flags.items():
            module.training = training


def _try_packing(model: nn.Module) -> bool:
    base: Any = base_model(model)
    name = getattr(getattr(base, "config", None), "_attn_implementation", None)
    if not getattr(base, "_supports_attention_backend", False) or name not in ("sdpa", ATTENTION):
        return False
    vocabulary = vocabulary_size(model)
    ids = [(7 * i + 3) % vocabulary for i in range(9)]
    probe = [Sequence(tuple(ids[:2]), tuple(ids[2:5])), Sequence(tuple(ids[4:7]), tuple(ids[1:4] + ids[7:]))]
    tolerance = 1e-3 if base.dtype in (torch.float32, torch.float64) else 0.2
    try:
        with evaluation_mode(model), torch.no_grad():
            batch = PackedBatch.build(probe, model_device(model))
            padded = token_log_probs(model, batch, mode="padded")
            packed = token_log_probs(model, batch, mode="packed")
        ok = packed.shape == padded.shape and bool(torch.allclose(packed, padded, rtol=0, atol=tolerance))
    except (PackingError, TypeError, RuntimeError, ValueError, IndexError, AttributeError):
        ok = False
    if not ok:
        base.set_attn_implementation("sdpa")
    return ok


def resolve_mode(model: nn.Module, mode: str, max_length: int) -> str:
    """ "packed" or "padded" for sequences of at most max_length tokens. Raises ValueError for an unknown mode."""
    if mode not in MODES:
        raise ValueError(f"unknown packing mode {mode!r}, expected one of {', '.join(MODES)}")
    if mode != "auto":
        return mode
    window = _window(model)
    short = window is None or max_length <= window
    return "packed" if short and supports_packing(model) else "padded"


@contextmanager
def _unmasked() -> Iterator[None]:
    token = _no_mask.set(True)
    try:
        yield
    finally:
        _no_mask.reset(token)


def forward_row(model: nn.Module, input_ids: Tensor, position_ids: Tensor, layout: Layout, keep: Tensor) -> Tensor:
    """One row (N,) of tokens through the model, attention by `layout` -> logits (K, V) at the row places `keep` (K,).

    The model must have the attention function installed (`supports_packing` does it).
    """
    with _unmasked():
        output = model(
            input_ids=input_ids.unsqueeze(0),
            position_ids=position_ids.unsqueeze(0),
            use_cache=False,
            logits_to_keep=keep,
            packing=layout,
        )
    return output.logits[0]


def prefix_tree(sequences: Seq[Seq[int]]) -> list[list[int]]:
    """Place in the row of every token of every sequence, such that equal prefixes share their places.

    Places are numbered 0..N-1 without gaps, increasing along each sequence.
    """
    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    places: list[list[int]] = [[] for _ in sequences]
    previous: Seq[int] = ()
    previous_places: list[int] = []
    used = 0
    for i in order:
        current = sequences[i]
        common = sum(1 for _ in itertools.takewhile(lambda ab: ab[0] == ab[1], zip(previous, current, strict=False)))
        fresh = len(current) - common
        places[i] = previous_places[:common] + list(range(used, used + fresh))
        used += fresh
        previous, previous_places = current, places[i]
    return places


@dataclass(frozen=True)
class PackedBatch:
    """B sequences packed into one row of N tokens; M answer tokens, predicted from K row places.

    input_ids, position_ids (N,); lengths, answer_lengths (B,); keep (K,): row places whose logits are needed;
    rows (M,): the entry of `keep` that predicts each answer token; state_rows (M,) or, with last=True, (M+B,): the
    same followed in each sequence by the entry of its last answer token; labels (M,): the answer tokens; segment
    (M,): the index of their sequence; direct: `rows` is 0..K-1. Answer tokens lie in the order of the sequences.
    """

    sequences: tuple[Sequence, ...]
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
        sequences: Seq[Sequence],
        device: torch.device | str | None = None,
        *,
        share: bool = False,
        last: bool = False,
    ) -> PackedBatch:
        """Pack the sequences; share=True computes equal prefixes (a common prompt) once.

        The last answer token is only a label, so it is left out of the row unless last=True asks for its state.
        Raises ValueError for an empty list, an empty prompt or an empty answer.
        """
        sequences = tuple(Sequence(tuple(s[0]), tuple(s[1])) for s in sequences)
        if not sequences:
            raise ValueError("cannot pack an empty list of sequences")
        for i, s in enumerate(sequences):
            if not s.prompt or not s.answer:
                raise ValueError(f"sequence {i} has an empty {'answer' if s.prompt else 'prompt'}")
        inputs = [s.prompt + (s.answer if last else s.answer[:-1]) for s in sequences]
        layout, ids, positions, places = row_layout(inputs, share=share, device=device)
        states = [place for s, row in zip(sequences, places, strict=True) for place in row[len(s.prompt) - 1 :]]
        keep, state_rows = torch.tensor(states), torch.arange(len(states))
        if share:
            keep, state_rows = torch.unique(keep, return_inverse=True)
        answer_lengths = torch.tensor([len(s.answer) for s in sequences])
        predicts = torch.ones(len(states), dtype=torch.bool)
        if last:
            predicts[torch.cumsum(answer_lengths + 1, 0) - 1] = False
        labels = torch.tensor([token for s in sequences for token in s.answer])
        segment = torch.repeat_interleave(torch.arange(len(sequences)), answer_lengths)
        return cls(
            sequences=sequences,
            input_ids=ids,
            position_ids=positions,
            lengths=torch.tensor([len(s.prompt) + len(s.answer) for s in sequences], device=device),
            answer_lengths=answer_lengths.to(device),
            layout=layout,
            keep=keep.to(device),
            rows=state_rows[predicts].to(device),
            state_rows=state_rows.to(device),
            labels=labels.to(device),
            segment=segment.to(device),
            direct=not (share or last),
        )

    @property
    def num_tokens(self) -> int:
        """Tokens the model computes, N."""
        return self.input_ids.numel()


def row_layout(
    sequences: Seq[Seq[int]], *, share: bool, device: torch.device | str | None = None
) -> tuple[CausalLayout, Tensor, Tensor, list[list[int]]]:
    """Layout, input ids (N,), position ids (N,) and the row places of every token of every sequence."""
    if share:
        places = prefix_tree(sequences)
    else:
        starts = itertools.accumulate((len(s) for s in sequences), initial=0)
        places = [list(range(start, start + len(s))) for start, s in zip(starts, sequences, strict=False)]
    lengths = torch.tensor([len(s) for s in sequences])
    longest = int(lengths.max())
    flat_places = torch.tensor(list(itertools.chain.from_iterable(places)))
    flat_ids = torch.tensor(list(itertools.chain.from_iterable(sequences)))
    real = torch.arange(longest) < lengths[:, None]
    padded = real.flatten().nonzero().squeeze(1)
    total = int(flat_places.max()) + 1
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
        shared=total < flat_places.numel(),
    )
    return layout, ids.to(device), positions.to(device), places


def _forward_padded(model: nn.Module, batch: PackedBatch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Logits of a right-padded batch with an attention mask, and where in them the places `keep` are."""
    layout = batch.layout
    shape = (layout.size, layout.max_length)
    mask = layout.real.view(shape).long()
    ids = batch.input_ids[layout.gather].view(shape) * mask
    padded = layout.scatter[batch.keep]
    row, column = padded // layout.max_length, padded % layout.max_length
    crop: dict[str, Tensor] = {}
    if "logits_to_keep" in inspect.signature(base_model(model).forward).parameters:
        first = int(column.min())
        crop = {"logits_to_keep": torch.arange(first, shape[1], device=ids.device)}
        column = column - first
    return model(input_ids=ids, attention_mask=mask, use_cache=False, **crop).logits, (row, column)


@contextmanager
def _head_input(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collects what enters the language-model head: the final hidden states after the last norm."""
    head: Any = base_model(model).get_output_embeddings()  # type: ignore[operator]
    seen: list[Tensor] = []
    thread = threading.get_ident()

    def collect(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        if threading.get_ident() == thread:
            seen.append(args[0])

    handle = head.register_forward_pre_hook(collect)
    try:
        yield seen
    finally:
        handle.remove()


def kept_logits(model: nn.Module, batch: PackedBatch, *, mode: str = "auto") -> Tensor:
    """Logits (K, V) at the row places `batch.keep`; differentiable, in the model's dtype.

    mode: "packed", "padded" (right-padded batch, the reference), or "auto" (packed where the model supports it).
    """
    if resolve_mode(model, mode, batch.layout.max_length) == "padded":
        logits, where = _forward_padded(model, batch)
        return logits[where]
    install(model)
    return forward_row(model, batch.input_ids, batch.position_ids, batch.layout, batch.keep)


def kept_logits_and_states(model: nn.Module, batch: PackedBatch, *, mode: str = "auto") -> tuple[Tensor, Tensor]:
    """`kept_logits` and, from the same pass, the states (K, d) that enter the language-model head."""
    with _head_input(model) as seen:
        if resolve_mode(model, mode, batch.layout.max_length) == "padded":
            seen.clear()
            logits, where = _forward_padded(model, batch)
            return logits[where], seen[-1][where]
        logits = kept_logits(model, batch, mode="packed")
        return logits, seen[-1][0]


def answer_logits(model: nn.Module, batch: PackedBatch, *, mode: str = "auto") -> Tensor:
    """Logits (M, V) that predict each answer token, in the order of `batch.labels`; differentiable, model's dtype."""
    logits = kept_logits(model, batch, mode=mode)
    return logits if batch.direct else logits[batch.rows]


def token_log_probs(model: nn.Module, batch: PackedBatch, *, mode: str = "auto") -> Tensor:
    """log p(answer token | everything before it), shape (M,), float32, in (-inf, 0]; differentiable."""
    logits = kept_logits(model, batch, mode=mode).float()
    if batch.direct:
        return -F.cross_entropy(logits, batch.labels, reduction="none")
    return logits[batch.rows, batch.labels] - logits.logsumexp(-1)[batch.rows]


def sequence_nll(logp: Tensor, batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Token log-probabilities (M,) -> (sum, mean) of the negative log-likelihood per sequence, each (B,), in nats."""
    total = logp.new_zeros(batch.answer_lengths.numel()).index_add(0, batch.segment, -logp)
    return total, total / batch.answer_lengths
