"""The fast Llama, the one-product LoRA form and the hand-written gradients against plain formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from support import tiny_llama
from torch import Tensor
from torch.nn import functional as F

from evaluation.engine import half_precision_weights, kernels, llama
from evaluation.engine.forward import token_log_probs
from evaluation.engine.fused_lora import active_factors, fused_lora, is_cheaper
from evaluation.engine.half_precision_weights import FrozenProduct
from evaluation.engine.kernels import AttentionPlan, FeedForward, FrozenHead, RMSNorm, RotaryAttention, SwiGLU
from evaluation.engine.llama import FusedLlama
from evaluation.engine.lora_linear import adapted, half_copy
from evaluation.engine.packing import PackedBatch, row_layout
from evaluation.engine.sequences import TokenSequence


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def gradients(value: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view(value.shape)
    return list(torch.autograd.grad((value * weights).sum(), inputs))


def gradient(model: torch.nn.Module) -> Tensor:
    """Of everything trainable, flat; 0 where there is none."""
    moving = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in moving])


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


@pytest.mark.parametrize("supported", [True, False])
def test_a_rounded_head_rounds_relative_to_the_gradient(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of probabilities from 1e-4 to 1 - 1e-6: the gradient of each row is as near as bfloat16 is, no farther."""
    monkeypatch.setattr(half_precision_weights, "multiplies_bfloat16", lambda: supported)
    w = normal(40, 16, seed=1).detach()
    rows, labels = 600, torch.arange(600) % 40
    h = (torch.linspace(-0.5, 1.4, rows)[:, None] * w[labels]).requires_grad_()
    exact = F.log_softmax(h @ w.T, -1)[torch.arange(rows), labels]
    rounded = h.detach().float().requires_grad_()
    found = FrozenHead.apply(rounded, w.float(), labels, w.to(torch.bfloat16))
    torch.testing.assert_close(found, exact.float(), rtol=1e-5, atol=1e-5)
    (wanted,), (near,) = torch.autograd.grad(exact.sum(), [h]), torch.autograd.grad(found.sum(), [rounded])
    assert exact.min() < -9 and exact.max() > -1e-6
    assert ((near - wanted).norm(dim=1) / wanted.norm(dim=1)).max() < 0.02


def test_frozen_head_is_exact_for_very_unlikely_labels() -> None:
    h = torch.tensor([[400.0]], dtype=torch.float64)
    w = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    assert FrozenHead.apply(h, w, torch.tensor([1])).item() == pytest.approx(-800.0)


@pytest.mark.parametrize("rows", [1, 7, 600])
def test_feed_forward(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PIECE", 100)
    x, w, gate_up, down = normal(rows, 8), normal(8, seed=1), normal(12, 8, seed=2), normal(8, 6, seed=3)
    inputs = [x, w, gate_up, down]

    def plain() -> Tensor:
        normed = w * x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt()
        gate, up = (normed @ gate_up.T).chunk(2, -1)
        return x + (F.silu(gate) * up) @ down.T

    expected = plain()
    fast = FeedForward.apply(x, w, 1e-3, gate_up, down)
    torch.testing.assert_close(fast, expected)
    torch.testing.assert_close(gradients(fast, inputs), gradients(expected, inputs))
    with torch.no_grad():
        torch.testing.assert_close(FeedForward.apply(x, w, 1e-3, gate_up, down), expected)
    for wanted in (x, gate_up, down):
        others = [y if y is wanted else y.detach() for y in inputs]
        only = FeedForward.apply(others[0], others[1], 1e-3, *others[2:])
        torch.testing.assert_close(gradients(only, [wanted]), gradients(plain(), [wanted]))


def rotated(qkv: Tensor, position: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """cos, sin (N, 1, D/2) and the (N, H + 2 H_kv, D) heads, all of them turned."""
    angle = position.double()[:, None, None] * 0.1 ** torch.arange(dim // 2)
    cos, sin = angle.cos(), angle.sin()
    first, second = qkv.view(position.numel(), -1, dim).chunk(2, -1)
    return cos, sin, torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def plain_attention(turned: Tensor, straight: Tensor, rows: list[Tensor], num_q: int, num_kv: int) -> list[Tensor]:
    """Attention of each sequence by the definition; rows: the places of its tokens."""
    q, k, v = turned[:, :num_q], turned[:, num_q : num_q + num_kv], straight[:, num_q + num_kv :]
    k, v = (y.repeat_interleave(num_q // num_kv, 1) for y in (k, v))
    outputs = []
    for row in rows:
        scores = torch.einsum("ihd,jhd->hij", q[row], k[row]) * 0.7
        hidden = torch.ones(row.numel(), row.numel(), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("hij,jhd->ihd", weights, v[row]).reshape(row.numel(), -1))
    return outputs


@pytest.mark.parametrize("small", [1 << 17, 600, 0])
@pytest.mark.parametrize(("num_q", "num_kv"), [(2, 2), (4, 2)])
def test_rotary_attention(num_q: int, num_kv: int, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SMALL_SCORES", small)
    lengths, dim = [3, 1, 12, 5, 2, 9, 4, 4, 7, 1], 4
    layout, _, position, places = row_layout([[0] * n for n in lengths], share=False)
    groups = AttentionPlan.of(layout, (num_q, num_kv, dim)).groups
    assert sum(group.size for group in groups) == len(lengths)
    assert len(groups) == len(lengths) if small == 0 else 1 < len(groups) < len(lengths)
    qkv = normal(sum(lengths), (num_q + 2 * num_kv) * dim)
    cos, sin, turned = rotated(qkv, position, dim)
    straight = qkv.view(len(turned), -1, dim)
    expected = torch.cat(plain_attention(turned, straight, [torch.tensor(p) for p in places], num_q, num_kv))
    fast = RotaryAttention.apply(qkv.clone(), cos, sin, layout, (num_q, num_kv, dim), 0.7)
    torch.testing.assert_close(fast, expected)
    torch.testing.assert_close(gradients(fast, [qkv]), gradients(expected, [qkv]))


def test_a_layout_has_a_plan_for_each_number_of_heads() -> None:
    layout, *_ = row_layout([[0] * n for n in (3, 1, 5)], share=False)
    plans = [AttentionPlan.of(layout, heads) for heads in ((4, 2, 8), (2, 2, 8), (4, 4, 8), (4, 2, 16))]
    assert len({id(plan) for plan in plans}) == 3 and plans[0] is plans[3], "the width of a head plays no part"
    # Every token's row of queries, keys and values has one entry for each head of each kind.
    assert [int(plan.gather.max()) + 1 for plan in plans[:3]] == [9 * 8, 9 * 6, 9 * 12]


@pytest.mark.parametrize("small", [1 << 17, 300, 0])
@pytest.mark.parametrize(("num_q", "num_kv"), [(2, 2), (4, 2)])
def test_rotary_attention_over_shared_prefixes(
    num_q: int, num_kv: int, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "SMALL_SCORES", small)
    monkeypatch.setattr(kernels, "WASTE", 3.0)
    prompts = [[1, 2, 3, 4, 5, 6], [1, 2, 9], [7]]
    sequences = [prompts[i % 3] + list(range(20 + i, 24 + 2 * i)) for i in range(7)] + [prompts[0], prompts[0][:4]]
    dim = 4
    layout, _, position, places = row_layout(sequences, share=True)
    assert layout.shared and position.numel() < sum(map(len, sequences))
    groups = AttentionPlan.of(layout, (num_q, num_kv, dim)).groups
    assert small == 0 or any(group.hidden is not None for group in groups)
    qkv = normal(position.numel(), (num_q + 2 * num_kv) * dim)
    cos, sin, turned = rotated(qkv, position, dim)
    rows = [torch.tensor(p) for p in places]
    parts = torch.cat(plain_attention(turned, qkv.view(len(turned), -1, dim), rows, num_q, num_kv))
    first = [torch.cat(rows).tolist().index(place) for place in range(position.numel())]
    fast = RotaryAttention.apply(qkv.clone(), cos, sin, layout, (num_q, num_kv, dim), 0.7)
    torch.testing.assert_close(fast, parts[first])
    torch.testing.assert_close(gradients(fast, [qkv]), gradients(parts[first], [qkv]))


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
    records = tiny_llama.sequences(13)
    batch = PackedBatch.build(records)
    assert llama.supports(model)
    slow = torch.cat(tiny_llama.padded_log_probs(model, records))
    weights = torch.linspace(-1, 1, slow.numel())
    (slow * weights).sum().backward()
    expected = gradient(model)
    model.zero_grad()
    fast = FusedLlama(model).token_log_probs(batch)
    (fast * weights).sum().backward()
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-5)
    torch.testing.assert_close(gradient(model), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    if options.get("zero_b"):
        plain = torch.cat(tiny_llama.padded_log_probs(tiny_llama.base(), records))
        torch.testing.assert_close(fast, plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"rank": 2}, {"zero_b": True}, {"attention_bias": True, "mlp_bias": True}])
def test_fast_llama_with_a_frozen(options: dict) -> None:
    """Gradients of B equal peft's, whichever LoRA form is used, and A gets none."""
    model = tiny_llama.lora(**options)
    frozen = {name: p.requires_grad_(False) for name, p in model.named_parameters() if "lora_A" in name}
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert names and all("lora_B" in name for name in names)
    records = tiny_llama.sequences(13)
    slow = torch.cat(tiny_llama.padded_log_probs(model, records))
    weights = torch.linspace(-1, 1, slow.numel())
    (slow * weights).sum().backward()
    expected = gradient(model)
    model.zero_grad()
    batch = PackedBatch.build(records)
    with fused_lora(model):
        ways = {
            "fused": lambda: FusedLlama(model).token_log_probs(batch),
            "packed": lambda: token_log_probs(model, batch, mode="packed"),
        }
        for way in ways.values():
            model.zero_grad()
            fast = way()
            (fast * weights).sum().backward()
            torch.testing.assert_close(fast, slow, rtol=0, atol=1e-5)
            torch.testing.assert_close(gradient(model), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    assert expected.abs().max() > 0 and all(p.grad is None for p in frozen.values())


@pytest.mark.parametrize("merged_bytes", [1 << 31, 0])
def test_medium_precision_stays_near_the_highest(merged_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights kept in bfloat16 where the processor multiplies such numbers, else as it multiplies float32."""
    monkeypatch.setattr(llama, "MERGED_BYTES", merged_bytes)
    model = tiny_llama.lora().eval()
    batch = PackedBatch.build(tiny_llama.sequences(13))
    with torch.no_grad():
        exact = FusedLlama(model).token_log_probs(batch)
        torch.set_float32_matmul_precision("medium")
        try:
            rounded = FusedLlama(model)
            found = rounded.token_log_probs(batch)
        finally:
            torch.set_float32_matmul_precision("highest")
    torch.testing.assert_close(found, exact, rtol=0.02, atol=0.02)
    rounds = merged_bytes > 0 and torch.cpu._is_avx512_bf16_supported()
    assert all((getattr(layer.down, "dtype", None) == torch.bfloat16) == rounds for layer in rounded.layers)


@pytest.mark.parametrize("rank", [2, 8])
def test_training_at_medium_precision_stays_near_the_highest(rank: int) -> None:
    model = tiny_llama.lora(rank=rank)
    batch = PackedBatch.build(tiny_llama.sequences(13))
    found = {}
    for precision in ("highest", "medium"):
        torch.set_float32_matmul_precision(precision)
        try:
            model.zero_grad()
            logp = FusedLlama(model, passes="one").token_log_probs(batch)
            logp.sum().backward()
        finally:
            torch.set_float32_matmul_precision("highest")
        found[precision] = logp.detach().clone(), gradient(model)
    (logp, grad), (near_logp, near_grad) = found["highest"], found["medium"]
    torch.testing.assert_close(near_logp, logp, rtol=0.02, atol=0.02)
    assert torch.nn.functional.cosine_similarity(near_grad, grad, dim=0) > 0.999
    assert float((near_grad - grad).norm() / grad.norm()) < 0.03


def kept_in_half(dtype: torch.dtype, **options) -> tuple:
    """A model whose frozen weights are kept in `dtype`, and one in float32 with the same, rounded weights."""
    kept, plain = tiny_llama.lora(dtype=dtype, **options), tiny_llama.lora(**options)
    with torch.no_grad():
        for p, q in zip(kept.parameters(), plain.parameters(), strict=True):
            assert p.requires_grad == q.requires_grad and p.dtype == (torch.float32 if p.requires_grad else dtype)
            q.copy_(p)
        for p, q in zip(kept.buffers(), plain.buffers(), strict=True):
            q.copy_(p)
    return kept, plain


@pytest.mark.parametrize("merged_bytes", [1 << 31, 0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"rank": 2}, {"attention_bias": True, "mlp_bias": True}])
def test_weights_kept_in_half_precision_are_all_that_is_rounded(
    options: dict, dtype: torch.dtype, merged_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the processor cannot multiply in bfloat16: as float32 weights that were rounded, forward and backward."""
    monkeypatch.setattr(llama, "MERGED_BYTES", merged_bytes)
    for module in (half_precision_weights, llama):
        monkeypatch.setattr(module, "multiplies_bfloat16", lambda: False)
    kept, plain = kept_in_half(dtype, **options)
    batch = PackedBatch.build(tiny_llama.sequences(13))
    assert llama.supports(kept)
    found, wanted = (FusedLlama(m, passes="one").token_log_probs(batch) for m in (kept, plain))
    biased = {"rtol": 0.05, "atol": 0.05} if options.get("mlp_bias") else {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(found, wanted, **biased)
    found.sum().backward(), wanted.sum().backward()
    near = 3e-2 if options.get("mlp_bias") else 1e-5
    assert float((gradient(kept) - gradient(plain)).norm() / gradient(plain).norm()) < near
    with torch.no_grad():
        found, wanted = (FusedLlama(m).token_log_probs(batch) for m in (kept, plain))
        torch.testing.assert_close(found, wanted, **biased)
        keep = torch.arange(len(batch.input_ids))
        found, wanted = (
            FusedLlama(m).logits(batch.input_ids, batch.position_ids, batch.layout, keep) for m in (kept, plain)
        )
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.2 if options.get("mlp_bias") else 1e-4)


def test_products_in_bfloat16_stay_near(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (half_precision_weights, llama):
        monkeypatch.setattr(module, "multiplies_bfloat16", lambda: True)
    kept, plain = kept_in_half(torch.bfloat16)
    batch = PackedBatch.build(tiny_llama.sequences(13))
    found, wanted = (FusedLlama(m, passes="one").token_log_probs(batch) for m in (kept, plain))
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)
    found.sum().backward(), wanted.sum().backward()
    assert float((gradient(kept) - gradient(plain)).norm() / gradient(plain).norm()) < 0.03


def test_a_frozen_product_keeps_no_wide_copy() -> None:
    x, weight = torch.randn(5, 8, requires_grad=True), torch.randn(6, 8).to(torch.float16)
    out = FrozenProduct.apply(x, weight)
    assert [t.dtype for t in out.grad_fn.saved_tensors] == [torch.float16]
    torch.testing.assert_close(out, x @ weight.float().T)
    torch.testing.assert_close(gradients(out, [x]), gradients(x @ weight.float().T, [x]))


def test_fast_llama_trains_all_parameters() -> None:
    model = tiny_llama.base(tie_word_embeddings=True)
    records = tiny_llama.sequences(5)
    torch.cat(tiny_llama.padded_log_probs(model, records)).sum().backward()
    expected = gradient(model)
    model.zero_grad()
    FusedLlama(model).token_log_probs(PackedBatch.build(records)).sum().backward()
    torch.testing.assert_close(gradient(model), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_fast_llama_declines_what_it_does_not_know() -> None:
    assert not llama.supports(tiny_llama.base(dtype=torch.bfloat16)), "its own weights are to be trained"
    assert not llama.supports(tiny_llama.lora(hidden_act="gelu"))
    assert not llama.supports(torch.nn.Linear(2, 2))
    hooked = tiny_llama.lora()
    hooked.get_base_model().model.layers[0].register_forward_hook(lambda *_: None)
    assert not llama.supports(hooked)
    dropped = tiny_llama.lora(attention_dropout=0.1)
    assert not llama.supports(dropped.train()) and llama.supports(dropped.eval())


def test_rule_for_the_cheaper_form() -> None:
    assert is_cheaper(128, 128, 32) and is_cheaper(128, 344, 32)
    assert not is_cheaper(2048, 2048, 32)


def test_fused_lora_equals_peft_and_is_undone() -> None:
    model = tiny_llama.lora()
    names = list(model.state_dict())
    ids = torch.arange(3, 33).view(2, 15)
    plain = model(input_ids=ids, labels=ids)
    plain.loss.backward()
    expected = gradient(model)
    model.zero_grad()
    with fused_lora(model) as count:
        assert count == 14 and list(model.state_dict()) == names
        fused = model(input_ids=ids, labels=ids)
        fused.loss.backward()
        with model.disable_adapter():
            base = model(input_ids=ids).logits
    torch.testing.assert_close(fused.logits, plain.logits, rtol=0, atol=2e-5)
    torch.testing.assert_close(gradient(model), expected, rtol=1e-4, atol=1e-5)
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


def test_a_copy_in_half_precision_is_made_anew_where_a_weight_changed() -> None:
    layer = torch.nn.Linear(3, 2, bias=False)
    first = half_copy(layer, [layer.weight, layer.weight])
    assert half_copy(layer, [layer.weight, layer.weight]) is first and first.dtype == torch.bfloat16
    torch.testing.assert_close(first, torch.cat([layer.weight, layer.weight]).bfloat16())
    with torch.no_grad():
        layer.weight.add_(1.0)
    torch.testing.assert_close(half_copy(layer, [layer.weight]), layer.weight.bfloat16())
    with torch.no_grad():
        layer.weight.add_(1.0)
    again = half_copy(layer, [layer.weight])
    torch.testing.assert_close(again, layer.weight.bfloat16())
    other = torch.nn.Parameter(torch.full((2, 3), 7.0))
    while other._version < layer.weight._version:
        other.data.add_(0.0)
        with torch.no_grad():
            other.mul_(1.0)
    assert other._version == layer.weight._version
    torch.testing.assert_close(half_copy(layer, [other]), other.bfloat16())


def test_merged_products_keep_the_bias_and_leave_own_forward_passes_alone() -> None:
    model = get_peft_model(tiny_llama.base(attention_bias=True), LoraConfig(r=8, target_modules=["q_proj"])).eval()
    layers = [model.get_submodule(f"base_model.model.model.layers.{i}.self_attn.q_proj") for i in range(2)]
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for layer in layers:
            layer.base_layer.bias.copy_(torch.linspace(-1, 1, 32))
            layer.lora_B["default"].weight.fill_(0.1)
        expected = layers[0](x)
        own = layers[1].forward = lambda y: y * 0
        with fused_lora(model) as count:
            assert count == 1 and layers[1].forward is own
            torch.testing.assert_close(layers[0](x), expected)
        assert "forward" not in vars(layers[0]) and layers[1].forward is own


def one_layer(**options: Any) -> Any:
    """A model with adapters of q_proj and v_proj, in evaluation mode, and the first q_proj."""
    model = get_peft_model(tiny_llama.base(), LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "v_proj"]))
    if options:
        model.add_adapter("other", LoraConfig(r=2, target_modules=["q_proj"], **options))
        model.set_adapter("other")
    return model.eval(), model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")


def test_one_plain_adapter_that_is_at_work_is_a_product_of_two_matrices() -> None:
    model, layer = one_layer()
    factors = active_factors(layer)
    assert factors is not None and factors[0] is layer.lora_A["default"].weight
    assert factors[1] is layer.lora_B["default"].weight and factors[2] == 3.0
    with model.disable_adapter():
        assert active_factors(layer) is None
    assert active_factors(layer) is not None
    layer.merge()
    assert active_factors(layer) is None
    layer.unmerge()
    layer.half()
    layer.lora_A.float(), layer.lora_B.float()
    assert active_factors(layer) is None and active_factors(layer, mixed=True) is not None
    assert active_factors(one_layer(use_dora=True)[1]) is None
    dropped = one_layer(lora_dropout=0.5)[1]
    assert active_factors(dropped) is not None and active_factors(dropped.train()) is None
    assert active_factors(one_layer(lora_dropout=0.0)[1].train()) is not None
    both, layer = one_layer(lora_dropout=0.0)
    both.base_model.set_adapter(["default", "other"])
    assert active_factors(layer) is None


def test_layers_side_by_side_are_one_product_where_all_are_frozen_and_of_one_scale() -> None:
    def layers(**options: Any) -> list[Any]:
        model, _ = one_layer(**options)
        attention = model.get_submodule("base_model.model.model.layers.0.self_attn")
        return [attention.q_proj, attention.v_proj]

    pair = layers()
    assert adapted(pair, half=False) is None and adapted(pair[:1], half=False) is not None
    both = adapted(pair, half=True)
    assert both is not None and both.weight.dtype == torch.bfloat16 and both.scale == 3.0
    torch.testing.assert_close(both.weight, torch.cat([x.base_layer.weight for x in pair]).bfloat16())
    torch.testing.assert_close(both.a, torch.cat([x.lora_A["default"].weight for x in pair]))
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    expected = torch.cat([layer(x) for layer in pair], -1)
    torch.testing.assert_close(both(x), expected, rtol=0.05, atol=0.05)
    alone, rounded = (adapted(pair[:1], half=half) for half in (False, True))
    assert alone is not None and alone.weight is pair[0].base_layer.weight
    assert rounded is not None and rounded.weight.dtype == torch.bfloat16
    pair[0].base_layer.bfloat16()
    kept = adapted(pair[:1], half=True)
    assert kept is not None and kept.weight is pair[0].base_layer.weight
    pair[1].scaling["default"] = 2.0
    assert adapted(pair, half=True) is None
    pair = layers()
    pair[1].base_layer.weight.requires_grad_()
    assert adapted(pair, half=True) is None and adapted(pair[:1], half=True) is not None
    assert adapted([*pair[:1], torch.nn.Linear(32, 8, bias=False)], half=True) is None


def test_the_fused_pass_applies_to_plain_llamas_alone() -> None:
    def changed(change: Any, **config: Any) -> bool:
        model = tiny_llama.base(**config).eval()
        change(model)
        return llama.supports(model)

    def nothing(_: Any) -> None: ...

    def head_with_a_bias(model: Any) -> None:
        model.lm_head = torch.nn.Linear(32, tiny_llama.VOCABULARY)

    def hook(model: Any) -> None:
        model.model.layers[1].mlp.register_forward_hook(lambda *_: None)

    def hook_before(model: Any) -> None:
        model.model.layers[0].self_attn.q_proj.register_forward_pre_hook(lambda *_: None)

    def checkpointing(model: Any) -> None:
        model.model.layers[0].gradient_checkpointing = True

    def other_norm(model: Any) -> None:
        model.model.layers[1].input_layernorm = torch.nn.RMSNorm(32)

    def frozen_half(model: Any) -> None:
        model.requires_grad_(False).to(torch.bfloat16)

    def partly_frozen_half(model: Any) -> None:
        frozen_half(model)
        model.model.layers[0].mlp.up_proj.weight.requires_grad_()

    def head_of_another_format(model: Any) -> None:
        frozen_half(model)
        model.lm_head.float()

    def whole_numbers(model: Any) -> None:
        frozen_half(model)
        model.model.layers[0].mlp.up_proj.weight.data = torch.zeros(48, 32, dtype=torch.int8)

    assert changed(nothing) and changed(frozen_half) and changed(nothing, attention_dropout=0.5)
    assert not changed(lambda model: model.train(), attention_dropout=0.5) and changed(lambda model: model.train())
    assert not changed(nothing, hidden_act="gelu")
    for change in (head_with_a_bias, hook, hook_before, checkpointing, other_norm, partly_frozen_half):
        assert not changed(change), change.__name__
    assert not changed(head_of_another_format) and not changed(whole_numbers)
    assert not llama.supports(tiny_llama.base(), "cuda") and llama.supports(tiny_llama.base(), "cpu")
    assert llama.supports(tiny_llama.lora())
    of_other_kinds = get_peft_model(tiny_llama.base(), IA3Config(target_modules=["k_proj"], feedforward_modules=[]))
    assert not llama.supports(of_other_kinds)


def test_factors_with_a_bias_are_no_product_of_two_matrices() -> None:
    for bias in (False, True):
        config = LoraConfig(r=2, target_modules=["q_proj"], lora_bias=bias)
        model = get_peft_model(tiny_llama.base(), config)
        layer = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
        assert (active_factors(layer) is None) is bias


@pytest.mark.parametrize("prompt", [60, 100, 140])
def test_short_answers_to_a_long_question_are_those_of_each_alone(prompt: int) -> None:
    """What is shared is far longer than what is asked of it."""
    model = tiny_llama.base(max_position_embeddings=256)
    question = tuple(3 + i % 50 for i in range(prompt))
    records = [TokenSequence(question, answer) for answer in ((5, 9, 2), (7, 2), (5, 11, 13, 17, 2))]
    with torch.no_grad():
        found = token_log_probs(model, PackedBatch.build(records, share=True), mode="fused")
        expected = torch.cat([tiny_llama.padded_log_probs(model, [record])[0] for record in records])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("passes", ["one", "many"])
@pytest.mark.parametrize("rank", [None, 1, 30])
def test_biases_are_added_beside_adapters_of_any_rank_and_without(rank: int | None, passes: str) -> None:
    model: Any = tiny_llama.base(attention_bias=True, mlp_bias=True)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.copy_(torch.linspace(-0.5, 0.7, p.numel()))
    if rank is not None:
        config = LoraConfig(r=rank, target_modules=["q_proj", "o_proj", "down_proj"], init_lora_weights=False)
        model = get_peft_model(model, config).eval()
    batch = PackedBatch.build(tiny_llama.sequences(5), share=True)
    with torch.no_grad():
        found = FusedLlama(model, passes=passes).token_log_probs(batch)
        expected = torch.cat(tiny_llama.padded_log_probs(model, list(batch.sequences)))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(FusedLlama(model, passes=passes).token_log_probs(batch), expected, rtol=1e-4, atol=1e-4)
