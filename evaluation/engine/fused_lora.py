"""LoRA with one matrix product per layer where that is cheaper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn import functional as F

from evaluation.engine.models import each_module


def effective_weight(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """W + s·B·A, the weight of a linear layer with its LoRA factors (Hu et al. 2022).

    Parameters
    ----------
    weight : tensor (out, in)
        W.
    a : tensor (r, in)
    b : tensor (out, r)
    scale : float
        s.

    Returns
    -------
    tensor (out, in), differentiable in A and B
    """
    return torch.addmm(weight, b, a, alpha=scale)


def is_cheaper(in_features: int, out_features: int, rank: int) -> bool:
    """Whether training (W + s·BA)x takes fewer operations per token than Wx + s·B(Ax).

    Per token, forward and backward: 3·in·out for the merged weight (product, gradient of input and of weight) against
    2·in·out + 3·r·(in + out) for the frozen weight and the two factors.

    Parameters
    ----------
    in_features, out_features, rank : int

    Returns
    -------
    bool
    """
    return in_features * out_features < 3 * rank * (in_features + out_features)


def active_factors(module: nn.Module, *, mixed: bool = False) -> tuple[Tensor, Tensor, float] | None:
    """The factors of a peft LoRA layer that computes exactly Wx + s·B(Ax).

    Parameters
    ----------
    module : nn.Module
    mixed : bool
        The base weight may have another dtype than the factors.

    Returns
    -------
    (A, B, s) or None
        None unless: a plain linear base layer, one active and unmerged adapter of the vanilla kind without bias, and
        dropout 0 or evaluation mode.
    """
    if type(module) is not LoraLinear or type(module.base_layer) is not nn.Linear:
        return None
    active = [name for name in module.active_adapters if name in module.lora_A]
    if len(active) != 1 or module.disable_adapters or module.merged or active[0] in module.lora_variant:
        return None
    name = active[0]
    dropout: Any = module.lora_dropout[name]
    if isinstance(dropout, nn.Dropout) and dropout.training and dropout.p > 0:
        return None
    a: Any = module.lora_A[name]
    b: Any = module.lora_B[name]
    if b.bias is not None or (a.weight.dtype != module.base_layer.weight.dtype and not mixed):
        return None
    return a.weight, b.weight, module.scaling[name]


def _forward(module: LoraLinear, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    factors = None if args or kwargs else active_factors(module)
    if factors is None:
        return type(module).forward(module, x, *args, **kwargs)
    base: Any = module.base_layer
    return F.linear(x, effective_weight(base.weight, *factors), base.bias)


@contextmanager
def fused_lora(model: nn.Module) -> Iterator[int]:
    """Within the context, LoRA layers of `model` use the merged form where `is_cheaper` says so.

    Equal to peft up to rounding, in outputs and gradients. Each forward pass checks anew that the form applies
    (`active_factors`) and else runs peft's own. Module names, parameters and state dict stay as they are.

    Parameters
    ----------
    model : nn.Module

    Yields
    ------
    int
        How many layers use it.
    """
    changed: list[LoraLinear] = []
    for module in each_module(model):
        factors = active_factors(module)
        if factors is None or "forward" in vars(module):
            continue
        a, b, _ = factors
        if is_cheaper(a.shape[1], b.shape[0], a.shape[0]):
            assert isinstance(module, LoraLinear)
            module.forward = _forward.__get__(module)  # type: ignore[method-assign]
            changed.append(module)
    try:
        yield len(changed)
    finally:
        for module in changed:
            del module.forward
