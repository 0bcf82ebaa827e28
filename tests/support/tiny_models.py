"""Very small models of several architectures, for tests that must hold for any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

ROWS = 61
_SHAPE: dict[str, Any] = {
    "vocab_size": ROWS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_EXPERTS = {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
_OWN: dict[str, dict[str, Any]] = {
    "mixtral": _EXPERTS,
    "qwen3_moe": _EXPERTS,
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "tie_word_embeddings": True},
    "gemma": {"tie_word_embeddings": True},
}


def model(kind: str, *, seed: int = 0, **changes: Any) -> Any:
    """A model with random float32 weights that are far from zero, in evaluation mode."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**_SHAPE, **_OWN.get(kind, {}), **changes})
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for p in {id(p): p for p in made.parameters()}.values():
            if p.ndim > 1:
                p.normal_(0.0, 0.3)
    return made.eval()


def tokenizer(tokens: int = ROWS) -> PreTrainedTokenizerFast:
    """Words w3, w4, … behind <pad>, <s> and </s>."""
    words = ["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(3, tokens))]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def folder(path: Path, kind: str, **changes: Any) -> Path:
    """The model and its tokenizer, saved in `path`."""
    model(kind, **changes).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path
