"""A tiny random model of every class that transformers maps to causal language models, and the oracle for each."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.pytorch_utils import Conv1D

from evaluation.engine.architectures import MASKED, Way, way
from evaluation.engine.decoding import greedy
from evaluation.engine.forward import kept_logits_and_states, layer_states, token_log_probs
from evaluation.engine.likelihood import score
from evaluation.engine.models import decoder_layers
from evaluation.engine.packing import PackedBatch
from evaluation.engine.sampling import Rule, draw, sample, uniforms
from evaluation.engine.sequences import TokenSequence

VOCABULARY = 160
LARGEST = 3_000_000
"""Parameters of the largest model that is made."""

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "emb_dim", "embedding_size", "lru_width"), 64),
    "word_embed_proj_dim": 64,
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "dim_ff", "decoder_ffn_dim"), 96),
    "encoder_ffn_dim": 96,
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), 4),
    "encoder_layers": 2,
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    "encoder_attention_heads": 4,
    "num_key_value_heads": 2,
    **dict.fromkeys(("head_dim", "d_kv", "dim_head", "v_head_dim", "mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length"), 512),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 16),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    "mamba_n_groups": 1,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
    **dict.fromkeys(("sliding_window", "attention_window_size", "attention_chunk_size"), 16),
    "floor_scale": 8,
    **dict.fromkeys(("chunk_size", "mamba_chunk_size"), 8),
    "decoder_start_token_id": 1,
}
"""Under the names that configurations use."""

_MLA: dict[str, Any] = {"num_key_value_heads": 4}
_LATENT_ATTENTION = ("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa")
_LATENT_ATTENTION += ("longcat_flash", "minicpm3", "sarvam_mla", "youtu")
_HALF_ATTENTION = {"attn_layer_indices": [1, 3]}
_TEXT: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
_TEXT |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCABULARY, "pad_token_id": 0}
_GEMMA4: dict[str, Any] = {
    "head_dim": 16,
    "per_layer_config": {},
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
}
_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_OWN: dict[str, dict[str, Any]] = {
    **{kind: _MLA for kind in _LATENT_ATTENTION},
    "bailing_hybrid": {
        **_MLA,
        "layer_group_size": 2,
        "num_expert_group": 1,
        "topk_group": 1,
        "num_experts_per_token": 2,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
    },
    "bamba": _HALF_ATTENTION,
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            layers: {"rope_type": "default", "rope_theta": 10000.0}
            for layers in ("sliding_attention", "full_attention")
        },
    },
    "ctrl": {"dff": 96},
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
        "num_key_value_heads": ...,
    },
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, **_MLA},
    "falcon": {"head_dim": ...},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 16},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, "shared_intermediate_size": 32},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "ministral3": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 12,
            "llama_4_scaling_beta": 0.5,
        }
    },
    "mamba": {"time_step_rank": 4},
    "falcon_mamba": {"time_step_rank": 4},
    "mamba2": {"num_heads": 8, "n_groups": 2},
    "kimi_linear": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        **_MLA,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        "num_experts_per_token": 2,
    },
    "minimax": {"layer_types": ["linear_attention", "full_attention"] * 2, "block_size": 8},
    "zamba2": {
        "layer_types": ["mamba", "hybrid"] * 2,
        "hybrid_layer_ids": [1, 3],
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_key_value_heads": 4,
        "kv_channels": 16,
        "num_query_groups": 4,
    },
    "xlstm": {"v_head_dim": ..., "embedding_dim": 64, "num_blocks": 4, "chunk_size": 16, "qk_dim_factor": 1.0},
    "zamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_key_value_heads": 4,
        "mamba_dt_rank": 8,
    },
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16, "layer_types": ["hybrid"] * 4},
    "gemma3": {"text_config": _TEXT | {"sliding_window": 16}, "vision_config": _VISION},
    "gemma4": {"text_config": _GEMMA4 | _TEXT, "vision_config": _VISION, "audio_config": None},
    "llama4": {"text_config": _TEXT | {"num_local_experts": 4, "floor_scale": 8}, "vision_config": _VISION},
    "gemma3n_text": {
        "intermediate_size": [96] * 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.0] * 4,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
    },
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "qwen3_5": {"text_config": _TEXT | {"linear_num_key_heads": 2, "linear_num_value_heads": 4}},
    "qwen3_5_moe": {
        "text_config": _TEXT
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2}
    },
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "qwen3_5_moe_text": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "llama4_text": {"layer_types": ["chunked_attention", "full_attention"] * 2, "no_rope_layers": [1, 0] * 2},
    "laguna": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "mellum": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "roc_bert": {"pronunciation_vocab_size": 20, "shape_vocab_size": 20},
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "gpt_oss": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 2},
    **{kind: {"is_decoder": True} for kind in MASKED},
}
"""What a configuration needs beside the sizes; `...`: nothing."""


def kinds() -> list[str]:
    """The model types that transformers maps to causal language models."""
    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_config(kind: str, **more: Any) -> Any:
    """A configuration of that model type with small sizes."""
    kind_class = CONFIG_MAPPING[kind]
    known = kind_class()
    values = {name: value for name, value in _SIZES.items() if _has(known, name)}
    values |= _OWN.get(kind, {}) | more
    return kind_class(**{name: value for name, value in values.items() if value is not ...})


def _has(config: Any, name: str) -> bool:
    try:
        return hasattr(config, name)
    except Exception:  # transformers refuses to tell what differs by layer
        return False


class NotSmall(Exception):
    """No small model of a type can be made."""


def tiny_model(kind: str, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """A model of that type whose every weight is random, in evaluation mode. Raises NotSmall."""
    try:
        config = tiny_config(kind, **more)
        with torch.device("meta"):
            size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    except Exception as error:
        raise NotSmall((str(error).strip() or type(error).__name__).splitlines()[0][:90].replace("|", "/")) from error
    if size > LARGEST:
        raise NotSmall(f"{size / 1e6:.0f} million parameters")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        shake(model)
    model.generation_config = GenerationConfig()
    return model.requires_grad_(False).to(dtype)


@torch.no_grad()
def shake(model: nn.Module) -> None:
    """Move every weight, so that none is 0 or 1 and hides that it is not read."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.add_(torch.randn_like(parameter) * 0.05)


def records(seed: int = 0, vocabulary: int = VOCABULARY) -> list[TokenSequence]:
    """Sequences with and without common beginnings, shorter and longer than every window of 16 tokens."""
    rng = random.Random(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, vocabulary) for _ in range(count))

    stem = ids(6)
    sizes = ((5, 4), (12, 9), (30, 14), (3, 1), (5, 4), (10, 6), (16, 1), (15, 2))
    found = [TokenSequence(ids(prompt), ids(answer)) for prompt, answer in sizes]
    return [*found, TokenSequence(stem, ids(5)), TokenSequence((*stem, *ids(2)), ids(3))]


def fresh(model: nn.Module) -> None:
    """Let rotary frequencies that depend on earlier calls be those of a model that was just loaded."""
    if any("dynamic" in str(getattr(module, "rope_type", "")) for module in model.modules()):
        with torch.no_grad():
            model(input_ids=torch.zeros(1, 1, dtype=torch.long))


def alone(model: nn.Module, sequences: Sequence[TokenSequence], **options: Any) -> list[Any]:
    """transformers' own output for each sequence by itself."""
    outputs = []
    for sequence in sequences:
        fresh(model)
        outputs.append(model(input_ids=torch.tensor([sequence.prompt + sequence.answer]), use_cache=False, **options))
    return outputs


def log_probs_alone(model: nn.Module, sequences: Sequence[TokenSequence]) -> Tensor:
    """log p (M,) of the answer tokens, each sequence by itself; differentiable."""
    return _log_probs(alone(model, sequences), sequences)


def _log_probs(outputs: Sequence[Any], sequences: Sequence[TokenSequence]) -> Tensor:
    parts = []
    for (prompt, answer), output in zip(sequences, outputs, strict=True):
        rows = output.logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        parts.append(rows[torch.arange(len(answer)), torch.tensor(answer)])
    return torch.cat(parts)


def greedy_alone(model: Any, prompts: Sequence[tuple[int, ...]], limit: int) -> list[list[int]]:
    """`generate(do_sample=False)`, each prompt by itself."""
    found = []
    for prompt in prompts:
        fresh(model)
        ids = torch.tensor([prompt])
        options = {"max_new_tokens": limit, "min_new_tokens": limit, "do_sample": False, "pad_token_id": 0}
        row = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), eos_token_id=None, **options)
        found.append(row[0, len(prompt) :].tolist())
    return found


def with_lora(model: Any) -> Any:
    """`model` with peft's adapters, none of their factors zero, on all linear layers that peft allows."""
    linear = {n.rpartition(".")[2] for n, m in model.named_modules() if type(m) in (nn.Linear, Conv1D)} - {"lm_head"}
    # peft refuses out_proj where fused kernels of state-space layers would pass it by.
    for targets in (sorted(linear), sorted(linear - {"out_proj"})):
        config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM")
        with contextlib.suppress(ValueError):
            adapted = get_peft_model(model, config)
            break
    else:
        raise LookupError("peft puts no adapter on any of its linear layers")
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return adapted.eval()


@dataclass(frozen=True)
class Finding:
    """How a tiny model of one type is run, and how far its numbers are from transformers' own, record by record.

    scores: log-probabilities, in nats; states: of a decoder layer, relative to their largest; chosen: by how much a
    greedy answer's tokens are less likely than the likeliest, in nats, the largest or in half precision the mean (where
    a router's choice of experts may turn on a rounding); drawn: whether sampled answers are token by token those that
    the same random numbers draw; gradients: of all of LoRA's factors, relative to their length, NaN where peft puts no
    adapter on the model; rounding: how far transformers' own log-probabilities are from those of the same weights in
    float32.
    """

    way: Way
    scores: float
    states: float
    chosen: float
    drawn: bool
    gradients: float
    rounding: float

    @property
    def largest(self) -> float:
        found = (self.scores, self.states, self.chosen, self.gradients)
        return max(each for each in found if not math.isnan(each))


def examine(kind: str, dtype: torch.dtype, mode: str = "auto", *, scores_alone: bool = False, **more: Any) -> Finding:
    """Hold every number of a tiny model of that type against transformers and peft, used one record at a time."""
    model, sequences = tiny_model(kind, dtype, **more), records()
    states = chosen = gradients = 0.0
    drawn = True
    with torch.no_grad():
        how = way(model)
        outputs, seen = _alone_with_states(model, sequences)
        expected = _log_probs(outputs, sequences)
        scores = _largest(score_tokens(model, sequences, mode), expected)
        if not scores_alone:
            states = _states(model, sequences, seen, mode)
            chosen = _chosen(model, sequences, mode)
            drawn = dtype != torch.float32 or _draws_alike(model, [s.prompt for s in sequences[:3]], mode)
        rounding = _largest(log_probs_alone(model.float(), sequences), expected) if dtype != torch.float32 else 0.0
        model.to(dtype)
    if not scores_alone:
        try:
            gradients = _gradients(with_lora(model), sequences, mode)
        except LookupError:
            gradients = math.nan
    return Finding(how, scores, states, chosen, drawn, gradients, rounding)


def score_tokens(model: nn.Module, sequences: Sequence[TokenSequence], mode: str) -> Tensor:
    """log p (M,) of all answer tokens, as evaluators get them."""
    return torch.cat([torch.from_numpy(each) for each in score(model, sequences, mode=mode).log_probs])


def _largest(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape and bool(found.isfinite().all())
    return float((found.float() - expected.float()).abs().max())


def _alone_with_states(model: Any, sequences: Sequence[TokenSequence]) -> tuple[list[Any], list[Tensor]]:
    """`alone`, and what each of its passes let out of the second decoder layer; nothing where layers have no list."""
    seen: list[Tensor] = []
    try:
        layer = decoder_layers(model)[1][1]
    except ValueError:
        return alone(model, sequences), seen
    handle = layer.register_forward_hook(
        lambda _m, _a, out: seen.append(out[0] if isinstance(out, tuple | list) else out)
    )
    try:
        return alone(model, sequences), seen
    finally:
        handle.remove()


def _states(model: Any, sequences: Sequence[TokenSequence], seen: Sequence[Tensor], mode: str) -> float:
    """The largest relative difference from the states `seen`, by both functions that tell them."""
    if len(seen) != len(sequences):  # none, or those of a layer that runs several times and has no one state
        return 0.0
    try:
        wide = PackedBatch.build(sequences, share=True, last=True)
        kept = kept_logits_and_states(model, wide, mode=mode, layer=1)[1][wide.state_rows]
        whole = layer_states(model, PackedBatch.build(sequences, last=True), 1, mode=mode)
    except ValueError:  # refused, with a reason: several states per token
        return 0.0
    tops = [x[0, len(s.prompt) - 1 :] for x, s in zip(seen, sequences, strict=True)]
    scale = float(torch.cat(tops).abs().max())
    return max(_largest(kept, torch.cat(tops)), _largest(whole, torch.cat([x[0] for x in seen]))) / scale


def _chosen(model: Any, sequences: Sequence[TokenSequence], mode: str) -> float:
    """By how much the tokens of greedy answers are less likely than the likeliest: as `Finding.chosen` says."""
    prompts = [sequence.prompt for sequence in sequences]
    answers = greedy(model, prompts, max_new_tokens=8, stop_ids=(), mode=mode)
    less = torch.cat([_less_likely(model, prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)])
    return float(less.max() if model.dtype == torch.float32 else less.mean())


def _less_likely(model: Any, prompt: tuple[int, ...], answer: list[int]) -> Tensor:
    """By how many nats each token of a greedy answer is less likely than the likeliest, the answer read as a whole."""
    output = alone(model, [TokenSequence(prompt, tuple(answer))])[0]
    rows = output.logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    return rows.amax(-1) - rows[torch.arange(len(answer)), torch.tensor(answer)]


def _draws_alike(model: Any, prompts: Sequence[tuple[int, ...]], mode: str) -> bool:
    """Whether sampled answers are those drawn with the same random numbers, each answer read as a whole."""
    limit, stop = 4, 7
    found = sample(model, prompts, 5, max_new_tokens=limit, stop_ids=(stop,), seed=3, mode=mode)
    for question, prompt in enumerate(prompts):
        for number in (0, 4):
            answer = found[question][number]
            logits = alone(model, [TokenSequence(prompt, tuple(answer))])[0].logits[0, len(prompt) - 1 :]
            steps = np.arange(len(logits), dtype=np.int32)
            chances = uniforms(3, np.full_like(steps, question), np.full_like(steps, number), steps)
            drawn = draw(logits, torch.from_numpy(chances), Rule()).tolist()[:limit]
            if answer != drawn[: drawn.index(stop) if stop in drawn else limit]:
                return False
    return True


def _gradients(adapted: Any, sequences: Sequence[TokenSequence], mode: str) -> float:
    """The length of the difference of LoRA's gradients, all factors together, relative to their length."""
    factors = [parameter for name, parameter in adapted.named_parameters() if "lora_" in name]
    for parameter in adapted.parameters():
        parameter.requires_grad_(False)
    for parameter in factors:
        parameter.requires_grad_(True)
    weights = torch.linspace(-1, 1, sum(len(sequence.answer) for sequence in sequences))
    expected = torch.autograd.grad(
        (weights * log_probs_alone(adapted, sequences)).sum(), factors, allow_unused=True, materialize_grads=True
    )
    batch = PackedBatch.build(sequences)
    found = torch.autograd.grad(
        (weights * token_log_probs(adapted, batch, mode=mode)).sum(),
        factors,
        allow_unused=True,
        materialize_grads=True,
    )
    differences, lengths = zip(
        *((float((a - b).square().sum()), float(b.square().sum())) for a, b in zip(found, expected, strict=True)),
        strict=True,
    )
    return math.sqrt(sum(differences) / sum(lengths))
