"""Gradient checkpointing: the same gradients, less memory, and only while a client trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_llama
import torch
from torch import nn

from clients.flat import FlatParameters
from clients.optimisation import local_work
from clients.training import TrainSettings, train
from clients.unlearning import unlearn
from evaluation import forward
from evaluation.packing import PackedBatch

RECORDS = tiny_llama.sequences(8)


def gradient(model: Any, mode: str, checkpointing: bool) -> tuple[float, torch.Tensor, int]:
    """Loss, gradient, and how many times a layer's feed-forward block began."""
    flat = FlatParameters(model)
    calls: list[int] = []
    handle = model.get_submodule(layers(model)[0] + ".mlp").register_forward_pre_hook(lambda *_: calls.append(1))
    with local_work(model, flat, 7, gradient_checkpointing=checkpointing):
        loss = -forward.token_log_probs(model, PackedBatch.build(RECORDS), mode=mode).sum()
        loss.backward()
    handle.remove()
    return loss.item(), flat.grad.clone(), len(calls)


def layers(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if type(module).__name__ == "LlamaDecoderLayer"]


@pytest.mark.parametrize("mode", ["packed", "padded"])
@pytest.mark.parametrize(
    "options", [{}, {"dropout": 0.3}, {"dtype": torch.bfloat16}], ids=["plain", "dropout", "bfloat16"]
)
def test_gradients_equal_those_without(mode: str, options: dict) -> None:
    kept, again = (gradient(tiny_llama.lora(**options), mode, on) for on in (False, True))
    assert (kept[2], again[2]) == (1, 2), "the layer ran again in the backward pass"
    assert again[0] == kept[0]
    torch.testing.assert_close(again[1], kept[1], rtol=1e-5, atol=1e-6 * float(kept[1].abs().max()))
    assert kept[1].abs().max() > 0


def test_full_mode_and_the_fused_way_agree_with_it() -> None:
    flat, expected = (tiny_llama.base() for _ in range(2))
    _, plain, _ = gradient(expected, "packed", False)
    _, checkpointed, _ = gradient(flat, "auto", True)
    torch.testing.assert_close(checkpointed, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))


def test_training_and_unlearning_end_at_the_same_weights() -> None:
    results: list[list[np.ndarray]] = []
    for on in (False, True):
        settings = TrainSettings(epochs=2, batch_size=4, learning_rate=3e-3, warmup_epochs=0, gradient_checkpointing=on)
        model = tiny_llama.lora()
        flat = FlatParameters(model)
        train(model, flat, RECORDS, settings, seed=0)
        trained = flat.numpy()
        unlearn(model, flat, RECORDS[:3], RECORDS[3:], "npo", {}, settings, seed=0)
        results.append([trained, flat.numpy()])
        assert forward.resolve_mode(model, "auto", 30) == "fused", "nothing is left of it"
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)


def test_it_is_active_within_local_work_only() -> None:
    model = tiny_llama.lora().eval()
    flat = FlatParameters(model)

    def active() -> set[bool]:
        return {model.get_submodule(name).gradient_checkpointing for name in layers(model)}

    assert active() == {False}
    with pytest.raises(KeyError), local_work(model, flat, 0, gradient_checkpointing=True):
        assert active() == {True}
        raise KeyError
    assert active() == {False} and not model.training
    with local_work(model, flat, 0):
        assert active() == {False}


def test_a_model_that_cannot_says_so() -> None:
    model = tiny_llama.lora().eval()
    model.get_base_model().supports_gradient_checkpointing = False
    with (
        pytest.raises(ValueError, match="LlamaForCausalLM does not support gradient checkpointing"),
        local_work(model, FlatParameters(model), 0, gradient_checkpointing=True),
    ):
        pass
    assert not model.training


PEAK = """
import sys, torch
from benchmarks.speed.memory_estimate import peak_bytes
from transformers import LlamaConfig, LlamaForCausalLM
from clients.flat import FlatParameters
from clients.optimisation import local_work
from evaluation.forward import token_log_probs
from evaluation.packing import PackedBatch, Sequence
import tiny_llama
from peft import LoraConfig, get_peft_model
torch.manual_seed(0)
shape = dict(hidden_size=256, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=4)
model = LlamaForCausalLM(LlamaConfig(**shape, intermediate_size=1024, vocab_size=512))
model = get_peft_model(model, LoraConfig(r=8, target_modules=tiny_llama.MODULES))
flat = FlatParameters(model)
batch = PackedBatch.build([Sequence((1,) * 128, (2,) * 128)] * 16)
before = peak_bytes()
with local_work(model, flat, 0, gradient_checkpointing=sys.argv[1] == "on"):
    token_log_probs(model, batch, mode="packed").sum().backward()
print(peak_bytes() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read as Linux tells it")
def test_the_peak_of_memory_is_lower() -> None:
    """Eight layers of 4096 tokens: without it every layer's activations live at once."""
    tests = str(Path(__file__).parent)
    path = f"import sys; sys.path.insert(0, {tests!r})\n"
    peaks = [
        int(subprocess.run([sys.executable, "-c", path + PEAK, on], check=True, capture_output=True, text=True).stdout)
        for on in ("off", "on")
    ]
    print(f"peak above the loaded model: {peaks[0] / 1e6:.0f} MB without, {peaks[1] / 1e6:.0f} MB with checkpointing")
    assert peaks[1] < 0.7 * peaks[0]
