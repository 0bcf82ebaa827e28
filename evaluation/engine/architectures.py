"""Which ways of running a model give the model's own numbers; decided by its type and configuration, not by trying.

| way | for | sequences |
| --- | --- | --- |
| fused | a Llama on the CPU | in one row without padding, by an own forward pass |
| packed | attention alone mixes positions | in one row without padding, by the model's forward pass |
| padded | attention with windows, soft caps, sinks, biases | right-padded with a mask |
| plain | all others: convolutions, state spaces, linear attention, anything unknown | of one length together |

The lists below name transformers' model types. `tests/integration/test_architectures.py` holds each of them against
transformers used one record at a time; a type that is in no list is run plainly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from evaluation.engine import llama
from evaluation.engine.models import base_model

ATTENTION = "oblivionis_packed"
"""The name of the packed way's attention function in transformers."""
MODES = ("auto", "fused", "packed", "padded", "plain")

# fmt: off
PACKED = frozenset((
    "afmoe", "apertus", "apertus1p5_text", "arcee", "aria_text", "axk1", "biogpt", "bitnet", "codegen", "cohere",
    "cohere2", "cohere2_moe", "ctrl", "cwm", "dbrx", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5",
    "ernie4_5_moe", "exaone4", "exaone_moe", "flex_olmo", "gemma", "gemma3_text", "glm", "glm4", "glm4_moe",
    "glm4_moe_lite", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "granite", "granitemoe", "granitemoeshared", "helium",
    "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3", "hyperclovax", "jais2", "jetmoe", "kolibri1", "laguna", "llama",
    "longcat_flash", "mellum", "minicpm3", "minimax_m2", "ministral", "ministral3", "mistral", "mixtral", "nanochat",
    "olmo", "olmo2", "olmo3", "olmoe", "opt", "persimmon", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_moe", "sarvam_mla", "sarvam_moe", "seed_oss", "smollm3", "solar_open", "starcoder2", "youtu",
))
"""Attention alone mixes positions, once a layer, through transformers' attention interface."""
PADDED = frozenset((
    "bloom", "diffllama", "doge", "falcon", "flint", "gemma2", "gemma3n_text", "gemma4_text", "gemma4_unified_text",
    "gpt_neo", "gpt_neox_japanese", "gpt_oss", "granite_swa", "granitemoe_swa", "mimo_v2_flash", "modernbert-decoder",
    "mpt", "nemotron", "stablelm", "vaultgemma", "xglm",
))
"""A mask hides padding on either side from all that mixes positions."""
CACHED = frozenset((
    "axk2", "bailing_hybrid", "bamba", "beam", "deepseek_v32", "deepseek_v4", "falcon_h1", "falcon_mamba", "gemma3",
    "glm_moe_dsa", "granitemoehybrid", "hrm_text", "hy_v4", "jamba", "kimi_linear", "lara_mini", "lfm2", "lfm2_moe",
    "lfm3", "llama4", "llama4_text", "mamba", "mamba2", "minimax", "minimax_m3_vl_text", "nemotron_h", "olmo_hybrid",
    "qwen3_5", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "recurrent_gemma", "zaya",
))
"""Other types whose own cache gives, token by token, what a pass over the whole sequence gives."""
MASKED = frozenset((
    "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert", "rembert",
    "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm", "xlm-roberta", "xlm-roberta-xl", "xlnet", "xmod",
))
"""Trained to guess words from what stands on both sides of them."""
# fmt: on

_OTHERS = {
    "cpmant": "it puts tokens of its own before a text",
    "reformer": "it hashes positions at random, and wants texts of fixed lengths in training",
}
_ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_ROPES = frozenset({"default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"})


@dataclass(frozen=True, slots=True)
class Way:
    """How a model is run.

    Attributes
    ----------
    name : str
        The way for sequences of at most `limit` tokens.
    limit : int, optional
        None: `name` is the way for sequences of any length.
    beyond : str
        The way for longer sequences.
    reason : str
        What decides, in words.
    """

    name: str
    limit: int | None
    beyond: str
    reason: str

    def of(self, length: int) -> str:
        """The way for sequences of at most so many tokens."""
        return self.name if self.limit is None or length <= self.limit else self.beyond


COSTS = {
    "fused": "the quickest: no padding, an own forward pass, hand-written gradients",
    "packed": "quick: no padding, the model's forward pass",
    "padded": "slower: padding is computed too, and answers wait for the longest of their batch",
    "plain": "slow: only records of one length run together",
}
"""What each way costs, in words."""


def way(model: nn.Module, device: str | None = None) -> Way:
    """How to run the model, as it is now.

    Parameters
    ----------
    model : nn.Module
    device : str, optional
        The kind of device that it runs on, "cpu" or "cuda"; None where it lies.

    Returns
    -------
    Way

    Raises
    ------
    ValueError
        If no way gives the model's own numbers (`refusal`).
    """
    base: Any = base_model(model)
    if (wrong := refusal(model)) is not None:
        raise ValueError(wrong)
    fused = llama.supports(model, device)
    if not fused and (unknown := _not_known(base)) is not None:
        return Way("plain", None, "plain", unknown)
    kind, growing = base.config.model_type, longest_of_one_kind(base.config)
    if fused:
        return Way("fused", growing, "plain", "a Llama on the CPU")
    longer = "padded" if growing is None else "plain"
    attention = base.config._attn_implementation
    if kind not in PACKED or getattr(base.config, "attn_logit_softcapping", None):
        return Way("padded", growing, longer, f"the attention of {kind} is more than queries, keys and values")
    if attention not in ("sdpa", ATTENTION):
        return Way("padded", growing, longer, f"its attention runs by {attention}, not by sdpa")
    limit = min((size for size in (attention_window(base.config), growing) if size is not None), default=None)
    return Way("packed", limit, longer, "attention alone mixes the positions")


def is_known(model: nn.Module) -> bool:
    """Whether the model's type is in a list: it is causal, and its cache is right where it is run plainly.

    With another type, each token of an answer costs a pass over the whole sequence.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    bool
    """
    base: Any = base_model(model)
    return base.config.model_type in PACKED | PADDED | CACHED or llama.supports(model)


def refusal(model: nn.Module) -> str | None:
    """Why no way can give the model's own numbers.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    str or None
        One line; None if there is such a way.
    """
    base: Any = base_model(model)
    text = getattr(base.config, "text_config", None) or base.config
    both = getattr(text, "use_bidirectional_attention", None) in (True, "all")
    both = both or getattr(text, "is_causal", True) is False
    if (wrong := refused_type(base.config.model_type, both=both)) is not None:
        return wrong
    adapters = getattr(model, "peft_config", None) or {}
    for adapter in adapters.values():
        if getattr(adapter, "is_prompt_learning", False):
            return f"adapters of the kind {adapter.peft_type.value} put tokens of their own before a text"
    return None


def refused_type(kind: str, *, both: bool = False) -> str | None:
    """Why a model type is refused.

    Parameters
    ----------
    kind : str
        transformers' model type.
    both : bool
        Whether its attention is bidirectional.

    Returns
    -------
    str or None
        One line; None if the type is not refused.
    """
    if both or kind in MASKED:
        return f"{kind} is no causal language model: it reads what stands on both sides of a word"
    return f"{kind} is of no use here: {_OTHERS[kind]}" if kind in _OTHERS else None


def _not_known(base: Any) -> str | None:
    """Why only passes over sequences of one length are known to be right; None where more is."""
    kind = base.config.model_type
    if getattr(base.config, "is_heterogeneous", False):
        return "its layers differ in shape"
    if other := set(getattr(base.config, "layer_types", None) or ()) - _ATTENTION_LAYERS:
        return f"it has layers of the kind {min(other)}"
    if kind in CACHED:
        return f"{kind} mixes positions by more than attention, or remembers in its own way"
    if kind not in PACKED | PADDED:
        return f"{kind} is not known here; each token of an answer costs a pass over the whole sequence"
    if type(base).__name__ != MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind):
        return f"{type(base).__name__} is not transformers' own class of a {kind}"
    if other := {rope for rope, _ in _ropes(base.config)} - _ROPES:
        return f"it has rotary positions of the kind {min(other)}"
    return None


def attention_window(config: Any) -> int | None:
    """Longest sequence without a sliding window or a chunk border.

    Parameters
    ----------
    config : PreTrainedConfig
        Of the language model.

    Returns
    -------
    int or None
        Tokens; None if attention has neither.
    """
    if set(getattr(config, "layer_types", None) or ()) == {"full_attention"}:
        return None
    sizes = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return min((int(size) for size in sizes if size), default=None)


def longest_of_one_kind(config: Any) -> int | None:
    """Longest sequence whose rotary frequencies do not depend on the longest sequence of its batch.

    Parameters
    ----------
    config : PreTrainedConfig
        Of the language model.

    Returns
    -------
    int or None
        Tokens; None if they never depend on it.
    """
    limits = []
    for rope, settings in _ropes(config):
        if rope == "longrope":
            limits.append(settings.get("original_max_position_embeddings") or config.max_position_embeddings)
        elif rope == "dynamic":
            limits.append(config.max_position_embeddings - 1)
    return min(limits, default=None)


def _ropes(config: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The kinds of rotary positions with their settings, which may differ by kind of layer."""
    settings = getattr(config, "rope_parameters", None) or {}
    for each in [settings, *(value for value in settings.values() if isinstance(value, dict))]:
        if "rope_type" in each:
            yield each["rope_type"], each
