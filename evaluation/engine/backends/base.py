"""What every way of running a causal language model offers."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from evaluation.engine.decoders import Continuations, RowForward
from evaluation.engine.models import base_model, decoder_layers
from evaluation.engine.packing import PackedBatch


@dataclass(frozen=True)
class AnswerRows:
    """What predicts M answer tokens.

    Attributes
    ----------
    values : tensor (M, V) or (M, d)
        Logits, or states where there is a `head`.
    head : tensor (V, d), optional
        The frozen language-model head.
    """

    values: Tensor
    head: Tensor | None

    def logits(self, values: Tensor) -> Tensor:
        """Logits (m, V) of some rows of `values` (m, ·)."""
        return values if self.head is None else F.linear(values, self.head)

    def scaled(self, by: float) -> AnswerRows:
        """Those whose logits are `by` times as large."""
        return self if by == 1 else AnswerRows(self.values * by, self.head)

    def __getitem__(self, rows: slice | Tensor) -> AnswerRows:
        return AnswerRows(self.values[rows], self.head)


class Backend(ABC):
    """One way to run a causal language model.

    All ways give the numbers that the model's own forward pass gives for one sequence at a time, up to rounding. What
    they return is differentiable, so that training steps are taken through them. The weights must stay as they are
    while an object lives.

    Parameters
    ----------
    model : nn.Module
    """

    name: ClassVar[str]

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @property
    def workers(self) -> int:
        """How many batches may be run at once, each by a thread of its own."""
        return 1

    @abstractmethod
    def logits(self, batch: PackedBatch) -> Tensor:
        """Logits (K, V) at the places `batch.keep`, in the model's dtype."""

    @abstractmethod
    def logits_and_states(self, batch: PackedBatch, layer: int | None) -> tuple[Tensor, Tensor]:
        """`logits` and, from the same pass, the states (K, d) there.

        layer: None: the states that enter the language-model head; else those that leave this decoder layer, from 0.
        """

    @abstractmethod
    def layer_states(self, batch: PackedBatch, layer: int) -> Tensor:
        """What leaves decoder layer `layer`, from 0, at each of the N row tokens: (N, d)."""

    def row_forward(self) -> RowForward:
        """The pass over a row without padding on which a `decoder_loop` runs; ValueError where there is none."""
        raise ValueError(f"the way {self.name} pads its rows, or runs one model's own generation")

    @abstractmethod
    def decode(self, work: Continuations) -> list[list[int]]:
        """The tokens of every continuation, without the stop token. No gradients."""

    def pieces(self, batch: PackedBatch, *, states: bool, layer: int | None) -> tuple[Iterator[Tensor], Tensor | None]:
        """`logits` in consecutive pieces of rows and, where `states`, the states of `logits_and_states`."""
        if not states:
            return (self.logits(batch) for _ in range(1)), None
        logits, kept = self.logits_and_states(batch, layer)
        return iter([logits]), kept

    def answer_rows(self, batch: PackedBatch) -> AnswerRows:
        """What predicts each answer token, in the order of `batch.labels`."""
        values = self.logits(batch)
        return AnswerRows(values if batch.direct else values[batch.rows], None)

    def token_log_probs(self, batch: PackedBatch) -> Tensor:
        """log p(answer token | everything before it), shape (M,), float32, in (-inf, 0]."""
        logits = self.logits(batch).float()
        if batch.direct:
            return -F.cross_entropy(logits, batch.labels, reduction="none")
        return logits[batch.rows, batch.labels] - logits.logsumexp(-1)[batch.rows]


@contextmanager
def collected(model: nn.Module, layer: int | None) -> Iterator[list[Tensor]]:
    """Context that collects hidden states of the passes that the current thread makes.

    Parameters
    ----------
    model : nn.Module
    layer : int, optional
        States that leave this decoder layer, from 0; None: those that enter the language-model head, after the last
        norm.

    Yields
    ------
    list of tensors (B, n, d)
        One of each pass so far.
    """
    seen: list[Tensor] = []
    thread = threading.get_ident()

    def before(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        if threading.get_ident() == thread:
            seen.append(args[0])

    def after(module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == thread:
            states = output[0] if isinstance(output, tuple | list) else output
            if states.ndim != 3:
                raise ValueError(f"a {type(module).__name__} gives {tuple(states.shape)}, not one state per token")
            seen.append(states)

    if layer is None:
        head: Any = base_model(model).get_output_embeddings()  # type: ignore[operator]
        handle = head.register_forward_pre_hook(before)
    else:
        handle = decoder_layers(model)[1][layer].register_forward_hook(after)
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def shortened(model: nn.Module, layer: int) -> Iterator[None]:
    """Within the context the model ends after a decoder layer.

    Parameters
    ----------
    model : nn.Module
    layer : int
        From 0.
    """
    name, layers = decoder_layers(model)
    parent, _, attribute = name.rpartition(".")
    owner = base_model(model).get_submodule(parent)
    setattr(owner, attribute, layers[: layer + 1])
    try:
        yield
    finally:
        setattr(owner, attribute, layers)
