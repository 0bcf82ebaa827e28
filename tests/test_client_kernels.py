"""The fast Llama, the one-product LoRA form and the hand-written gradients against plain formulas."""

from __future__ import annotations

import pytest
import tiny_llama
import torch
from torch import Tensor
from torch.nn import functional as F

from clients import llama
from clients.flat import FlatParameters
from clients.fused_lora import active_factors, fused_lora, is_cheaper
from clients.kernels import FrozenHead, Groups, RMSNorm, RotaryAttention, SwiGLU
from evaluation.packing import PackedBatch


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def gradients(value: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view(value.shape)
    return list(torch.autograd.grad((value * weights).sum(), inputs))


def test_rms_norm() -> None:
    x, w = normal(5, 8), normal(8, seed=1)
    plain = w * x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    fast = RMSNorm.apply(x, w, 1e-3)
    torch.testing.assert_close(fast, plain)
    torch.testing.assert_close(gradients(fast, [x, w]), gradients(plain, [x, w]))


def test_swiglu() -> None:
    x = normal(5, 12)
    plain = F.silu(x[:, :6]) * x[:, 6:]
    fast = SwiGLU.apply(x)
    torch.testing.assert_close(fast, plain)
    torch.testing.assert_close(gradients(fast, [x]), gradients(plain, [x]))


@pytest.mark.parametrize("rows", [1, 7, 600])
def test_frozen_head(rows: int) -> None:
    h, w = normal(rows, 6), normal(11, 6, seed=1).detach()
    labels = torch.arange(rows) % 11
    plain = F.log_softmax(3 * h @ w.T, -1)[torch.arange(rows), labels]
    fast = FrozenHead.apply(h, 3 * w, labels)
    torch.testing.assert_close(fast, plain)
    torch.testing.assert_close(gradients(fast, [h]), gradients(plain, [h]))


def test_frozen_head_is_exact_for_very_unlikely_labels() -> None:
    h = torch.tensor([[400.0]], dtype=torch.float64)
    w = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    assert FrozenHead.apply(h, w, torch.tensor([1])).item() == pytest.approx(-800.0)


@pytest.mark.parametrize(("num_q", "num_kv"), [(2, 2), (4, 2)])
def test_rotary_attention(num_q: int, num_kv: int) -> None:
    lengths, dim, scale = [3, 1, 12, 5, 2, 9, 4, 4, 7, 1], 4, 0.7
    groups = Groups.build(lengths)
    assert len(groups.shapes) == 2
    total = sum(lengths)
    qkv = normal(total, (num_q + 2 * num_kv) * dim)
    position = torch.cat([torch.arange(n) for n in lengths]).double()[:, None, None]
    angle = position * torch.tensor([1.0, 0.1], dtype=torch.float64)
    cos, sin = angle.cos(), angle.sin()

    def plain() -> Tensor:
        x = qkv.view(total, -1, dim)
        first, second = x.chunk(2, -1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
        q, k, v = turned[:, :num_q], turned[:, num_q : num_q + num_kv], x[:, num_q + num_kv :]
        k, v = (y.repeat_interleave(num_q // num_kv, 1) for y in (k, v))
        out, start = [], 0
        for n in lengths:
            part = slice(start, start + n)
            scores = torch.einsum("ihd,jhd->hij", q[part], k[part]) * scale
            hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
            weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            out.append(torch.einsum("hij,jhd->ihd", weights, v[part]).reshape(n, -1))
            start += n
        return torch.cat(out)

    expected = plain()
    expected_gradient = gradients(expected, [qkv])
    fast = RotaryAttention.apply(qkv.clone(), cos, sin, groups, (num_q, num_kv, dim), scale)
    torch.testing.assert_close(fast, expected)
    torch.testing.assert_close(gradients(fast, [qkv]), expected_gradient)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rank": 2},
        {"zero_b": True},
        {"num_key_value_heads": 4, "tie_word_embeddings": True},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}},
        {"attention_bias": True, "mlp_bias": True},
    ],
)
def test_fast_llama_equals_hugging_face(options: dict) -> None:
    model = tiny_llama.lora(**options)
    flat = FlatParameters(model)
    records = tiny_llama.sequences(13)
    batch = PackedBatch.build(records)
    assert llama.supports(model, batch)
    slow = torch.cat(tiny_llama.padded_log_probs(model, records))
    weights = torch.linspace(-1, 1, slow.numel())
    (slow * weights).sum().backward()
    expected = flat.grad.clone()
    flat.zero_grad()
    fast = llama.token_log_probs(model, batch)
    (fast * weights).sum().backward()
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-5)
    torch.testing.assert_close(flat.grad, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    if options.get("zero_b"):
        plain = torch.cat(tiny_llama.padded_log_probs(tiny_llama.base(), records))
        torch.testing.assert_close(fast, plain, rtol=0, atol=1e-5)


def test_fast_llama_trains_all_parameters() -> None:
    model = tiny_llama.base(tie_word_embeddings=True)
    flat = FlatParameters(model)
    records = tiny_llama.sequences(5)
    torch.cat(tiny_llama.padded_log_probs(model, records)).sum().backward()
    expected = flat.grad.clone()
    flat.zero_grad()
    llama.token_log_probs(model, PackedBatch.build(records)).sum().backward()
    torch.testing.assert_close(flat.grad, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_fast_llama_declines_what_it_does_not_know() -> None:
    batch = PackedBatch.build(tiny_llama.sequences(2))
    assert not llama.supports(tiny_llama.lora(dtype=torch.bfloat16), batch)
    assert not llama.supports(tiny_llama.lora(hidden_act="gelu"), batch)
    assert not llama.supports(torch.nn.Linear(2, 2), batch)
    hooked = tiny_llama.lora()
    hooked.get_base_model().model.layers[0].register_forward_hook(lambda *_: None)
    assert not llama.supports(hooked, batch)
    dropped = tiny_llama.lora(attention_dropout=0.1)
    assert not llama.supports(dropped.train(), batch) and llama.supports(dropped.eval(), batch)


def test_rule_for_the_cheaper_form() -> None:
    assert is_cheaper(128, 128, 32) and is_cheaper(128, 344, 32)
    assert not is_cheaper(2048, 2048, 32)


def test_fused_lora_equals_peft_and_is_undone() -> None:
    model = tiny_llama.lora()
    flat = FlatParameters(model)
    names = list(model.state_dict())
    ids = torch.arange(3, 33).view(2, 15)
    plain = model(input_ids=ids, labels=ids)
    plain.loss.backward()
    expected = flat.grad.clone()
    flat.zero_grad()
    with fused_lora(model) as count:
        assert count == 14 and list(model.state_dict()) == names
        fused = model(input_ids=ids, labels=ids)
        fused.loss.backward()
        with model.disable_adapter():
            base = model(input_ids=ids).logits
    torch.testing.assert_close(fused.logits, plain.logits, rtol=0, atol=2e-5)
    torch.testing.assert_close(flat.grad, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(base, tiny_llama.base()(input_ids=ids).logits, rtol=0, atol=2e-5)
    assert not any("forward" in vars(module) for module in model.modules())


def test_fused_lora_leaves_other_layers_alone() -> None:
    with fused_lora(tiny_llama.lora(rank=2)) as count:
        assert count == 0
    with fused_lora(tiny_llama.lora(dropout=0.5).train()) as count:
        assert count == 0
    with fused_lora(tiny_llama.lora(dropout=0.5).eval()) as count:
        assert count == 14
    assert active_factors(torch.nn.Linear(2, 2)) is None
