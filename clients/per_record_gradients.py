"""Sum of clipped per-record gradients, for DP-SGD."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora.layer import ParamWrapper
from torch import Tensor, nn

from clients.flat_parameters import FlatParameters
from evaluation.engine.sequences import TokenSequence

Losses = Callable[[Sequence[int]], Tensor]
"""(Numbers of records) → the loss of each (B,), independent of all other records, by a new forward pass."""
_LEAST = 1e-30


def clipped_sum(
    model: nn.Module,
    flat: FlatParameters,
    records: Sequence[TokenSequence],
    losses: Losses,
    norm: float,
    *,
    exactly: bool = False,
) -> Tensor:
    """Add the clipped gradients of records to `flat.grad`: Σ_i g_i · min(1, norm/‖g_i‖).

    g_i is the gradient of the loss of record i in all of `flat`. Where everything trainable are weights of linear
    layers, as LoRA's factors are, it takes one forward pass of all records and one backward pass that stops at the
    layers' outputs: the gradient of a weight is Σ_t δ_t x_tᵀ over a record's tokens (Goodfellow 2015; Bu et al. 2023).
    Otherwise, as for a head that reads answer tokens only, a layer that takes part several times (records of several
    lengths that are run plainly) or `exactly`, it takes a forward and a backward pass for each record.

    Parameters
    ----------
    model : nn.Module
    flat : FlatParameters
    records : sequence of B TokenSequence
        In the order in which `losses` runs them, for their lengths.
    losses : Losses
    norm : float above 0
        Clipping norm.
    exactly : bool
        One pass per record.

    Returns
    -------
    tensor (B,)
        ‖g_i‖; a record whose gradient is not finite adds nothing.
    """
    if not records:
        return flat.grad.new_zeros(0)
    layers = None if exactly else _linear_layers(model)
    if layers is None:
        return _one_by_one(flat, len(records), losses, norm)
    with _watched(layers) as seen:
        values = losses(range(len(records)))
        used = [call for call in seen if call.output.requires_grad]
        once = len({id(call.layer) for call in used}) == len(used)
        outputs = [call.output for call in used] if once else []
        gradients = torch.autograd.grad(values.sum(), outputs, allow_unused=True) if outputs else ()
    if not once:
        return _one_by_one(flat, len(records), losses, norm)
    lengths = [len(record.prompt) + len(record.answer) - 1 for record in records]
    calls = [(call, gradient) for call, gradient in zip(used, gradients, strict=True) if gradient is not None]
    if not all(_by_tokens(call.input, lengths) for call, _ in calls):
        return _one_by_one(flat, len(records), losses, norm)
    parts = [_Part.of(call, gradient, lengths) for call, gradient in calls]
    squares = flat.grad.new_zeros(len(records))
    for part in parts:
        squares += part.squared_norms()
    norms = squares.sqrt()
    for part in parts:
        part.add(_factors(norms, norm))
    return norms


def _factors(norms: Tensor, norm: float) -> Tensor:
    """Clipping factors min(1, norm/‖g_i‖), 0 where the gradient is not finite."""
    return torch.where(norms.isfinite(), (norm / norms.clamp(min=_LEAST)).clamp(max=1.0), 0.0)


def _one_by_one(flat: FlatParameters, count: int, losses: Losses, norm: float) -> Tensor:
    """As `clipped_sum`, with a forward and a backward pass for each record."""
    total, norms = flat.grad.clone(), []
    for number in range(count):
        flat.zero_grad()
        losses([number]).sum().backward()
        length = torch.linalg.vector_norm(flat.grad)
        factor = _factors(length, norm)
        norms.append(length)
        if factor > 0:
            total.add_(flat.grad * factor)
    flat.zero_grad()
    flat.grad.add_(total)
    return torch.stack(norms)


def _linear_layers(model: nn.Module) -> list[nn.Linear] | None:
    """The linear layers whose weights are all that is trainable, each of which is in one layer; None where more is.

    peft's factors for a parameter are linear layers that nobody calls, and do not count.
    """
    wrappers = [m for m in model.modules() if isinstance(m, ParamWrapper)]
    aside = {id(factor) for w in wrappers for factor in (*w.lora_A.values(), *w.lora_B.values())}
    layers = [m for m in model.modules() if type(m) is nn.Linear and m.weight.requires_grad and id(m) not in aside]
    weights = [id(layer.weight) for layer in layers]
    trainable = {id(p) for p in model.parameters() if p.requires_grad}
    return layers if len(set(weights)) == len(weights) and set(weights) == trainable else None


@dataclass(frozen=True)
class _Call:
    """A call of a layer: its input and output, (1, N, d) of a packed row or (B, L, d) of padded ones."""

    layer: nn.Linear
    input: Tensor
    output: Tensor


@contextmanager
def _watched(layers: Sequence[nn.Linear]) -> Iterator[list[_Call]]:
    """Context that collects the calls of `layers` for which a gradient can be computed."""
    seen: list[_Call] = []

    def after(layer: Any, args: tuple[Tensor, ...], output: Tensor) -> None:
        if torch.is_grad_enabled():
            seen.append(_Call(layer, args[0].detach(), output))

    handles = [layer.register_forward_hook(after) for layer in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class _Part:
    """One layer's part of the gradients: inputs x (B, L, in) and gradients δ of outputs (B, L, out), by record, zero
    where a record has no token."""

    layer: nn.Linear
    inputs: Tensor
    gradients: Tensor

    @classmethod
    def of(cls, call: _Call, gradient: Tensor, lengths: Sequence[int]) -> _Part:
        """The part of one call of a layer."""
        inputs, gradient = call.input.float(), gradient.float()
        if _is_row(inputs, lengths):
            inputs, gradient = (_by_record(x[0], lengths) for x in (inputs, gradient))
        return cls(call.layer, inputs, gradient)

    def squared_norms(self) -> Tensor:
        """(B,) ‖Σ_t δ_t x_tᵀ‖², from whichever is smaller: the sums themselves, or the products of tokens by tokens."""
        tokens, (width, height) = self.inputs.shape[1], (self.inputs.shape[2], self.gradients.shape[2])
        if tokens * tokens < width * height:
            left = self.inputs @ self.inputs.transpose(1, 2)
            return (left * (self.gradients @ self.gradients.transpose(1, 2))).sum((1, 2)).clamp(min=0.0)
        return (self.gradients.transpose(1, 2) @ self.inputs).square().sum((1, 2))

    def add(self, factors: Tensor) -> None:
        """Add Σ_i factor_i Σ_t δ_t x_tᵀ to the weight's gradient."""
        weighted = torch.where(factors[:, None, None] > 0, self.gradients * factors[:, None, None], 0.0)
        assert self.layer.weight.grad is not None
        self.layer.weight.grad.addmm_(weighted.flatten(0, 1).T, self.inputs.nan_to_num().flatten(0, 1))


def _is_row(inputs: Tensor, lengths: Sequence[int]) -> bool:
    """Whether (B, L, d) is one row of all records' tokens."""
    return inputs.shape[0] == 1 and inputs.shape[1] == sum(lengths)


def _by_tokens(inputs: Tensor, lengths: Sequence[int]) -> bool:
    """Whether a layer's inputs are the records' tokens, in one row or with a row for each record."""
    return inputs.ndim == 3 and (_is_row(inputs, lengths) or inputs.shape[0] == len(lengths))


def _by_record(row: Tensor, lengths: Sequence[int]) -> Tensor:
    """(N, d) of one record after the other -> (B, L, d), zero where a record is shorter."""
    return nn.utils.rnn.pad_sequence(list(row.split(list(lengths))), batch_first=True)
