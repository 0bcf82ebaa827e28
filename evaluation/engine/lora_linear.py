"""Frozen linear layers with LoRA adapters on one input, as few matrix products with hand-written gradients."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from evaluation.engine.fused_lora import active_factors
from evaluation.engine.half_precision_weights import times, times_transposed

_copies: weakref.WeakKeyDictionary[nn.Module, tuple[list[int], Tensor]] = weakref.WeakKeyDictionary()
"""By the first module: the versions of the weights, and their copy side by side in bfloat16."""


class AdaptedProduct(torch.autograd.Function):
    """For layers i: x·W_iᵀ + s·(x·A_iᵀ)·B_iᵀ, side by side, of x (N, in).

    weight (Σ out_i, in), frozen, float32 or half precision; a (L·r, in): the A_i below each other; b: B_i (out_i, r)
    each. Returns float32 (N, Σ out_i). Where bfloat16 is multiplied as such (`half`), x and the gradient are rounded to
    it where they meet `weight`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, a: Tensor, scale: float, *b: Tensor) -> Tensor:
        out = times(x, weight)
        inner = x @ a.T
        for (rows, columns), factor in zip(_places(b), b, strict=True):
            out[:, columns].addmm_(inner[:, rows], factor.T, alpha=scale)
        ctx.scale = scale
        ctx.save_for_backward(x, weight, a, inner, *b)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, inner, *b = ctx.saved_tensors
        (grad,) = grads
        down = torch.cat([grad[:, columns] @ factor for (_, columns), factor in zip(_places(b), b, strict=True)], 1)
        down.mul_(ctx.scale)
        grad_x = grad_a = None
        if ctx.needs_input_grad[0]:
            grad_x = times_transposed(grad, weight).addmm_(down, a)
        if ctx.needs_input_grad[2]:
            grad_a = down.T @ x
        grad_b = [
            (grad[:, columns].T @ inner[:, rows]).mul_(ctx.scale) if needed else None
            for (rows, columns), needed in zip(_places(b), ctx.needs_input_grad[4:], strict=True)
        ]
        return grad_x, None, grad_a, None, *grad_b


def _places(b: Sequence[Tensor]) -> list[tuple[slice, slice]]:
    """Of each layer: its columns in x·Aᵀ, and in the result."""
    found: list[tuple[slice, slice]] = []
    row = column = 0
    for factor in b:
        out, rank = factor.shape
        found.append((slice(row, row + rank), slice(column, column + out)))
        row, column = row + rank, column + out
    return found


@dataclass(frozen=True, eq=False)
class Adapted:
    """The operands of `AdaptedProduct`.

    Attributes
    ----------
    weight : tensor (Σ out_i, in)
        Frozen, float32 or half precision.
    a : tensor (L·r, in)
        The A_i below each other.
    b : tuple of L tensors (out_i, r)
    scale : float
        s.
    """

    weight: Tensor
    a: Tensor
    b: tuple[Tensor, ...]
    scale: float

    def __call__(self, x: Tensor) -> Tensor:
        return AdaptedProduct.apply(x, self.weight, self.a, self.scale, *self.b)  # type: ignore[return-value]


def adapted(modules: Sequence[nn.Module], *, half: bool) -> Adapted | None:
    """Linear layers on one input as one product.

    Parameters
    ----------
    modules : sequence of nn.Module
    half : bool
        Multiply by copies of the weights in bfloat16, which are kept until a weight changes; else a single module only.

    Returns
    -------
    Adapted or None
        None unless all are LoRA layers (`active_factors`) of frozen, bias-free linear ones with one scale.
    """
    found = [active_factors(module, mixed=True) for module in modules]
    factors = [f for f in found if f is not None]
    if len(factors) < len(found) or len({scale for _, _, scale in factors}) > 1 or (len(modules) > 1 and not half):
        return None
    bases: list[Any] = [module.base_layer for module in modules]
    if any(base.bias is not None or base.weight.requires_grad for base in bases):
        return None
    weights: list[Tensor] = [base.weight for base in bases]
    kept = len(weights) == 1 and (not half or weights[0].dtype == torch.bfloat16)
    weight = weights[0] if kept else half_copy(modules[0], weights)
    a = torch.cat([a for a, _, _ in factors]) if len(factors) > 1 else factors[0][0]
    return Adapted(weight, a, tuple(b for _, b, _ in factors), factors[0][2])


def half_copy(module: nn.Module, weights: Sequence[Tensor]) -> Tensor:
    """Weights below each other in bfloat16, kept until one of them changes.

    Parameters
    ----------
    module : nn.Module
        The first of the modules; the copy lives as long as it does.
    weights : sequence of tensor (out_i, in)

    Returns
    -------
    tensor (Σ out_i, in), bfloat16
    """
    versions = [number for weight in weights for number in (weight._version, id(weight))]
    known = _copies.get(module)
    if known is None or known[0] != versions:
        known = versions, torch.cat([weight.detach().to(torch.bfloat16) for weight in weights])
        _copies[module] = known
    return known[1]
