"""Forward passes of causal language models over packed rows: logits, states and likelihoods of answer tokens.

Three ways, which give the same numbers up to rounding:

- "fused": the own forward pass of a Llama on the CPU (`evaluation.engine.llama`), where it applies;
- "packed": the model's own forward pass. A private attention function is installed in the model the first time; it
  hands queries, keys and values to the layout. Calls without a layout run the model's own "sdpa" attention, so that
  the model behaves as before everywhere else;
- "padded": right-padded batches with a mask, for models that cannot take the attention function (`supports_packing`).
"""

from __future__ import annotations

import contextvars
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from evaluation.engine import llama
from evaluation.engine.kernels import HEAD_ROWS
from evaluation.engine.llama import FusedLlama
from evaluation.engine.models import (
    base_model,
    decoder_layers,
    each_module,
    evaluation_mode,
    layer_index,
    model_device,
    text_config,
    vocabulary_size,
)
from evaluation.engine.packing import Layout, PackedBatch
from evaluation.engine.reading import read_answers
from evaluation.engine.sequences import TokenSequence

ATTENTION = "oblivionis_packed"
MODES = ("auto", "fused", "packed", "padded")
WORKERS_BYTES = 1 << 28

_no_mask: contextvars.ContextVar[bool] = contextvars.ContextVar("oblivionis_no_mask", default=False)
_supported: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


class PackingError(RuntimeError):
    """The model does not hand the layout to its attention, or its attention wants what packing cannot give."""


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


def _try_packing(model: nn.Module) -> bool:
    base: Any = base_model(model)
    name = getattr(getattr(base, "config", None), "_attn_implementation", None)
    if not getattr(base, "_supports_attention_backend", False) or name not in ("sdpa", ATTENTION):
        return False
    vocabulary = vocabulary_size(model)
    ids = [(7 * i + 3) % vocabulary for i in range(9)]
    probe = [TokenSequence(tuple(ids[:2]), tuple(ids[2:5])), TokenSequence(tuple(ids[4:7]), tuple(ids[1:4] + ids[7:]))]
    # 8-bit layers round activations by the largest of the whole batch, padding included.
    coarse = base.dtype not in (torch.float32, torch.float64) or any(p.dtype == torch.int8 for p in base.parameters())
    tolerance = 0.2 if coarse else 1e-3
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
    """The way to run sequences of at most max_length tokens: "fused", "packed" or "padded".

    Raises ValueError for an unknown mode and for "fused" where it does not apply.
    """
    if mode not in MODES:
        raise ValueError(f"unknown packing mode {mode!r}, expected one of {', '.join(MODES)}")
    if mode == "fused" and not llama.supports(model):
        raise ValueError("mode fused needs a float32 Llama on the CPU without hooks, dropout or checkpointing")
    if mode != "auto":
        return mode
    if llama.supports(model):
        return "fused"
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

    The model must be one that `supports_packing`.
    """
    install(model)
    with _unmasked():
        output = model(
            input_ids=input_ids.unsqueeze(0),
            position_ids=position_ids.unsqueeze(0),
            use_cache=False,
            logits_to_keep=keep,
            packing=layout,
        )
    return output.logits[0]


def row_forward(model: nn.Module, mode: str) -> Callable[[Tensor, Tensor, Layout, Tensor], Tensor]:
    """`forward_row` for many rows, by the mode "fused" or "packed"; the weights must stay as they are meanwhile."""
    return FusedLlama(model).logits if mode == "fused" else partial(forward_row, model)


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
def _collected(model: nn.Module, layer: int | None) -> Iterator[list[Tensor]]:
    """Collects what leaves decoder layer `layer`, or enters the language-model head (None: after the last norm)."""
    seen: list[Tensor] = []
    thread = threading.get_ident()

    def before(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        if threading.get_ident() == thread:
            seen.append(args[0])

    def after(_: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == thread:
            seen.append(output[0] if isinstance(output, tuple) else output)

    if layer is None:
        head: Any = base_model(model).get_output_embeddings()  # type: ignore[operator]
        handle = head.register_forward_pre_hook(before)
    else:
        handle = decoder_layers(model)[1][layer].register_forward_hook(after)
    try:
        yield seen
    finally:
        handle.remove()


def kept_logits(model: nn.Module, batch: PackedBatch, *, mode: str = "auto") -> Tensor:
    """Logits (K, V) at the row places `batch.keep`; differentiable, in the model's dtype.

    mode: "fused", "packed", "padded" (right-padded batch, the reference), or "auto" (the first that applies).
    """
    mode = _resolve(model, batch, mode)
    if mode == "padded":
        logits, where = _forward_padded(model, batch)
        return logits[where]
    return row_forward(model, mode)(batch.input_ids, batch.position_ids, batch.layout, batch.keep)


def kept_logits_and_states(
    model: nn.Module, batch: PackedBatch, *, mode: str = "auto", layer: int | None = None
) -> tuple[Tensor, Tensor]:
    """`kept_logits` and, from the same pass, states (K, d) at the same places.

    layer: None: the states that enter the language-model head; else those that leave this decoder layer, from 0 or,
    negative, from the last. Raises ValueError if there is no such layer.
    """
    mode = _resolve(model, batch, mode)
    layer = None if layer is None else layer_index(model, layer)
    if mode == "fused":
        fused = FusedLlama(model)
        states, kept = _fused_states(fused, batch, layer)
        return F.linear(states, fused.head), kept
    with _collected(model, layer) as seen:
        if mode == "padded":
            logits, where = _forward_padded(model, batch)
            return logits[where], seen[-1][where] if layer is None else _row(batch, seen[-1])[batch.keep]
        logits = kept_logits(model, batch, mode="packed")
        return logits, seen[-1][0] if layer is None else seen[-1][0][batch.keep]


def _fused_states(fused: FusedLlama, batch: PackedBatch, layer: int | None) -> tuple[Tensor, Tensor]:
    """What enters the head, and what leaves `layer` (None: the same), (K, d) each."""
    if layer is None:
        states = fused.states(batch.input_ids, batch.position_ids, batch.layout, batch.keep)
        return states, states
    return fused.states_and_layer(batch.input_ids, batch.position_ids, batch.layout, batch.keep, layer)


def _row(batch: PackedBatch, padded: Tensor) -> Tensor:
    """(B, L, d) of a right-padded batch -> (N, d) of its row."""
    return batch.layout.unpad(padded.unsqueeze(1))[:, 0]


def answer_logits(model: nn.Module, batch: PackedBatch, *, mode: str = "auto") -> Tensor:
    """Logits (M, V) that predict each answer token, in the order of `batch.labels`; differentiable, model's dtype."""
    logits = kept_logits(model, batch, mode=mode)
    return logits if batch.direct else logits[batch.rows]


@dataclass(frozen=True)
class AnswerRows:
    """What predicts M answer tokens: logits (M, V) as `values`, or states (M, d) and the frozen `head` (V, d)."""

    values: Tensor
    head: Tensor | None

    def logits(self, values: Tensor) -> Tensor:
        """Logits (m, V) of some rows of `values` (m, ·)."""
        return values if self.head is None else F.linear(values, self.head)

    def scaled(self, by: float) -> AnswerRows:
        """Those whose logits are `by` times as large."""
        return self if by == 1 else AnswerRows(self.values * by, self.head)

    def __getitem__(self, rows: slice) -> AnswerRows:
        return AnswerRows(self.values[rows], self.head)


def answer_rows(model: nn.Module, batch: PackedBatch, *, mode: str = "auto") -> AnswerRows:
    """`answer_logits`, but without the logits where these can be made later, a few rows at a time; differentiable."""
    mode = _resolve(model, batch, mode)
    head = None
    if mode == "fused":
        fused = FusedLlama(model, passes="one")
        values = fused.states(batch.input_ids, batch.position_ids, batch.layout, batch.keep)
        if fused.head.requires_grad:
            values = F.linear(values, fused.head)
        else:
            head = fused.head
    else:
        values = kept_logits(model, batch, mode=mode)
    return AnswerRows(values if batch.direct else values[batch.rows], head)


def layer_states(model: nn.Module, batch: PackedBatch, layer: int, *, mode: str = "auto") -> Tensor:
    """What leaves decoder layer `layer`, from 0, at each of the N row tokens: (N, d); differentiable.

    The layers above do not run. Raises ValueError if there is no such layer.
    """
    mode = _resolve(model, batch, mode)
    name, layers = decoder_layers(model)
    if not 0 <= layer < len(layers):
        raise ValueError(f"the model has layers 0 to {len(layers) - 1}, not {layer}")
    if mode == "fused":
        return FusedLlama(model, layer + 1, passes="one").hidden(batch.input_ids, batch.position_ids, batch.layout)
    base = base_model(model)
    parent, _, attribute = name.rpartition(".")
    with _collected(model, layer) as seen:
        setattr(base.get_submodule(parent), attribute, layers[: layer + 1])
        try:
            if mode == "packed":
                forward_row(model, batch.input_ids, batch.position_ids, batch.layout, batch.keep[:1])
            else:
                _forward_padded(model, batch)
        finally:
            setattr(base.get_submodule(parent), attribute, layers)
    return seen[-1][0] if mode == "packed" else _row(batch, seen[-1])


def packed_batch(model: nn.Module, sequences: Sequence[TokenSequence]) -> PackedBatch:
    """The sequences on the model's device; what they begin with alike (a chat template's first words, a question) is
    computed once where that pays, unless dropout draws numbers for each of them.

    On a GPU it never is: there the gradients of a shared token would be added up in another order each time.
    """
    device = model_device(model)
    alone = device.type != "cpu" or _drops(model)
    return PackedBatch.build(sequences, device, share=False if alone else None)


def _drops(model: nn.Module) -> bool:
    base = base_model(model)
    inside = bool(getattr(base.config, "attention_dropout", 0.0)) and base.training
    return inside or any(isinstance(m, nn.Dropout) and m.p > 0 and m.training for m in each_module(model))


def token_log_probs(model: nn.Module, batch: PackedBatch, *, mode: str = "auto") -> Tensor:
    """log p(answer token | everything before it), shape (M,), float32, in (-inf, 0]; differentiable."""
    mode = _resolve(model, batch, mode)
    if mode == "fused":
        return FusedLlama(model, passes="one").token_log_probs(batch)
    logits = kept_logits(model, batch, mode=mode).float()
    if batch.direct:
        return -F.cross_entropy(logits, batch.labels, reduction="none")
    return logits[batch.rows, batch.labels] - logits.logsumexp(-1)[batch.rows]


def fused_workers(model: nn.Module) -> int:
    """How many batches may be scored at once by the mode "fused"."""
    return max(1, WORKERS_BYTES // (4 * HEAD_ROWS * vocabulary_size(model)))


class Scorer:
    """Likelihoods of answer tokens for many batches; the weights must stay as they are meanwhile. No gradients.

    workers: how many batches may be scored at once, each by a thread of its own (`side_by_side`). On the CPU that is
    faster than all cores on one batch, whose small operations wait for the slowest core each; but each batch holds
    logits, which is why there may be fewer workers than cores. layer: which states there are, as in
    `kept_logits_and_states`; raises ValueError if there is no such layer.
    """

    def __init__(self, model: nn.Module, mode: str = "auto", layer: int | None = None) -> None:
        self._model, self._mode = model, mode
        self._layer = None if layer is None else layer_index(model, layer)
        self._fused = FusedLlama(model) if resolve_mode(model, mode, 1) == "fused" else None
        self.workers = 1 if self._fused is None else fused_workers(model)

    def __call__(
        self, batch: PackedBatch, *, states: bool = False, moments: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """log p (M,) float32 of every answer token, whether it is the likeliest, and if asked for states (K, d).

        moments: the fourth is what `read_answers` says, (M, 2).
        """
        if self._fused is not None:
            top, kept = _fused_states(self._fused, batch, self._layer if states else None)
            # Logits of a few rows at a time stay in the cache.
            pieces = (F.linear(rows, self._fused.head) for rows in top.split(HEAD_ROWS))
        elif states:
            logits, kept = kept_logits_and_states(self._model, batch, mode=self._mode, layer=self._layer)
            pieces = iter([logits])
        else:
            kept, pieces = None, iter([kept_logits(self._model, batch, mode=self._mode)])
        logp, hits, spread = read_answers(pieces, batch, moments=moments)
        return logp, hits, kept if states else None, spread


def _resolve(model: nn.Module, batch: PackedBatch, mode: str) -> str:
    return resolve_mode(model, mode, batch.layout.max_length)
