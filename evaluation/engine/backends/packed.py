"""The model's own forward pass over a row without padding, in which attention alone knows where sequences begin.

A private attention function is installed in the model the first time; it hands queries, keys and values to the layout.
Calls without a layout run the model's own "sdpa" attention, so that the model behaves as before everywhere else.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from evaluation.engine.architectures import ATTENTION
from evaluation.engine.backends.base import Backend, collected, shortened
from evaluation.engine.decoder_loop import decode_rows
from evaluation.engine.decoders import Continuations, RowForward
from evaluation.engine.models import base_model
from evaluation.engine.packing import Layout, PackedBatch

_no_mask: contextvars.ContextVar[bool] = contextvars.ContextVar("oblivionis_no_mask", default=False)


class PackingError(RuntimeError):
    """The model does not hand the layout to its attention, or its attention wants what packing cannot give."""


def packed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention over packed rows by their layout, or without a layout as transformers does it.

    Parameters
    ----------
    module : nn.Module
    query : tensor (1, H, N, D)
    key, value : tensor (1, H_kv, N, D)
    attention_mask : tensor, optional
    **kwargs
        As transformers' attention functions have them, and the layout under `packing`.

    Returns
    -------
    output : tensor (1, N, H, D)
    weights : None

    Raises
    ------
    PackingError
        Where the model did not hand the layout on, or its attention wants what packing cannot give.
    """
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


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, _mask)


def install(model: nn.Module) -> str:
    """Make the packing attention the model's attention.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    str
        The name of the attention before.
    """
    base: Any = base_model(model)
    before = base.config._attn_implementation
    if before != ATTENTION:
        base.set_attn_implementation(ATTENTION)
    return before


@contextmanager
def _unmasked() -> Iterator[None]:
    token = _no_mask.set(True)
    try:
        yield
    finally:
        _no_mask.reset(token)


def forward_row(model: nn.Module, input_ids: Tensor, position_ids: Tensor, layout: Layout, keep: Tensor) -> Tensor:
    """One row of tokens through the model, with attention by a layout.

    Parameters
    ----------
    model : nn.Module
    input_ids, position_ids : tensor (N,), int
    layout : Layout
    keep : tensor (K,), int
        Row places.

    Returns
    -------
    tensor (K, V)
        Logits at `keep`.

    Raises
    ------
    PackingError
        Where the model's attention does not take the layout.
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


class PackedBackend(Backend):
    """Rows without padding through the model's own modules: for models in which attention alone mixes positions."""

    name = "packed"

    def logits(self, batch: PackedBatch) -> Tensor:
        return forward_row(self.model, batch.input_ids, batch.position_ids, batch.layout, batch.keep)

    def logits_and_states(self, batch: PackedBatch, layer: int | None) -> tuple[Tensor, Tensor]:
        with collected(self.model, layer) as seen:
            logits = self.logits(batch)
        return logits, seen[-1][0] if layer is None else seen[-1][0][batch.keep]

    def layer_states(self, batch: PackedBatch, layer: int) -> Tensor:
        with collected(self.model, layer) as seen, shortened(self.model, layer):
            forward_row(self.model, batch.input_ids, batch.position_ids, batch.layout, batch.keep[:1])
        return seen[-1][0]

    def row_forward(self) -> RowForward:
        return partial(forward_row, self.model)

    def decode(self, work: Continuations) -> list[list[int]]:
        return decode_rows(self.model, work, self.row_forward())
