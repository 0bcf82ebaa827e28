"""Simulated 8-bit and 4-bit quantisation: weights are rounded to the format and turned back into ordinary numbers.

The arithmetic stays that of the model. So an attack with quantised weights needs no library for them, and any forward
pass runs; on a CPU, bitsandbytes' `nf4` computes just what such weights compute.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from scipy.stats import norm
from torch import Tensor, nn

from evaluation.engine.merging import merged
from evaluation.engine.models import base_model

NF4_BLOCK = 64
_NF4_OFFSET = (2 - 1 / 32 - 1 / 30) / 2

Quantiser = Callable[[Tensor], Tensor]


def int8(weight: Tensor) -> Tensor:
    """Round each row to steps of its largest absolute value / 127.

    The weights of LLM.int8 (Dettmers et al. 2022, vector-wise), without outlier columns and with exact activations.

    Parameters
    ----------
    weight : tensor (out, in)

    Returns
    -------
    tensor (out, in), of the same dtype
    """
    step = weight.float().abs().amax(-1, keepdim=True) / 127
    return torch.where(step > 0, (weight.float() / step).round() * step, 0.0).to(weight.dtype)


def nf4(weight: Tensor) -> Tensor:
    """Round 64 consecutive numbers to 16 multiples of their largest absolute value.

    NormalFloat of QLoRA (Dettmers et al. 2023, section 3 and appendix E), without double quantisation.

    Parameters
    ----------
    weight : tensor of any shape

    Returns
    -------
    tensor of that shape and dtype
    """
    code = nf4_code().to(weight.device)
    flat = weight.float().flatten()
    padded = torch.cat([flat, flat.new_zeros(-flat.numel() % NF4_BLOCK)]).view(-1, NF4_BLOCK)
    scale = padded.abs().amax(1, keepdim=True)
    halves = (code[1:] + code[:-1]) / 2
    nearest = code[torch.bucketize(torch.where(scale > 0, padded / scale, 0.0), halves)]
    return (nearest * scale).flatten()[: flat.numel()].view(weight.shape).to(weight.dtype)


@cache
def nf4_code() -> Tensor:
    """The 16 numbers of NF4: quantiles of the normal distribution, 8 above 0 and 7 below.

    Returns
    -------
    tensor (16,), float32, ascending, in [-1, 1]
    """
    above = norm.ppf(torch.linspace(_NF4_OFFSET, 0.5, 9)[:-1].double().numpy())
    below = -norm.ppf(torch.linspace(_NF4_OFFSET, 0.5, 8)[:-1].double().numpy())
    values = torch.tensor(sorted([*above, 0.0, *below]), dtype=torch.float64)
    return (values / values.abs().max()).float()


QUANTISERS: dict[str, Quantiser] = {"int8": int8, "nf4": nf4}


@torch.no_grad()
def quantise_merged(model: nn.Module, quantiser: Quantiser) -> nn.Module:
    """Merge LoRA adapters into the base weights and quantise all linear layers but the language-model head.

    Parameters
    ----------
    model : nn.Module
        Changed for good; its base weights must not be stored as integers.
    quantiser : callable (tensor) -> tensor

    Returns
    -------
    nn.Module
        The model without its adapters.
    """
    plain = merged(model)
    head = getattr(base_model(plain), "get_output_embeddings", lambda: None)()
    for module in plain.modules():
        if isinstance(module, nn.Linear) and module is not head:
            module.weight.copy_(quantiser(module.weight))
    return plain
