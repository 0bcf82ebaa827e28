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


@pytest.mark.parametrize("saved", ["lm_head", "model.norm"])
def test_modules_that_were_trained_as_a_whole_have_the_format_of_those_whose_place_they_take(saved: str) -> None:
    options = {"target_modules": ["q_proj"], "modules_to_save": [saved]}
    model = get_peft_model(tiny_llama.base(dtype=torch.bfloat16), LoraConfig(r=2, lora_alpha=4, **options))
    module = model.get_base_model().get_submodule(saved).modules_to_save["default"].float()
    module.register_forward_pre_hook(lambda _, args: (args[0].float(),))
    module.register_forward_hook(lambda _, args, out: out.to(torch.bfloat16))
    with torch.no_grad():
        module.weight.add_(torch.linspace(-1, 1, module.weight.numel()).view_as(module.weight))
        trained = module.weight.to(torch.bfloat16)
        plain = merged(model)
        said = plain(IDS).logits
    assert torch.equal(plain.get_submodule(saved).weight, trained)
    assert {p.dtype for p in plain.parameters()} == {torch.bfloat16}
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in plain.modules())
    assert not hasattr(plain, "peft_config") and said.isfinite().all()
