"""A merged model says what the adapted one said, and what the adapter does not change stays as it was."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support import tiny_llama

from evaluation.engine.merging import merged

IDS = torch.tensor([[5, 9, 13, 2, 40]])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("targets", [["q_proj"], ["lm_head", "down_proj"]])
def test_a_weight_that_is_shared_is_changed_for_the_adapted_module_alone(tied: bool, targets: list[str]) -> None:
    model = get_peft_model(
        tiny_llama.base(tie_word_embeddings=tied), LoraConfig(r=2, lora_alpha=4, target_modules=targets)
    )
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(1))
    embedding = model.get_input_embeddings().weight.detach().clone()
    with torch.no_grad():
        said = model(IDS).logits
        plain = merged(model)
        torch.testing.assert_close(plain(IDS).logits, said, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(plain.get_input_embeddings().weight, embedding, rtol=0, atol=0)
    still = tied and "lm_head" not in targets
    assert plain.config.tie_word_embeddings is still
    assert (plain.get_output_embeddings().weight is plain.get_input_embeddings().weight) is still
    assert not [name for name, _ in plain.named_parameters() if "lora" in name]
    assert not any(p.requires_grad for p in plain.parameters()), "of the weights below adapters none is trained"


def test_a_model_without_adapters_is_itself() -> None:
    model = tiny_llama.base()
    assert merged(model) is model
