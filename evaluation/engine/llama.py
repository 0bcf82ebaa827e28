"""The forward pass of a Llama over a packed row on the CPU: the model's own weights, fewer operations.

It leaves out what is never read (the last layer's feed-forward at prompt tokens, logits of prompt tokens), computes
queries, keys and values (gate and up) in one product, uses the cheaper of the two LoRA forms, and attends sequence by
sequence without padding. Results equal the model's own forward pass up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from peft import PeftModel, PeftType
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm

from evaluation.engine.fused_lora import active_factors, effective_weight, is_cheaper
from evaluation.engine.half_precision_weights import HALVES, FrozenProduct, multiplies_bfloat16
from evaluation.engine.kernels import FeedForward, FrozenHead, RMSNorm, RotaryAttention, SwiGLU, rotate_
from evaluation.engine.lora_linear import Adapted, adapted, half_copy
from evaluation.engine.models import base_model, each_module
from evaluation.engine.packing import CausalLayout, Layout, PackedBatch

STACKED_BYTES = 1 << 28
"""Of matrices that are put side by side anew for every pass."""
MERGED_BYTES = 1 << 31
"""Of adapters' products added to copies of the weights, for many passes."""

_LINEAR = (nn.Linear, LoraLinear)

Product = Tensor | Adapted | tuple[nn.Module | Adapted, ...]
"""Several linear layers on one input: their stacked matrix; or, where that does not exist or is slower, their frozen
matrices with the adapters, or the modules."""


def supports(model: nn.Module, device: str | None = None) -> bool:
    """Whether `FusedLlama` applies: a plain Llama on the CPU without hooks, dropout or checkpointing.

    Its weights are float32, or frozen and kept in half precision.

    Parameters
    ----------
    model : nn.Module
    device : str, optional
        The kind of device, "cpu" or "cuda"; None where the model lies.

    Returns
    -------
    bool
    """
    base = base_model(model)
    if type(base) is not LlamaForCausalLM or (device or base.device.type) != "cpu":
        return False
    if isinstance(model, PeftModel) and model.peft_type != PeftType.LORA:
        return False
    config: Any = base.config
    if config.hidden_act != "silu" or (base.training and config.attention_dropout):
        return False
    if getattr(config, "is_heterogeneous", False):
        return False
    known = type(base.lm_head) is nn.Linear and type(base.model.norm) is LlamaRMSNorm
    if not (known and base.lm_head.bias is None and all(map(_is_known_layer, base.model.layers))):
        return False
    dtypes_ok = base.dtype == base.lm_head.weight.dtype and (base.dtype == torch.float32 or _is_frozen_half(base))
    return dtypes_ok and not any(map(_is_special, each_module(base)))


def _is_known_layer(layer: Any) -> bool:
    """Whether every part of a decoder layer is one that this module knows: most of them are not called.

    Modules are looked up where they lie: this is asked before every pass, too.
    """
    if type(layer) is not LlamaDecoderLayer:
        return False
    parts = layer._modules
    attention, mlp = parts["self_attn"], parts["mlp"]
    if type(attention) is not LlamaAttention or type(mlp) is not LlamaMLP:
        return False
    norms = (parts["input_layernorm"], parts["post_attention_layernorm"])
    linear = [m for name, m in (*attention._modules.items(), *mlp._modules.items()) if name.endswith("_proj")]
    return all(type(norm) is LlamaRMSNorm for norm in norms) and all(type(m) in _LINEAR for m in linear)


def _is_special(module: nn.Module) -> bool:
    """Whether a module does more than its class says, or has weights that are stored as integers.

    Called for every module before every pass: looking up an attribute that a module does not have takes ten times as
    long as one that it has.
    """
    if module._forward_hooks or module._forward_pre_hooks or vars(module).get("gradient_checkpointing", False):
        return True
    return any(not p.is_floating_point() for p in module._parameters.values() if p is not None)


@dataclass(frozen=True, eq=False)
class _Layer:
    """What one decoder layer multiplies by."""

    attention: nn.Module
    attention_norm: LlamaRMSNorm
    qkv: Product
    out: Product
    feed_norm: LlamaRMSNorm
    gate_up: Product
    down: Product


class FusedLlama:
    """A Llama's forward pass with the weights it has when this object is made.

    Differentiable in the trainable parameters. `model` must pass `supports`.
    `depth`: only the first so many layers, for `hidden`. `passes`: "many" merges adapters into copies of the weights
    where no gradients are needed, "one" only where that is cheaper for a single batch, and takes no such memory. Where
    torch may round float32 factors to bfloat16 ("medium" precision) and the processor multiplies such numbers, these
    copies, copies of frozen weights below adapters, and one of a frozen head for its gradient are kept in it; norms,
    attention, residuals and logits stay float32. So they are where the weights themselves are kept in half precision:
    then only these are rounded.
    """

    def __init__(self, model: nn.Module, depth: int | None = None, passes: str = "many") -> None:
        base: Any = base_model(model)
        self._stem = base.model
        config = base.config
        self.head: Tensor = base.lm_head.weight.float()
        rounded = _multiplies_half() and torch.is_grad_enabled() and not self.head.requires_grad
        self._half_head = half_copy(base.lm_head, [base.lm_head.weight]) if rounded else None
        layers = self._stem.layers
        size = 4 * sum(p.numel() for m in each_module(layers) for p in m._parameters.values() if p is not None)
        many = passes == "many" and not torch.is_grad_enabled()
        half = _multiplies_half()
        merge = many and size // (2 if half else 1) <= MERGED_BYTES
        stack = merge or size <= STACKED_BYTES
        self._heads = (config.num_attention_heads, config.num_key_value_heads, layers[0].self_attn.head_dim)
        self.layers = [_layer(layer, stack, merge, half) for layer in layers[:depth]]

    def states(self, input_ids: Tensor, position_ids: Tensor, layout: Layout, keep: Tensor) -> Tensor:
        """One row (N,) of tokens, attention by `layout` -> states (K, d) that enter the head at the places `keep`."""
        return _norm(self._stem.norm, self.hidden(input_ids, position_ids, layout, keep))

    def states_and_layer(
        self, input_ids: Tensor, position_ids: Tensor, layout: Layout, keep: Tensor, layer: int
    ) -> tuple[Tensor, Tensor]:
        """`states` and, from the same pass, what leaves decoder layer `layer`, from 0: (K, d) each."""
        x, tapped = self._pass(input_ids, position_ids, layout, keep, layer)
        assert tapped is not None
        return _norm(self._stem.norm, x), tapped

    def hidden(self, input_ids: Tensor, position_ids: Tensor, layout: Layout, keep: Tensor | None = None) -> Tensor:
        """What leaves the last of the `depth` layers, before the norm: (N, d), or (K, d) at the places `keep`."""
        return self._pass(input_ids, position_ids, layout, keep)[0]

    def _pass(
        self, input_ids: Tensor, position_ids: Tensor, layout: Layout, keep: Tensor | None, tap: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """`hidden`, and what leaves layer `tap` at the places `keep`."""
        tapped: Tensor | None = None
        last = len(self.layers) - 1
        x = self._stem.embed_tokens(input_ids).float()
        cos, sin = self._stem.rotary_emb(x, position_ids[None])
        half = cos.shape[-1] // 2
        cos, sin = cos[0, :, None, :half], sin[0, :, None, :half]
        for i, layer in enumerate(self.layers):
            attended = self._attend(
                layer.attention, _apply(layer.qkv, _norm(layer.attention_norm, x)), cos, sin, layout
            )
            if keep is not None and i == last:
                attended, x = attended[keep], x[keep]
            x = _add(x, layer.out, attended)
            x = _feed_forward(layer, x)
            if i == tap:
                tapped = x if keep is None or i == last else x[keep]
        return x, tapped

    def logits(self, input_ids: Tensor, position_ids: Tensor, layout: Layout, keep: Tensor) -> Tensor:
        """As `states`, but logits (K, V)."""
        return F.linear(self.states(input_ids, position_ids, layout, keep), self.head)

    def token_log_probs(self, batch: PackedBatch) -> Tensor:
        """log p of each answer token (M,), as `evaluation.engine.forward.token_log_probs`."""
        x = self.states(batch.input_ids, batch.position_ids, batch.layout, batch.keep)
        if not batch.direct:
            x = x[batch.rows]
        if self.head.requires_grad and torch.is_grad_enabled():
            return -F.cross_entropy(F.linear(x, self.head), batch.labels, reduction="none")
        return FrozenHead.apply(x, self.head, batch.labels, self._half_head)  # type: ignore[return-value]

    def _attend(self, module: nn.Module, qkv: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        scale: float = module.scaling  # type: ignore[assignment]
        if isinstance(layout, CausalLayout):
            return RotaryAttention.apply(qkv, cos, sin, layout, self._heads, scale)  # type: ignore[return-value]
        num_q, num_kv, dim = self._heads
        row = qkv.view(-1, num_q + 2 * num_kv, dim)
        rotate_(row[:, : num_q + num_kv], cos, sin)
        query, key, value = row.split((num_q, num_kv, num_kv), 1)
        return layout.attend(module, query, key, value, scale=scale, dropout=0.0).flatten(1)


def _multiplies_half() -> bool:
    """Whether products of float32 matrices may be rounded to bfloat16, and that is faster."""
    return torch.get_float32_matmul_precision() == "medium" and multiplies_bfloat16()


def _is_frozen_half(base: nn.Module) -> bool:
    """Whether all of a model but what is float32 is half precision and takes no gradient."""
    kinds = {(p.dtype, p.requires_grad) for p in base.parameters()}
    return all(kind == torch.float32 or (kind in HALVES and not trained) for kind, trained in kinds)


def _layer(layer: Any, stack: bool, merge: bool, half: bool) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        attention,
        layer.input_layernorm,
        _product((attention.q_proj, attention.k_proj, attention.v_proj), stack, merge, half),
        _product((attention.o_proj,), stack, merge, half),
        layer.post_attention_layernorm,
        _product((mlp.gate_proj, mlp.up_proj), stack, merge, half),
        _product((mlp.down_proj,), stack, merge, half),
    )


def _product(modules: tuple[nn.Module, ...], stack: bool, merge: bool, half: bool) -> Product:
    weights = [w for w in (_weight(module, merge) for module in modules) if w is not None]
    if len(weights) == len(modules) and (len(weights) == 1 or stack):
        matrix = torch.cat(weights) if len(weights) > 1 else weights[0]
        return matrix.to(torch.bfloat16) if half and merge else matrix
    together = adapted(modules, half=half)
    return together or tuple(adapted([module], half=half) or module for module in modules)


def _weight(module: nn.Module, merge: bool) -> Tensor | None:
    """The one matrix that a bias-free linear layer multiplies by; None if there is none or it costs more."""
    if type(module) is nn.Linear:
        return None if module.bias is not None else module.weight.float() if merge else module.weight
    factors = active_factors(module, mixed=True)
    if factors is None:
        return None
    base: Any = module.base_layer
    a, b, _ = factors
    cheaper = base.weight.dtype == a.dtype and is_cheaper(a.shape[1], b.shape[0], a.shape[0])
    if base.bias is not None or not (merge or cheaper):
        return None
    return effective_weight(base.weight.float(), *factors)


def _norm(module: LlamaRMSNorm, x: Tensor) -> Tensor:
    return RMSNorm.apply(x, module.weight.float(), module.variance_epsilon)  # type: ignore[return-value]


def _feed_forward(layer: _Layer, x: Tensor) -> Tensor:
    """x + the layer's feed-forward block of x."""
    norm = layer.feed_norm
    rounded = _multiplies_half() and not torch.is_grad_enabled()
    if rounded and _is_half(layer.gate_up) and _is_half(layer.down):
        gate, up = F.linear(_norm(norm, x).to(layer.gate_up.dtype), layer.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate).mul_(up), layer.down)
    if _is_wide(layer.gate_up) and _is_wide(layer.down):
        return FeedForward.apply(x, norm.weight.float(), norm.variance_epsilon, layer.gate_up, layer.down)  # type: ignore[return-value]
    return _add(x, layer.down, SwiGLU.apply(_apply(layer.gate_up, _norm(norm, x))))


def _is_half(product: Product) -> TypeGuard[Tensor]:
    return isinstance(product, Tensor) and product.dtype in HALVES


def _is_wide(product: Product) -> TypeGuard[Tensor]:
    return isinstance(product, Tensor) and product.dtype not in HALVES


def _apply(product: Product, x: Tensor) -> Tensor:
    """The layers' outputs side by side."""
    if _is_half(product):
        return FrozenProduct.apply(x, product)  # type: ignore[return-value]
    if isinstance(product, Tensor):
        return F.linear(x, product)
    if isinstance(product, Adapted):
        return product(x)
    return _call(product[0], x) if len(product) == 1 else torch.cat([_call(module, x) for module in product], -1)


def _call(layer: nn.Module | Adapted, x: Tensor) -> Tensor:
    """What the layer makes of x, which it may want in the precision of its weights."""
    if isinstance(layer, Adapted):
        return layer(x)
    weight: Any = getattr(layer, "base_layer", layer).weight
    return layer(x) if weight.dtype not in HALVES else layer(x.to(weight.dtype)).float()


def _add(residual: Tensor, product: Product, x: Tensor) -> Tensor:
    """residual + product(x)."""
    if _is_wide(product):
        return torch.addmm(residual, x, product.T)
    return residual + _apply(product, x)
