"""Rounded weights against loops over the definitions and the published numbers of NF4."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from support import tiny_llama
from torch import nn

from evaluation.engine import quantise
from evaluation.engine.quantise import QUANTISERS, int8, nf4, nf4_code, quantise_merged

# Dettmers et al. 2023, appendix E.
PUBLISHED = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def test_the_sixteen_numbers_are_the_published_ones() -> None:
    np.testing.assert_allclose(nf4_code(), PUBLISHED, atol=1e-6)
    assert nf4_code().dtype == torch.float32


def test_rows_in_eight_bits_go_in_steps_of_their_own_largest_number() -> None:
    weight = normal(5, 7)
    weight[1] *= 100
    weight[2] = 0
    found = int8(weight)
    for row, rounded in zip(weight.double().tolist(), found.tolist(), strict=True):
        step = max(map(abs, row)) / 127
        assert rounded == pytest.approx([round(x / step) * step if step else 0.0 for x in row], rel=1e-6)
    assert float(found[0].abs().max()) == pytest.approx(float(weight[0].abs().max()), rel=1e-6)


@pytest.mark.parametrize("shape", [(3, 64), (5, 7), (1, 130), (200,)])
def test_sixty_four_numbers_in_a_row_take_the_nearest_of_sixteen(shape: tuple[int, ...]) -> None:
    weight = normal(*shape)
    weight.view(-1)[64:128] = 0
    flat, found = weight.flatten().double().numpy(), nf4(weight)
    assert found.shape == weight.shape
    for start in range(0, len(flat), 64):
        block = flat[start : start + 64]
        scale = np.abs(block).max()
        nearest = [scale * min(PUBLISHED, key=lambda code: abs(code * scale - x)) for x in block]
        np.testing.assert_allclose(found.flatten()[start : start + 64], nearest, atol=1e-6)


@pytest.mark.parametrize("name", ["int8", "nf4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_stay_in_their_format_and_zeros_are_no_fault(name: str, dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert QUANTISERS[name](normal(4, 32).to(dtype)).dtype == dtype
        assert QUANTISERS[name](torch.zeros(3, 70, dtype=dtype)).tolist() == [[0.0] * 70] * 3
    assert set(QUANTISERS) == {"int8", "nf4"} and quantise.NF4_BLOCK == 64


def test_all_linear_layers_but_the_head_are_quantised_once_adapters_are_merged() -> None:
    model = tiny_llama.lora()
    layer = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    factors = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    expected = int8((layer.base_layer.weight + layer.scaling["default"] * factors).detach())
    head, embedding = (x.detach().clone() for x in (model.lm_head.weight, model.get_input_embeddings().weight))
    plain = quantise_merged(model, int8)
    torch.testing.assert_close(plain.model.layers[0].self_attn.q_proj.weight, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(plain.lm_head.weight, head)
    assert torch.equal(plain.model.embed_tokens.weight, embedding)
    for module in plain.model.modules():
        if isinstance(module, nn.Linear):
            torch.testing.assert_close(module.weight, int8(module.weight), rtol=1e-5, atol=1e-6)
    tied = get_peft_model(tiny_llama.base(tie_word_embeddings=True), LoraConfig(r=2, target_modules=["q_proj"]))
    before = tied.get_input_embeddings().weight.detach().clone()
    assert torch.equal(quantise_merged(tied, nf4).get_output_embeddings().weight, before)
