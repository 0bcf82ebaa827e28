"""Products with frozen matrices that are kept in half precision on a CPU, in float32 to the outside.

Without instructions for it a processor multiplies such matrices hundreds of times as slowly as float32 (0.3 GFLOP/s
instead of 74, measured on an AMD EPYC with AVX2). There a matrix is widened for the time of its product.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

HALVES = (torch.bfloat16, torch.float16)


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for products in bfloat16."""
    return torch.cpu._is_avx512_bf16_supported()


def times(x: Tensor, weight: Tensor) -> Tensor:
    """x·Wᵀ in float32.

    In bfloat16, where the processor can, x is rounded to it; otherwise x keeps its precision.

    Parameters
    ----------
    x : tensor (N, in), float32
    weight : tensor (out, in), of any precision

    Returns
    -------
    tensor (N, out), float32
    """
    if weight.dtype == torch.bfloat16 and multiplies_bfloat16():
        return F.linear(x.to(weight.dtype), weight).float()
    return F.linear(x, weight.float())


def times_transposed(grad: Tensor, weight: Tensor) -> Tensor:
    """g·W in float32, rounded as in `times`.

    Parameters
    ----------
    grad : tensor (N, out), float32
    weight : tensor (out, in), of any precision

    Returns
    -------
    tensor (N, in), float32
    """
    if weight.dtype == torch.bfloat16 and multiplies_bfloat16():
        return (grad.to(weight.dtype) @ weight).float()
    return grad @ weight.float()


class FrozenProduct(torch.autograd.Function):
    """`times`, differentiable in x; of W nothing but itself is kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return times(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return times_transposed(grads[0], weight), None
