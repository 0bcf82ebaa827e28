"""A very small Llama and random sequences for the tests of `clients`."""

from __future__ import annotations

import random
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from evaluation.engine.sequences import TokenSequence

# Such small products are slower with two threads, by far so on a busy machine.
torch.set_num_threads(1)

VOCABULARY = 61
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def base(seed: int = 0, dtype: torch.dtype = torch.float32, **config: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(**{**shape, **config}))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.0 if p.ndim < 2 else 5.0)
    return model.to(dtype)


def lora(seed: int = 0, *, rank: int = 8, dropout: float = 0.0, zero_b: bool = False, **options: Any) -> Any:
    model = base(seed, **options)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=dropout, target_modules=MODULES)
    model = get_peft_model(model, config)
    if not zero_b:
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "lora_B" in name:
                    p.normal_(0.0, 0.05)
    return model


def shallow(seed: int = 0, **options: Any) -> Any:
    """`lora` with one layer, where nothing depends on how many there are: a loss, its gradient, an optimiser."""
    return lora(seed, num_hidden_layers=1, **options)


def sequences(count: int, seed: int = 0) -> list[TokenSequence]:
    rng = random.Random(seed)

    def tokens(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, VOCABULARY) for _ in range(rng.randint(low, high)))

    return [TokenSequence(tokens(1, 9), (*tokens(0, 12), 2)) for _ in range(count)]


def padded_log_probs(model: Any, records: list[TokenSequence]) -> list[torch.Tensor]:
    """Log-probabilities of each record's answer tokens by a plain right-padded forward pass: the slow reference."""
    longest = max(len(r.prompt) + len(r.answer) for r in records)
    ids = torch.tensor([[*r.prompt, *r.answer, *[0] * (longest - len(r.prompt) - len(r.answer))] for r in records])
    lengths = torch.tensor([len(r.prompt) + len(r.answer) for r in records])
    mask = (torch.arange(longest) < lengths[:, None]).long()
    logp = F.log_softmax(model(input_ids=ids, attention_mask=mask).logits.float(), -1)
    out = []
    for i, r in enumerate(records):
        places = torch.arange(len(r.prompt) - 1, len(r.prompt) + len(r.answer) - 1)
        out.append(logp[i, places, torch.tensor(r.answer)])
    return out
