"""A packed forward pass of a Llama for training on the CPU: the model's own weights, fewer operations.

It leaves out what the loss does not read (the last layer's feed-forward at prompt tokens, logits of prompt tokens),
multiplies by queries, keys and values (by gate and up) at once, uses the cheaper of the two LoRA forms, and attends
in groups of similar length. Results equal the model's own forward pass up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel, PeftType
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from clients.fused_lora import active_factors, effective_weight, is_cheaper
from clients.kernels import FrozenHead, Groups, RMSNorm, RotaryAttention, SwiGLU
from evaluation.packing import PackedBatch, base_model


def supports(model: nn.Module, batch: PackedBatch) -> bool:
    """Whether `token_log_probs` applies: a plain float32 Llama on the CPU without hooks, dropout or checkpointing."""
    base = base_model(model)
    if type(base) is not LlamaForCausalLM or not batch.direct or batch.input_ids.device.type != "cpu":
        return False
    if isinstance(model, PeftModel) and model.peft_type != PeftType.LORA:
        return False
    config: Any = base.config
    if config.hidden_act != "silu" or (base.training and config.attention_dropout):
        return False
    dtypes_ok = base.dtype == torch.float32 and base.lm_head.weight.dtype == torch.float32
    layers_ok = all(type(layer) is LlamaDecoderLayer for layer in base.model.layers)
    special = any(
        module._forward_hooks or module._forward_pre_hooks or getattr(module, "gradient_checkpointing", False)
        for module in base.modules()
    )
    return dtypes_ok and layers_ok and not special and base.lm_head.bias is None


def token_log_probs(model: nn.Module, batch: PackedBatch) -> Tensor:
    """log p of each answer token (M,), as `evaluation.packing.token_log_probs`; differentiable. See `supports`."""
    base: Any = base_model(model)
    config = base.config
    stem = base.model
    x = stem.embed_tokens(batch.input_ids)
    cos, sin = stem.rotary_emb(x, batch.position_ids[None])
    half = cos.shape[-1] // 2
    cos, sin = cos[0, :, None, :half], sin[0, :, None, :half]
    groups = Groups.build((batch.lengths - 1).tolist())
    last = len(stem.layers) - 1
    for i, layer in enumerate(stem.layers):
        attention = layer.self_attn
        heads = (config.num_attention_heads, config.num_key_value_heads, attention.head_dim)
        qkv = _project((attention.q_proj, attention.k_proj, attention.v_proj), _norm(layer.input_layernorm, x))
        attended = RotaryAttention.apply(qkv, cos, sin, groups, heads, attention.scaling)
        if i == last:
            attended, x = attended[batch.keep], x[batch.keep]
        x = _add(x, attention.o_proj, attended)
        mlp = layer.mlp
        hidden = SwiGLU.apply(_project((mlp.gate_proj, mlp.up_proj), _norm(layer.post_attention_layernorm, x)))
        x = _add(x, mlp.down_proj, hidden)
    x = _norm(stem.norm, x)
    head = base.lm_head.weight
    if head.requires_grad:
        return -F.cross_entropy(F.linear(x, head), batch.labels, reduction="none")
    return FrozenHead.apply(x, head, batch.labels)  # type: ignore[return-value]


def _norm(module: LlamaRMSNorm, x: Tensor) -> Tensor:
    return RMSNorm.apply(x, module.weight, module.variance_epsilon)  # type: ignore[return-value]


def _weight(module: nn.Module) -> Tensor | None:
    """The one matrix that a bias-free linear layer multiplies by, or None if there is none or it is not cheaper."""
    if type(module) is nn.Linear:
        return module.weight if module.bias is None else None
    factors = active_factors(module)
    if factors is None:
        return None
    base: Any = module.base_layer
    a, b, _ = factors
    if base.bias is not None or not is_cheaper(a.shape[1], b.shape[0], a.shape[0]):
        return None
    return effective_weight(base.weight, *factors)


def _project(modules: tuple[nn.Module, ...], x: Tensor) -> Tensor:
    """The layers' outputs side by side."""
    weights = [_weight(module) for module in modules]
    merged = [w for w in weights if w is not None]
    if len(merged) == len(modules):
        return F.linear(x, torch.cat(merged))
    return torch.cat([module(x) for module in modules], -1)


def _add(residual: Tensor, module: nn.Module, x: Tensor) -> Tensor:
    """residual + module(x)."""
    weight = _weight(module)
    return residual + module(x) if weight is None else torch.addmm(residual, x, weight.T)
