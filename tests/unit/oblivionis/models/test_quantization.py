"""8-bit and 4-bit base weights: against dequantised weights in a plain model, in training, scoring and whole runs."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from torch import nn

from clients.flat_parameters import FlatParameters
from clients.training import TrainSettings, train
from clients.unlearning import unlearn
from evaluation.engine import forward, llama
from evaluation.engine.decoding import greedy
from evaluation.engine.fused_lora import active_factors, fused_lora
from evaluation.engine.likelihood import score
from evaluation.engine.models import is_quantized
from evaluation.engine.packing import PackedBatch
from evaluation.engine.sampling import Rule, sample
from oblivionis.audits.loaded_model import find_subject
from oblivionis.config import compose as configuration
from oblivionis.models import loading, lora
from oblivionis.models.errors import ModelError

pytest.importorskip("bitsandbytes")

RECORDS = tiny_llama.sequences(12)
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("nf4", {"quantization": "nf4"}),
    ("nf4, single", {"quantization": "nf4", "double_quantization": False}),
    ("int8", {"quantization": "int8"}),
]
EACH = pytest.mark.parametrize("options", [o for _, o in KINDS], ids=[name for name, _ in KINDS])
# The largest distance between neighbours of the NF4 code is from -1 to -0.6962 (Dettmers et al. 2023, appendix E).
NF4_HALF_STEP = (1 - 0.6962) / 2


def load(**options: Any) -> Any:
    return loading.load_base("embedded", **options)[0]


def attach(model: Any) -> Any:
    """LoRA with a B that is not zero, the only trainable weights."""
    model = lora.attach_lora(model, rank=8, alpha=16, dropout=0.0, target_modules=tiny_llama.MODULES, seed=1)
    lora.trainable(model)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.copy_(0.05 * torch.randn(p.shape, generator=generator))
    return model


def dequantised(layer: Any) -> torch.Tensor:
    """bitsandbytes' own weight (out, in) of one of its layers, in float32."""
    import bitsandbytes

    if layer.weight.dtype == torch.int8:
        return layer.weight.data.float() * (layer.weight.SCB / 127)[:, None]
    return bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()


def plain(quantised: Any, dtype: str = "float32") -> Any:
    """The model with ordinary linear layers that have the dequantised weights."""
    model, layers = load(dtype=dtype), dict(quantised.named_modules())
    with torch.no_grad():
        for name, module in model.named_modules():
            if type(module) is nn.Linear and name != "lm_head":
                module.weight.copy_(dequantised(layers[name]))
    return model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(3, 43).reshape(2, 20)).logits


@EACH
def test_weights_are_off_by_at_most_a_quantisation_step(options: dict) -> None:
    model, exact = load(**options), dict(load().named_modules())
    changed = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear) and name != "lm_head"]
    assert len(changed) == 7 * len(model.model.layers)
    for name, layer in changed:
        weight = exact[name].weight.detach()
        error = (dequantised(layer) - weight).abs()
        if options["quantization"] == "int8":
            # Half a step of 127 levels; bitsandbytes reads the weights in float16 first.
            limit = weight.abs().amax(1, keepdim=True) * (0.5 / 127 + 2**-11)
        else:
            blocks = weight.reshape(-1, 64).abs().amax(1, keepdim=True).expand(-1, 64).reshape(weight.shape)
            # Double quantisation keeps 256 scales in 8 bits each.
            slack = 0.03 * blocks.max() if options.get("double_quantization", True) else 1e-6
            limit = NF4_HALF_STEP * blocks + slack
        assert (error <= limit + 1e-7).all() and error.max() > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@EACH
def test_logits_are_those_of_the_dequantised_weights(options: dict, dtype: str) -> None:
    model = load(dtype=dtype, **options)
    reference = plain(model, dtype)
    model.train()
    difference = (logits(model) - logits(reference)).abs().max()
    assert difference < (1e-4 if dtype == "float32" else 0.1)
    model.eval()
    # In evaluation 8-bit layers round the activations too: up to the size of the weights' own error.
    exact = (logits(reference) - logits(load(dtype=dtype))).abs().max()
    if options["quantization"] == "int8":
        assert (logits(model) - logits(reference)).abs().max() < 0.05 * logits(reference).abs().max()
    else:
        assert (logits(model) - logits(reference)).abs().max() < (1e-4 if dtype == "float32" else 0.1)
    assert 0 < exact < 0.35 * logits(load()).abs().max()


@EACH
def test_gradients_are_those_of_the_dequantised_weights_also_after_an_evaluation(options: dict) -> None:
    """bitsandbytes repacks 4-bit weights in evaluation mode on some processors, and they then have no gradient."""
    base = load(**options)
    reference, model = attach(plain(base)), attach(base)
    score(model, RECORDS[:3])
    vectors = []
    for m in (model, reference):
        flat = FlatParameters(m)
        m.train()
        batch = PackedBatch.build(RECORDS)
        forward.token_log_probs(m, batch, mode="packed").sum().backward()
        assert {n for n, p in m.named_parameters() if p.grad is not None} == set(flat.names)
        assert all("lora_" in name for name in flat.names)
        vectors.append(flat.grad.clone())
    torch.testing.assert_close(vectors[0], vectors[1], rtol=1e-4, atol=1e-4 * float(vectors[1].abs().max()))


@pytest.mark.slow
def test_what_is_quantised_and_what_is_not() -> None:
    float_model = load()
    sizes = {}
    for name, options in KINDS:
        model = load(dtype="bfloat16", **options)
        assert is_quantized(model) and not is_quantized(float_model)
        assert lora.count(model).total == lora.count(float_model).total
        assert {model.lm_head.weight.dtype, model.model.embed_tokens.weight.dtype} == {torch.bfloat16}
        adapted = attach(model)
        assert {p.dtype for n, p in adapted.named_parameters() if "lora_" in n} == {torch.float32}
        flat = FlatParameters(adapted)
        assert flat.compute_dtype == torch.bfloat16
        assert flat.manifest == FlatParameters(attach(load())).manifest
        sizes[name] = model.get_memory_footprint()
    assert sizes["nf4"] <= sizes["nf4, single"] < sizes["int8"]


@EACH
def test_fused_ways_are_not_taken(options: dict) -> None:
    model = attach(load(**options))
    assert llama.supports(attach(load())) and not llama.supports(model)
    assert forward.resolve_mode(model, "auto", 40) == "packed"
    assert all(active_factors(module) is None for module in model.modules())
    with fused_lora(model) as changed:
        assert changed == 0


@EACH
def test_packed_scores_equal_padded_ones(options: dict) -> None:
    model = attach(load(**options))
    packed, padded = (score(model, RECORDS, mode=mode) for mode in ("auto", "padded"))
    # 8-bit layers treat inputs above 6 apart, by columns of the whole batch, padding included.
    tolerance = 0.02 if options["quantization"] == "int8" else 1e-5
    np.testing.assert_allclose(packed.mean_nll, padded.mean_nll, rtol=tolerance, atol=0)


def test_generation_from_4_bits_equals_generate_and_sampling_equals_padded_sampling() -> None:
    model, tokenizer = loading.load_base("embedded", quantization="nf4")
    prompts = [r.prompt for r in RECORDS[:4]]
    stop = tokenizer.eos_token_id
    produced = greedy(model, prompts, max_new_tokens=6, stop_ids=(stop,))
    assert max(map(len, produced)) > 1
    for prompt, tokens in zip(prompts, produced, strict=True):
        ids = torch.tensor([prompt])
        theirs = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=6,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )
        assert tokens == [t for t in theirs[0, len(prompt) :].tolist() if t != stop]
    shared, padded = (
        sample(model, prompts, samples=8, rule=Rule(), seed=3, max_new_tokens=5, stop_ids=(2,), mode=mode)
        for mode in ("auto", "padded")
    )
    assert shared == padded


@EACH
@pytest.mark.slow
def test_training_lowers_the_loss_and_unlearning_raises_the_forget_loss(options: dict) -> None:
    model = lora.attach_lora(load(**options), rank=8, alpha=16, dropout=0.0, target_modules=tiny_llama.MODULES)
    lora.trainable(model)
    flat = FlatParameters(model)
    frozen = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    settings = TrainSettings(epochs=6, batch_size=4, learning_rate=3e-3, warmup_epochs=0)
    report = train(model, flat, RECORDS, settings, seed=0)
    assert report.last_loss < 0.8 * report.first_loss
    learned = flat.numpy()
    for method in ("npo", "grad_diff"):
        flat.load(learned)
        done = unlearn(model, flat, RECORDS[:4], RECORDS[4:], method, {}, settings, seed=0)
        assert done.last_forget_nll > done.first_forget_nll
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)


def test_without_bitsandbytes_the_message_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else find(name))
    with pytest.raises(ModelError, match=r"model\.quantization=nf4 needs .*pip install 'oblivionis\[quantization\]'"):
        load(quantization="nf4")
    with pytest.raises(ModelError, match="unknown quantization 'fp3'"):
        load(quantization="fp3")


def test_a_full_model_cannot_be_quantised() -> None:
    with pytest.raises(configuration.ConfigError, match=r"model\.quantization: nf4 weights cannot be trained"):
        configuration.compose("smoke", ["model.quantization=nf4", "model.mode=full"])


def test_a_model_under_audit_is_quantised_as_asked() -> None:
    subject = find_subject("tiny", None, ["model.quantization=nf4", "model.double_quantization=false"])
    assert is_quantized(subject.model) and subject.identity.endswith("/nf4")
    assert find_subject("tiny", None, []).identity.endswith("/float32/None")
