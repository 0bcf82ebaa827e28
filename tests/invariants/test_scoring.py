"""Scoring a set of sequences is scoring them one by one; so are its gradients."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from evaluation.engine import forward, likelihood
from evaluation.engine.packing import PackedBatch, TokenSequence

VOCABULARY = 50


def llama(**changes: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "vocab_size": VOCABULARY,
    }
    return LlamaForCausalLM(LlamaConfig(**{**shape, **changes})).eval()


@pytest.fixture
def model() -> LlamaForCausalLM:
    model = llama()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def some_sequences(count: int = 30) -> list[TokenSequence]:
    rng = random.Random(0)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, VOCABULARY) for _ in range(rng.randint(low, high)))

    prompts, stem = [ids(1, 9) for _ in range(6)], ids(2, 4)
    made = [TokenSequence(rng.choice(prompts), rng.choice([(), stem]) + ids(1, 12)) for _ in range(count)]
    return [*made, made[-1], made[0]]


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
@pytest.mark.parametrize("budget", [None, 40, 1])
def test_a_set_scores_like_its_members(model: LlamaForCausalLM, budget: int | None, mode: str) -> None:
    sequences = some_sequences()
    # Asking for hidden states leaves hooks in a model.
    watched = copy.deepcopy(model)
    scores = likelihood.score(model, sequences, token_budget=budget, mode=mode, hidden="all")
    assert len(scores) == len(sequences)
    for i, (prompt, answer) in enumerate(sequences):
        with torch.no_grad():
            output = watched(input_ids=torch.tensor([prompt + answer]), output_hidden_states=True)
        rows = output.logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)
        logp = rows[torch.arange(len(answer)), torch.tensor(answer)].numpy()
        np.testing.assert_allclose(scores.log_probs[i], logp, atol=1e-5)
        np.testing.assert_array_equal(scores.correct[i], rows.argmax(-1).numpy() == np.array(answer))
        np.testing.assert_allclose(scores.sum_nll[i], -logp.sum(), atol=1e-5)
        np.testing.assert_allclose(scores.mean_nll[i], -logp.mean(), atol=1e-5)
        assert scores.num_tokens[i] == len(answer)
        assert scores.hidden is not None
        np.testing.assert_allclose(scores.hidden[i], output.hidden_states[-1][0, len(prompt) - 1 :], atol=1e-5)


def one_by_one(model: nn.Module, sequences: list[TokenSequence]) -> Tensor:
    """The definition: a plain forward of each sequence on its own."""
    parts = []
    for prompt, answer in sequences:
        logits = model(input_ids=torch.tensor([prompt + answer])).logits[0].float()
        rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
        parts.append(rows[torch.arange(len(answer)), torch.tensor(answer)])
    return torch.cat(parts)


@pytest.mark.parametrize(
    ("mode", "share"), [("fused", False), ("packed", False), ("packed", True), ("padded", False), ("padded", True)]
)
@pytest.mark.parametrize("heads", [4, 2])
def test_values_and_gradients_equal_one_by_one(mode: str, share: bool, heads: int) -> None:
    sequences = some_sequences(9)
    expected_model, model = llama(num_key_value_heads=heads), llama(num_key_value_heads=heads)
    expected = one_by_one(expected_model, sequences)
    weights = torch.linspace(-1, 1, expected.numel())
    (expected * weights).sum().backward()
    batch = PackedBatch.build(sequences, share=share)
    actual = forward.token_log_probs(model, batch, mode=mode)
    (actual * weights).sum().backward()
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    for mine, theirs in zip(model.parameters(), expected_model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-5, rtol=1e-4)
