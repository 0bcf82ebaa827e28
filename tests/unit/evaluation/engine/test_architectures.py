"""How a model is run follows from what it is, and every way gives transformers' own numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support import architectures
from support.architectures import examine, greedy_alone, log_probs_alone, records, tiny_model

from evaluation.engine import likelihood
from evaluation.engine.architectures import attention_window, is_known, longest_of_one_kind, refusal, way
from evaluation.engine.backends import plain
from evaluation.engine.decoding import greedy
from evaluation.engine.forward import resolve_mode, token_log_probs
from evaluation.engine.packing import PackedBatch
from evaluation.engine.sequences import TokenSequence

pytestmark = pytest.mark.unit

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 20,
    "short_factor": [1.0 + i / 10 for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
}
PHI = {"rope_parameters": LONG, "sliding_window": None, "original_max_position_embeddings": 20}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 12}
LLAMA3 = YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("kind", "options", "short", "long"),
    [
        ("llama", {}, "fused", "fused"),
        ("llama", {"rope_parameters": YARN}, "fused", "fused"),
        ("llama", {"rope_parameters": LLAMA3}, "fused", "fused"),
        ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 20}, "fused", "plain"),
        ("llama", {"rope_parameters": LONG}, "fused", "plain"),
        ("qwen3", {"rope_parameters": DYNAMIC, "max_position_embeddings": 20}, "packed", "plain"),
        ("phi3", PHI, "packed", "plain"),
        ("mistral", {}, "packed", "padded"),
        ("mistral", {"sliding_window": None}, "packed", "packed"),
        ("mistral", {"use_sliding_window": False}, "packed", "padded"),
        ("gemma2", {}, "padded", "padded"),
        ("gemma3_text", {"attn_logit_softcapping": 30.0}, "padded", "padded"),
        ("mistral", {"per_layer_config": {1: {"sliding_window": 8}}}, "plain", "plain"),
        ("mamba", {}, "plain", "plain"),
        ("qwen3_5_text", {}, "plain", "plain"),
    ],
)
def test_the_way_follows_from_the_configuration(kind: str, options: dict[str, Any], short: str, long: str) -> None:
    model = tiny_model(kind, **options)
    assert (resolve_mode(model, "auto", 8), resolve_mode(model, "auto", 44)) == (short, long)
    found = way(model)
    assert (found.limit is None) == (short == long) and found.reason


@pytest.mark.parametrize(("window", "limit"), [(12, 12), (30, 19)])
def test_the_nearer_of_two_limits_counts(window: int, limit: int) -> None:
    """A window, and positions that grow from 20 tokens on; beyond the latter no padding is right."""
    options = {"rope_parameters": DYNAMIC, "max_position_embeddings": 20, "sliding_window": window}
    found = way(tiny_model("mistral", **options))
    assert (found.name, found.limit, found.beyond) == ("packed", limit, "plain")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 20}),
        ("llama", {"rope_parameters": LONG}),
        ("phi3", PHI),
    ],
)
@pytest.mark.slow
def test_rotary_positions_that_grow_with_the_longest_sequence(kind: str, options: dict[str, Any]) -> None:
    """Sequences on both sides of the switch, in one batch and after each other, in any order."""
    model, sequences = tiny_model(kind, **options), records()
    sequences += [TokenSequence(tuple(range(3, 3 + n)), (5, 6)) for n in range(15, 22)]
    with torch.no_grad():
        expected = log_probs_alone(model, sequences)
        for order in (sequences, sequences[::-1], sequences[4:] + sequences[:4]):
            found = dict(zip(order, likelihood.score(model, order).log_probs, strict=True))
            joined = torch.cat([torch.from_numpy(found[s]) for s in sequences])
            torch.testing.assert_close(joined, expected, atol=2e-5, rtol=0)
    prompts = [s.prompt for s in sequences]
    assert greedy(model, prompts, max_new_tokens=12, stop_ids=()) == greedy_alone(model, prompts, 12)


@pytest.mark.parametrize("kind", ["jamba", "rwkv", "recurrent_gemma", "gpt_oss"])
@pytest.mark.slow
def test_numbers_are_those_of_one_record_at_a_time(kind: str) -> None:
    found = examine(kind, torch.float32)
    assert found.largest < 1e-4 and found.drawn


def test_plain_passes_never_hold_sequences_of_two_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sequences, shapes = tiny_model("mamba2"), records(), []
    forward = plain.PlainBackend.forward

    def watched(self: plain.PlainBackend, ids: torch.Tensor, *options: Any) -> torch.Tensor:
        shapes.append(tuple(ids.shape))
        return forward(self, ids, *options)

    monkeypatch.setattr(plain.PlainBackend, "forward", watched)
    token_log_probs(model, PackedBatch.build(sequences, share=True))
    lengths = sorted(len(s.prompt) + len(s.answer) for s in sequences)
    assert shapes == [(lengths.count(n), n) for n in dict.fromkeys(lengths)]


@pytest.mark.parametrize(
    ("kind", "options"),
    [("bert", {}), ("gemma3_text", {"use_bidirectional_attention": True}), ("llama", {"is_causal": False})],
)
def test_a_model_that_reads_both_sides_is_refused(kind: str, options: dict[str, Any]) -> None:
    model = tiny_model(kind, **options)
    with pytest.raises(ValueError, match=f"{kind} is no causal language model"):
        token_log_probs(model, PackedBatch.build(records()))


def test_adapters_that_put_tokens_before_a_text_are_refused() -> None:
    from peft import PromptTuningConfig

    model = get_peft_model(tiny_model("llama"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with pytest.raises(ValueError, match="PROMPT_TUNING put tokens of their own before a text"):
        token_log_probs(model, PackedBatch.build(records()))


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "norm"])
def test_a_llama_with_adapters_that_the_fused_pass_does_not_know_is_not_fused(target: str) -> None:
    options: dict[str, Any] = {"modules_to_save": ["norm"]} if target == "norm" else {}
    targets = ["q_proj"] if target == "norm" else ["q_proj", target]
    adapted = get_peft_model(tiny_model("llama"), LoraConfig(r=4, target_modules=targets, **options)).eval()
    architectures.shake(adapted)
    assert way(adapted).name == ("fused" if target == "embed_tokens" else "packed")
    sequences = records()
    torch.testing.assert_close(
        token_log_probs(adapted, PackedBatch.build(sequences)), log_probs_alone(adapted, sequences), atol=2e-5, rtol=0
    )


@pytest.mark.parametrize(("attention", "expected"), [("sdpa", "packed"), ("eager", "padded")])
def test_attention_of_another_kind_is_padded(attention: str, expected: str) -> None:
    model = tiny_model("qwen3")
    model.set_attn_implementation(attention)
    assert resolve_mode(model, "auto", 8) == expected
    assert ("eager" in way(model).reason) == (attention == "eager")


def test_a_model_that_nobody_knows_is_tried_whether_it_reads_ahead() -> None:
    assert plain.reads_ahead(tiny_model("bert", is_decoder=False))
    assert not any(plain.reads_ahead(tiny_model(kind)) for kind in ("bert", "rwkv", "mamba", "openai-gpt"))
    assert not plain.reads_ahead(tiny_model("rwkv", torch.bfloat16))


def test_what_a_model_within_another_reads_decides() -> None:
    """Of a model of texts and images the part for texts says whether it looks at both sides."""
    model = tiny_model("llama")
    assert refusal(model) is None
    model.config.text_config = SimpleNamespace(use_bidirectional_attention="all")
    assert "reads what stands on both sides" in str(refusal(model))


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_model_that_was_packed_still_reads_padded_texts_by_their_mask(kind: str) -> None:
    """Left-padded: whatever is under the mask, and whether it ran packed before, changes nothing."""
    model = tiny_model(kind)
    ids, mask = torch.tensor([[7, 7, 5, 9, 11], [4, 6, 8, 10, 12]]), torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=mask).logits[:, 2:]
        token_log_probs(model, PackedBatch.build(records()), mode="packed")
        assert model.config._attn_implementation == "oblivionis_packed"
        ids[0, :2] = 3
        torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits[:, 2:], before)


def test_the_shortest_limit_of_several_kinds_of_positions_counts() -> None:
    """Layers of one kind change at 20 tokens, of another at 39; without the own number, that of the whole model is."""
    rope = {"full_attention": LONG, "sliding_attention": DYNAMIC, "chunked_attention": YARN}
    config = SimpleNamespace(rope_parameters=rope, max_position_embeddings=40)
    assert longest_of_one_kind(config) == 20
    config.max_position_embeddings = 15
    assert longest_of_one_kind(config) == 14
    config.rope_parameters = {"a": {"rope_type": "longrope"}, "b": YARN}
    assert longest_of_one_kind(config) == 15
    config.rope_parameters = {"b": YARN}
    assert longest_of_one_kind(config) is None


def test_the_own_cache_of_a_known_model_is_right() -> None:
    known = {kind: is_known(tiny_model(kind)) for kind in ("llama", "qwen3", "gemma2", "mamba", "rwkv")}
    assert known == {"llama": True, "qwen3": True, "gemma2": True, "mamba": True, "rwkv": False}


def test_a_window_or_a_chunk_is_the_longest_sequence_without_a_border() -> None:
    sizes = {"sliding_window": 12, "attention_chunk_size": 8}
    assert (
        attention_window(SimpleNamespace(**sizes)) == 8 and attention_window(SimpleNamespace(sliding_window=12)) == 12
    )
    assert attention_window(SimpleNamespace(attention_chunk_size=9, sliding_window=None)) == 9
    assert attention_window(SimpleNamespace(sliding_window=0)) is attention_window(SimpleNamespace()) is None
    assert attention_window(SimpleNamespace(layer_types=["full_attention"] * 2, **sizes)) is None
    assert attention_window(SimpleNamespace(layer_types=["full_attention", "sliding_attention"], **sizes)) == 8
    assert attention_window(SimpleNamespace(layer_types=[], **sizes)) == 8


def test_a_model_of_its_own_class_and_one_of_other_layers_run_plainly_and_say_why() -> None:
    model = tiny_model("qwen3")
    model.__class__ = type("Own", (type(model),), {})
    assert way(model).name == "plain" and way(model).reason == "Own is not transformers' own class of a qwen3"
    model = tiny_model("qwen3")
    model.config.model_type = "mamba2"
    assert "mamba2 mixes positions by more than attention" in way(model).reason
    model = tiny_model("qwen3")
    model.config.layer_types = ["full_attention", "linear_attention"]
    assert way(model).reason == "it has layers of the kind linear_attention"
    assert "is not known here" in way(tiny_model("rwkv")).reason


def test_frequencies_that_grew_with_a_longer_batch_are_those_of_the_next() -> None:
    """Of 40, 25 and 30 tokens one after the other, all beyond the 20 from which frequencies grow."""
    model = tiny_model("llama", rope_parameters=DYNAMIC, max_position_embeddings=20)
    for length in (40, 25, 30):
        sequence = TokenSequence(tuple(3 + i % 50 for i in range(length)), (5, 6))
        fresh = tiny_model("llama", rope_parameters=DYNAMIC, max_position_embeddings=20)
        with torch.no_grad():
            found = token_log_probs(model, PackedBatch.build([sequence]), mode="plain")
            torch.testing.assert_close(found, log_probs_alone(fresh, [sequence]), atol=2e-5, rtol=0)
        prompts = [sequence.prompt]
        assert greedy(model, prompts, max_new_tokens=4, stop_ids=(), mode="plain") == greedy_alone(fresh, prompts, 4)
