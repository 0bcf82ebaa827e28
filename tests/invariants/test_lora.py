"""LoRA with B = 0 is the base model: its logits, its scores and what it says."""

import numpy as np
import pytest
import torch
from support import tiny_llama

from evaluation.engine.decoding import greedy
from evaluation.engine.likelihood import score

RECORDS = tiny_llama.sequences(12, seed=4)


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
def test_with_b_zero_scores_are_those_of_the_base_model(mode):
    base, adapted = (score(model, RECORDS, mode=mode) for model in (tiny_llama.base(), tiny_llama.lora(zero_b=True)))
    for ours, theirs in zip(adapted.log_probs, base.log_probs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    moved = score(tiny_llama.lora(), RECORDS, mode=mode)
    assert max(np.abs(a - b).max() for a, b in zip(moved.log_probs, base.log_probs, strict=True)) > 1e-3


def test_with_b_zero_logits_and_answers_are_those_of_the_base_model():
    base, adapted = tiny_llama.base().eval(), tiny_llama.lora(zero_b=True).eval()
    prompts = [record.prompt for record in RECORDS]
    with torch.no_grad():
        ids = torch.tensor([[*RECORDS[0].prompt, *RECORDS[0].answer]])
        assert torch.equal(base(input_ids=ids).logits, adapted(input_ids=ids).logits)
    said = [greedy(model, prompts, max_new_tokens=8, stop_ids=(2,)) for model in (base, adapted)]
    assert said[0] == said[1] and any(said[0])
