"""Packing: the same numbers and gradients as one sequence at a time, for every layout and for unsupported models."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from evaluation.engine import forward, packing
from evaluation.engine.architectures import ATTENTION, way
from evaluation.engine.backends.base import collected, shortened
from evaluation.engine.backends.packed import PackingError, packed_attention
from evaluation.engine.packing import PackedBatch
from evaluation.engine.sequences import TokenSequence

VOCABULARY = 50
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "eos_token_id": 2,
}


def llama(**changes: object) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes})).eval()


def other(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval()
    if kind == "gemma2":
        return Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8)).eval()
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY)).eval()


def some_sequences(seed: int = 0, count: int = 9) -> list[TokenSequence]:
    rng = random.Random(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, VOCABULARY) for _ in range(rng.randint(low, high)))

    prompts = [ids(1, 8) for _ in range(3)]
    stem = ids(2, 4)
    return [TokenSequence(rng.choice(prompts), rng.choice([(), stem]) + ids(1, 9)) for _ in range(count)]


def one_by_one(model: nn.Module, sequences: list[TokenSequence]) -> Tensor:
    """The definition: a plain forward of each sequence on its own."""
    parts = []
    for prompt, answer in sequences:
        logits = model(input_ids=torch.tensor([prompt + answer])).logits[0].float()
        rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
        parts.append(rows[torch.arange(len(answer)), torch.tensor(answer)])
    return torch.cat(parts)


def test_the_packed_row_holds_no_padding_and_each_shared_prefix_once() -> None:
    model, seen = llama(), []
    model.model.embed_tokens.register_forward_hook(lambda _m, args, _o: seen.append(tuple(args[0].shape)))
    prompt = (5, 6, 7)
    sequences = [TokenSequence(prompt, (8, 9, 2)), TokenSequence(prompt, (8, 10, 11, 2)), TokenSequence((5, 9), (2,))]
    forward.token_log_probs(model, PackedBatch.build(sequences), mode="packed")
    forward.token_log_probs(model, PackedBatch.build(sequences, share=True), mode="packed")
    forward.token_log_probs(model, PackedBatch.build(sequences), mode="padded")
    # The last answer token is only a label. Shared: 5 6 7 8 9, 10 11 after the 8, and 9 after the first 5.
    assert seen == [(1, 5 + 6 + 2), (1, 5 + 2 + 1), (3, 6)]


def test_prefix_tree_gives_equal_prefixes_equal_places_and_nothing_else() -> None:
    rng = random.Random(3)
    sequences = [tuple(rng.randrange(2) for _ in range(rng.randint(1, 6))) for _ in range(40)]
    places, owned = packing.prefix_tree(sequences)
    by_prefix: dict[tuple[int, ...], int] = {}
    for sequence, row in zip(sequences, places, strict=True):
        for end, place in enumerate(row, start=1):
            assert by_prefix.setdefault(sequence[:end], place) == place
    assert sorted(by_prefix.values()) == list(range(len(by_prefix)))
    own = [row[len(row) - count :] for row, count in zip(places, owned, strict=True)]
    assert sorted(place for row in own for place in row) == list(range(len(by_prefix)))
    assert all(row == list(range(row[0], row[0] + len(row))) for row in own if row)


def test_states_are_those_that_enter_the_head() -> None:
    model, watched, sequences = llama(), llama(), some_sequences(1)
    expected = [
        watched(torch.tensor([p + a]), output_hidden_states=True).hidden_states[-1][0, len(p) - 1 :]
        for p, a in sequences
    ]
    for mode in ("fused", "packed", "padded"):
        for share in (False, True):
            batch = PackedBatch.build(sequences, share=share, last=True)
            with torch.no_grad():
                logits, states = forward.kept_logits_and_states(model, batch, mode=mode)
                logp = forward.token_log_probs(model, batch, mode=mode)
            torch.testing.assert_close(states[batch.state_rows], torch.cat(expected), atol=1e-5, rtol=0)
            torch.testing.assert_close(model.lm_head(states), logits, atol=1e-5, rtol=0)
            torch.testing.assert_close(logp, one_by_one(model, sequences), atol=1e-5, rtol=0)


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
@pytest.mark.parametrize("states", [False, True])
def test_scorer_gives_likelihoods_hits_and_states(mode: str, states: bool) -> None:
    model, sequences = llama(num_hidden_layers=3), some_sequences(6, 20)
    with torch.no_grad():
        # Answers that begin as the model would answer: some tokens are hits and some are not.
        for i in range(0, len(sequences), 2):
            prompt, answer = sequences[i]
            ids = torch.tensor([prompt])
            likely = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False)
            sequences[i] = TokenSequence(prompt, (*likely[0, len(prompt) :].tolist(), *answer))
        batch = PackedBatch.build(sequences, share=True, last=states)
        logp, hits, found, _ = forward.Scorer(model, mode)(batch, states=states)
        logits = [model(torch.tensor([p + a])).logits[0, len(p) - 1 : -1] for p, a in sequences]
    expected = torch.cat([x.argmax(-1) for x in logits]) == batch.labels
    assert 30 < int(expected.sum()) < expected.numel() - 30
    assert torch.equal(hits, expected)
    torch.testing.assert_close(logp, one_by_one(model, sequences), atol=1e-5, rtol=0)
    assert (found is not None) == states


def test_scorer_counts_the_first_of_equal_logits_as_the_likeliest_in_half_precision() -> None:
    model = llama().to(torch.bfloat16)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    sequences = [TokenSequence((4, 5), (0, 9, 0, 2)), TokenSequence((4,), (3,))]
    logp, hits, *_ = forward.Scorer(model)(PackedBatch.build(sequences, share=True))
    assert hits.tolist() == [True, False, True, False, False]
    torch.testing.assert_close(logp, torch.full((5,), -float(torch.log(torch.tensor(50.0)))))


def test_mode_fused_says_where_it_does_not_apply() -> None:
    with pytest.raises(ValueError, match="mode fused needs a float32 Llama"):
        forward.token_log_probs(other("qwen2"), PackedBatch.build(some_sequences()), mode="fused")
    assert forward.resolve_mode(llama(), "auto", 9) == "fused"


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
def test_gradients_through_shared_prefixes_are_those_of_one_sequence_at_a_time(mode: str) -> None:
    model, sequences = llama(), some_sequences(7)
    stem = (5, 6, 7, 8, 9, 10)
    sequences = [TokenSequence(stem + s.prompt, s.answer) for s in sequences]
    batch = forward.packed_batch(model, sequences)
    assert batch.layout.shared
    weights = torch.linspace(-1, 1, len(batch.labels))
    found = (weights * forward.token_log_probs(model, batch, mode=mode)).sum()
    expected = (weights * one_by_one(model, sequences)).sum()
    for a, b in zip(
        torch.autograd.grad(found, list(model.parameters())),
        torch.autograd.grad(expected, list(model.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


def test_prefixes_are_shared_where_that_leaves_out_a_tenth_of_the_tokens() -> None:
    model = llama()
    answers = [tuple(range(10 * i + 10, 10 * i + 20)) for i in range(4)]

    def shares(stem: tuple[int, ...]) -> bool:
        sequences = [TokenSequence((*stem, i + 3), answer) for i, answer in enumerate(answers)]
        return forward.packed_batch(model, sequences).layout.shared

    assert shares((1, 2)) and not shares((1,)) and not shares(())


def test_prefixes_are_not_shared_where_dropout_draws_for_each_sequence_nor_off_the_cpu() -> None:
    sequences = [TokenSequence((1, 2, 3, 4, i), (9, 2)) for i in range(5, 9)]
    assert forward.packed_batch(llama(), sequences).layout.shared
    assert not forward.packed_batch(llama().to("meta"), sequences).layout.shared
    for model in (
        get_peft_model(llama(), LoraConfig(r=2, lora_dropout=0.5, target_modules=["q_proj"])),
        llama(attention_dropout=0.1),
    ):
        assert not forward.packed_batch(model.train(), sequences).layout.shared
        assert forward.packed_batch(model.eval(), sequences).layout.shared
    idle = llama()
    idle.add_module("idle", nn.Dropout(0.0))
    assert forward.packed_batch(idle.train(), sequences).layout.shared


def test_answer_logits_and_sums() -> None:
    model = llama()
    sequences = [TokenSequence((4,), (5, 2)), TokenSequence((4, 6), (7, 8, 2))]
    batch = PackedBatch.build(sequences)
    logits = forward.answer_logits(model, batch)
    assert logits.shape == (5, VOCABULARY)
    logp = logits.log_softmax(-1)[torch.arange(5), batch.labels]
    total, mean = packing.sequence_nll(logp, batch)
    torch.testing.assert_close(total, torch.stack([-logp[:2].sum(), -logp[2:].sum()]))
    torch.testing.assert_close(mean, torch.stack([-logp[:2].mean(), -logp[2:].mean()]))


@pytest.mark.parametrize(("kind", "name"), [("qwen2", "packed"), ("gpt2", "packed"), ("gemma2", "padded")])
def test_models_that_cannot_pack_fall_back_by_themselves(kind: str, name: str) -> None:
    model, sequences = other(kind), some_sequences(2)
    before = model.config._attn_implementation
    expected = one_by_one(model, sequences)
    assert way(model).name == name
    batch = PackedBatch.build(sequences, share=True)
    torch.testing.assert_close(forward.token_log_probs(model, batch), expected, atol=1e-5, rtol=0)
    if name != "packed":
        assert model.config._attn_implementation == before


def test_sliding_window_is_padded_where_a_sequence_outgrows_it() -> None:
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8)).eval()
    assert forward.resolve_mode(model, "auto", 8) == "packed"
    assert forward.resolve_mode(model, "auto", 9) == "padded"
    sequences = some_sequences(4)
    expected = one_by_one(model, sequences)
    torch.testing.assert_close(
        forward.token_log_probs(model, PackedBatch.build(sequences)), expected, atol=1e-5, rtol=0
    )


def test_the_model_behaves_as_before_without_a_layout() -> None:
    model = llama()
    ids = torch.randint(3, VOCABULARY, (3, 7))
    mask = torch.ones_like(ids)
    mask[0, 4:] = 0
    before = model(input_ids=ids, attention_mask=mask).logits
    generated = model.generate(ids[1:], max_new_tokens=5, do_sample=False, pad_token_id=0)
    forward.token_log_probs(model, PackedBatch.build(some_sequences()), mode="packed")
    assert model.config._attn_implementation == ATTENTION
    assert ATTENTION not in str(model.config.to_dict())
    torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits[mask.bool()], before[mask.bool()])
    assert torch.equal(model.generate(ids[1:], max_new_tokens=5, do_sample=False, pad_token_id=0), generated)


def test_peft_model_in_training_with_checkpointing_and_mixed_flags(caplog, recwarn) -> None:
    sequences = some_sequences(5)
    gradients = []
    for checkpointing in (False, True):
        model = get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
        model.train()
        model.base_model.model.model.norm.eval()
        if checkpointing:
            model.enable_input_require_grads()
            for layer in model.base_model.model.model.layers:
                layer.gradient_checkpointing = True
                layer._gradient_checkpointing_func = torch.utils.checkpoint.checkpoint
        forward.token_log_probs(model, PackedBatch.build(sequences)).sum().backward()
        assert model.training and not model.base_model.model.model.norm.training
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)
    reference = get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    reference.load_state_dict(model.state_dict())
    one_by_one(reference, sequences).sum().backward()
    for mine, theirs in zip(gradients[0], [p.grad for p in reference.parameters() if p.requires_grad], strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
    assert not [w for w in recwarn if "ttention" in str(w.message)]
    assert not caplog.records


def test_threads_do_not_mix_their_layouts() -> None:
    model = llama()
    batches = [PackedBatch.build(some_sequences(seed)) for seed in range(6)]
    expected = [forward.token_log_probs(model, batch).detach() for batch in batches]
    got: dict[int, list[Tensor]] = {i: [] for i in range(len(batches))}

    def work(i: int) -> None:
        with torch.no_grad():
            for _ in range(10):
                got[i].append(forward.token_log_probs(model, batches[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, results in got.items():
        assert len(results) == 10
        for result in results:
            torch.testing.assert_close(result, expected[i])


def test_a_model_that_swallows_the_layout_is_found_out() -> None:
    model = llama()
    inner = model.model.layers[1].forward
    model.model.layers[1].forward = lambda *a, packing=None, **k: inner(*a, **k)
    with pytest.raises(PackingError, match="LlamaAttention was not handed the layout"):
        forward.token_log_probs(model, PackedBatch.build(some_sequences()), mode="packed")


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([], "empty list"),
        ([TokenSequence((), (1,))], "0 has an empty prompt"),
        ([TokenSequence((1,), ())], "0 has an empty answer"),
    ],
)
def test_bad_sequences(sequences: list[TokenSequence], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PackedBatch.build(sequences)


def test_unknown_mode() -> None:
    with pytest.raises(ValueError, match="unknown packing mode 'ragged'"):
        forward.token_log_probs(llama(), PackedBatch.build(some_sequences()), mode="ragged")


@pytest.mark.parametrize("mode", ["fused", "packed", "padded", "plain"])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("trained_head", [True, False])
def test_rows_of_answers_give_the_logits_that_predict_them(mode: str, share: bool, trained_head: bool) -> None:
    model, sequences = llama(), some_sequences()
    model.lm_head.weight.requires_grad_(trained_head)
    batch = PackedBatch.build(sequences, share=share)
    assert batch.direct is not share
    expected = torch.cat([model(torch.tensor([p + a])).logits[0, len(p) - 1 : -1] for p, a in sequences])
    rows = forward.answer_rows(model, batch, mode=mode)
    assert (rows.head is None) == (mode != "fused" or trained_head)
    torch.testing.assert_close(rows.logits(rows.values), expected, rtol=1e-4, atol=1e-5)
    part, larger = rows[2:5], rows.scaled(3.0)
    torch.testing.assert_close(part.logits(part.values), expected[2:5], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(larger.logits(larger.values), 3 * expected, rtol=1e-4, atol=3e-5)
    assert rows.scaled(1.0) is rows
    torch.testing.assert_close(forward.answer_logits(model, batch, mode=mode), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["softcap", "s_aux", "position_bias"])
def test_attention_that_is_more_than_queries_keys_and_values_is_found_out(name: str) -> None:
    layout = packing.row_layout([[1, 2]], share=False)[0]
    x = torch.ones(1, 1, 2, 4)
    with pytest.raises(PackingError, match="Identity uses an attention that packing does not know"):
        packed_attention(nn.Identity(), x, x, x, None, packing=layout, **{name: torch.ones(1)})
    assert packed_attention(nn.Identity(), x, x, x, None, packing=layout, **{name: None})[0].shape == (1, 2, 1, 4)


@pytest.mark.parametrize(
    ("options", "scale", "dropout"),
    [({}, None, 0.0), ({"scaling": 0.3, "dropout": 0.2}, 0.3, 0.2), ({"dropout": None}, None, 0.0)],
)
def test_a_layout_is_given_the_scale_and_the_dropout_of_the_model(
    options: dict, scale: float | None, dropout: float
) -> None:
    class Layout:
        def attend(self, *args: object, **told: object) -> Tensor:
            assert told == {"scale": scale, "dropout": dropout}
            assert [tuple(x.shape) for x in args[1:]] == [(5, 3, 4), (5, 1, 4), (5, 1, 6)]  # type: ignore[attr-defined]
            return torch.full((5, 3, 6), 7.0)

    query, key, value = torch.ones(1, 3, 5, 4), torch.ones(1, 1, 5, 4), torch.ones(1, 1, 5, 6)
    found, weights = packed_attention(nn.Identity(), query, key, value, None, packing=Layout(), **options)
    assert found.shape == (1, 5, 3, 6) and weights is None


def test_a_model_is_shortened_for_a_while() -> None:
    model = llama(num_hidden_layers=3)
    layers, ids = model.model.layers, torch.tensor([[4, 5, 6]])
    expected = model(ids, output_hidden_states=True).hidden_states[2]
    with pytest.raises(KeyError), collected(model, 1) as seen, shortened(model, 1):
        model(ids)
        assert list(model.model.layers) == list(layers)[:2]
        raise KeyError
    assert model.model.layers is layers and len(layers) == 3
    torch.testing.assert_close(seen[0], expected)
    model(ids)
    assert len(seen) == 1, "and collected from for a while"


def test_causal_attention_takes_a_scale_and_a_dropout() -> None:
    query, key, value = (torch.randn(1, n, 4, 6, generator=torch.Generator().manual_seed(n)) for n in (4, 2, 2))
    repeated = [x.repeat_interleave(2, 1) for x in (key, value)]
    scores = query @ repeated[0].transpose(2, 3) * 0.9
    weights = scores.masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    torch.testing.assert_close(packing.attend_causal(query, key, value, 0.9, 0.0), weights @ repeated[1])
    assert not packing.attend_causal(query, key, value, 0.9, 1.0).any()


def test_a_batch_says_how_long_its_sequences_are() -> None:
    sequences = [TokenSequence((4, 5, 6), (7, 2)), TokenSequence((4, 5), (8, 9, 10, 2)), TokenSequence((3,), (2,))]
    for share, tokens in ((False, 4 + 5 + 1), (True, 4 + 3 + 1)):
        batch = PackedBatch.build(sequences, share=share)
        assert (batch.lengths.tolist(), batch.answer_lengths.tolist()) == ([5, 6, 2], [2, 4, 1])
        assert (batch.longest, batch.num_tokens, batch.layout.max_length) == (6, tokens, 5)
        assert batch.labels.tolist() == [7, 2, 8, 9, 10, 2, 2] and batch.segment.tolist() == [0, 0, 1, 1, 1, 1, 2]
        assert batch.direct is not share
    whole = PackedBatch.build(sequences, last=[True, False, True])
    assert whole.num_tokens == 5 + 5 + 2 and not whole.direct and whole.state_rows.numel() == 7 + 2
