"""Relearning against ordinary training; quantised weights against hand-made ones, brute force and bitsandbytes."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import tiny_llama
from torch import nn

from clients.flat_parameters import FlatParameters
from clients.relearning import relearn
from clients.training import TrainSettings, train
from evaluation.engine.quantise import NF4_BLOCK, QUANTISERS, int8, nf4, nf4_code, quantise_merged

RECORDS = tiny_llama.sequences(5)
SETTINGS = TrainSettings(batch_size=2, learning_rate=1e-2, warmup_epochs=0.0)
# Table in appendix E of Dettmers et al. 2023, rounded to four digits.
NF4 = [-1, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626]
NF4 += [0.7230, 1]


@pytest.fixture(scope="module")
def trained():
    model = tiny_llama.shallow()
    return model, FlatParameters(model)


def test_no_update_changes_nothing(trained):
    model, flat = trained
    start = flat.numpy()
    found = relearn(model, flat, RECORDS, SETTINGS, [0], seed=3)
    np.testing.assert_array_equal(found[0], start)
    np.testing.assert_array_equal(flat.numpy(), start)


def test_whole_epochs_are_those_of_training(trained):
    """Three updates an epoch, so six updates are two epochs at a constant rate."""
    model, flat = trained
    start = flat.numpy()
    found = relearn(model, flat, RECORDS, SETTINGS, [6], seed=3)
    np.testing.assert_array_equal(flat.numpy(), start)
    train(model, flat, RECORDS, TrainSettings(2, 2, 1e-2, warmup_epochs=0.0), seed=3)
    np.testing.assert_array_equal(found[6], flat.numpy())
    flat.load(start)


def test_an_update_may_take_several_batches(trained):
    """Two updates an epoch of five records, so five updates are in the third epoch."""
    model, flat = trained
    start, given, steps = flat.numpy(), replace(SETTINGS, gradient_accumulation=2), {}
    found = relearn(model, flat, RECORDS, given, [5], seed=3)
    train(model, flat, RECORDS, replace(given, epochs=3), seed=3, on_step=lambda n, _: steps.update({n: flat.numpy()}))
    np.testing.assert_array_equal(found[5], steps[5])
    flat.load(start)


def test_a_look_does_not_depend_on_the_others(trained):
    model, flat = trained
    together = relearn(model, flat, RECORDS, SETTINGS, [4, 0, 1, 7], seed=3)
    assert list(together) == [4, 0, 1, 7]
    for step in (1, 4):
        alone = relearn(model, flat, RECORDS, SETTINGS, [step], seed=3)
        np.testing.assert_array_equal(alone[step], together[step])
    assert not np.array_equal(together[1], together[4])


@pytest.mark.parametrize(
    "schedule", [{"schedule": "linear"}, {"schedule": "cosine"}, {"warmup_ratio": 0.5}, {"warmup_epochs": 2.0}]
)
def test_the_learning_rate_is_constant_whatever_the_schedule(trained, schedule):
    """Where training ends would otherwise say how far each update goes."""
    model, flat = trained
    expected = relearn(model, flat, RECORDS, SETTINGS, [2, 4], seed=3)
    found = relearn(model, flat, RECORDS, replace(SETTINGS, **schedule), [2, 4], seed=3)
    for step, parameters in expected.items():
        np.testing.assert_array_equal(found[step], parameters)


def test_what_cannot_be_relearnt(trained):
    model, flat = trained
    with pytest.raises(ValueError, match="must not be negative"):
        relearn(model, flat, RECORDS, SETTINGS, [1, -1], seed=3)
    with pytest.raises(ValueError, match="no sequence to train on"):
        relearn(model, flat, [], SETTINGS, [1], seed=3)


def test_eight_bits_by_hand():
    weight = torch.tensor([[1.0, -0.5, 0.26, 0.0], [0.0, 0.0, 0.0, 0.0], [-12.7, 0.04, 0.06, 12.7]])
    expected = torch.tensor([[1.0, -64 / 127, 33 / 127, 0], [0, 0, 0, 0], [-12.7, 0, 0.1, 12.7]])
    torch.testing.assert_close(int8(weight), expected)
    assert int8(weight.bfloat16()).dtype == torch.bfloat16


def test_four_bits_by_hand_and_by_brute_force():
    np.testing.assert_allclose(nf4_code().numpy(), NF4, atol=6e-5)
    block = torch.zeros(NF4_BLOCK)
    block[:4] = torch.tensor([2.0, 1.0, -0.1, 1.5])
    assert nf4(block)[:5].tolist() == pytest.approx([2, 2 * 0.4407, -2 * 0.0911, 2 * 0.7230, 0], abs=2e-4)
    assert not nf4(torch.zeros(3, 70)).any()
    weight = torch.randn(5, 77, generator=torch.Generator().manual_seed(0)).numpy()
    flat, code = weight.ravel().astype(np.float64), nf4_code().numpy()
    for start in range(0, len(flat), NF4_BLOCK):
        part = flat[start : start + NF4_BLOCK]
        scale = np.abs(part).max()
        part[:] = code[np.abs(part[:, None] / scale - code).argmin(1)] * scale
    np.testing.assert_allclose(nf4(torch.tensor(weight)).numpy().ravel(), flat, rtol=1e-5, atol=1e-6)


def test_the_same_as_bitsandbytes():
    functional = pytest.importorskip("bitsandbytes").functional
    weight = torch.randn(70, 192, generator=torch.Generator().manual_seed(1))
    packed, state = functional.quantize_4bit(weight, quant_type="nf4", blocksize=NF4_BLOCK)
    torch.testing.assert_close(nf4(weight), functional.dequantize_4bit(packed, state), rtol=0, atol=1e-5)
    half = weight.half()
    numbers, largest, _ = functional.int8_vectorwise_quant(half)
    theirs = numbers.float() * largest[:, None] / 127
    assert (int8(half.float()) - theirs).abs().max() <= 1.01 * largest.max() / 127 / 2
    assert (int8(half.float()) - theirs).abs().mean() < 1e-3


@pytest.mark.parametrize("name", list(QUANTISERS))
def test_adapters_are_merged_and_the_head_is_spared(name):
    model = tiny_llama.shallow()
    before = copy.deepcopy(model)
    merged = quantise_merged(model, QUANTISERS[name])
    assert not [n for n, _ in merged.named_parameters() if "lora" in n]
    layers, checked = dict(before.named_modules()), 0
    for path, module in merged.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        old = layers[f"base_model.model.{path}"]
        if path == "lm_head":
            torch.testing.assert_close(module.weight, old.weight, rtol=0, atol=0)
            continue
        a, b = old.lora_A["default"].weight, old.lora_B["default"].weight
        weight = old.base_layer.weight + 2.0 * b @ a
        torch.testing.assert_close(module.weight, QUANTISERS[name](weight.detach()), rtol=1e-4, atol=1e-5)
        assert (module.weight - weight).abs().max() > 0
        checked += 1
    assert checked == 7 * before.config.num_hidden_layers
    embedded = merged.get_input_embeddings().weight
    torch.testing.assert_close(embedded, before.get_input_embeddings().weight, rtol=0, atol=0)
