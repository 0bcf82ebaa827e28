"""Scores of a set of sequences equal scoring them one by one; metrics against their definitions and hand numbers."""

from __future__ import annotations

import copy
import itertools
import random
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support import tiny_llama
from transformers import LlamaConfig, LlamaForCausalLM

from evaluation.engine import likelihood
from evaluation.engine.backends import fused
from evaluation.engine.forward import Scorer
from evaluation.engine.llama import FusedLlama
from evaluation.engine.models import side_by_side
from evaluation.engine.packing import PackedBatch
from evaluation.engine.sequences import TokenSequence

VOCABULARY = 40


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=VOCABULARY,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def some_sequences(count: int = 30) -> list[TokenSequence]:
    rng = random.Random(0)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high)))

    prompts = [ids(1, 9) for _ in range(6)]
    made = [TokenSequence(rng.choice(prompts), ids(1, 12)) for _ in range(count)]
    return [*made, made[-1], made[0]]


def test_pooled_states_are_those_of_the_answer_tokens(model: LlamaForCausalLM) -> None:
    sequences = some_sequences(8)
    full, last, mean = (likelihood.score(model, sequences, hidden=kind).hidden for kind in ("all", "last", "mean"))
    assert full is not None and last is not None and mean is not None
    for i in range(len(sequences)):
        np.testing.assert_allclose(last[i], full[i][-1], atol=1e-5)
        np.testing.assert_allclose(mean[i], full[i][1:].mean(0), atol=1e-5)


def layer_outputs(model: LlamaForCausalLM, sequence: TokenSequence) -> tuple[torch.Tensor, ...]:
    """What leaves each decoder layer at the last prompt token and at every answer token, by transformers itself."""
    last: list[torch.Tensor] = []
    handle = model.model.norm.register_forward_pre_hook(lambda _, args: last.append(args[0]))
    try:
        with torch.no_grad():
            output = model(input_ids=torch.tensor([sequence.prompt + sequence.answer]), output_hidden_states=True)
    finally:
        handle.remove()
    # Transformers' own last entry comes after the norm.
    states = (*output.hidden_states[1:-1], last[0])
    return tuple(state[0, len(sequence.prompt) - 1 :] for state in states)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all forward passes through any model: every one looks its tokens up once."""
    sizes: list[int] = []
    lookup = torch.nn.Embedding.forward

    def watched(self: torch.nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        sizes.append(ids.numel())
        return lookup(self, ids)

    monkeypatch.setattr(torch.nn.Embedding, "forward", watched)
    return sizes


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
@pytest.mark.parametrize("layer", [0, 1, 2, -1, -2, -3])
def test_states_of_any_layer_come_from_the_pass_that_scores(layer: int, mode: str, passes: list[int]) -> None:
    model = tiny_llama.base(num_hidden_layers=3)
    watched = copy.deepcopy(model)
    sequences = tiny_llama.sequences(12)
    plain = likelihood.score(model, sequences, mode=mode)
    passes.clear()
    scores = likelihood.score(model, sequences, mode=mode, hidden="all", layer=layer)
    pooled = {
        kind: likelihood.score(model, sequences, mode=mode, hidden=kind, layer=layer) for kind in ("last", "mean")
    }
    assert len(passes) == 3, "one pass for each call"
    for i, sequence in enumerate(sequences):
        expected = layer_outputs(watched, sequence)[layer].numpy()
        np.testing.assert_allclose(scores.hidden[i], expected, atol=1e-5)
        np.testing.assert_allclose(pooled["last"].hidden[i], expected[-1], atol=1e-5)
        np.testing.assert_allclose(pooled["mean"].hidden[i], expected[1:].mean(0), atol=1e-5)
        np.testing.assert_allclose(scores.log_probs[i], plain.log_probs[i], atol=1e-5)


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
@pytest.mark.parametrize("layer", [None, 0])
def test_states_of_some_sequences_only(
    model: LlamaForCausalLM, layer: int | None, mode: str, passes: list[int]
) -> None:
    sequences = some_sequences()
    wanted = set(sequences[3:9])
    whole = likelihood.score(model, sequences, mode=mode, hidden="mean", layer=layer)
    plain = likelihood.score(model, sequences, mode=mode)
    passes.clear()
    some = likelihood.score(model, sequences, mode=mode, hidden="mean", layer=layer, only=wanted)
    assert len(passes) == 1
    for i, sequence in enumerate(sequences):
        np.testing.assert_allclose(some.log_probs[i], plain.log_probs[i], atol=1e-5)
        np.testing.assert_array_equal(some.correct[i], plain.correct[i])
        if sequence in wanted:
            np.testing.assert_allclose(some.hidden[i], whole.hidden[i], atol=1e-5)
        else:
            assert some.hidden[i].size == 0


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
@pytest.mark.parametrize("layer", [2, -3])
def test_a_layer_that_is_not_there(model: LlamaForCausalLM, layer: int, mode: str) -> None:
    with pytest.raises(ValueError, match=rf"decoder layers 0 to 1, also -2 to -1, not {layer}"):
        likelihood.score(model, some_sequences(3), hidden="last", layer=layer, mode=mode)


def test_each_distinct_sequence_is_computed_once_within_the_budget(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences, sizes = some_sequences(), []
    states = FusedLlama.states

    def watched(self: FusedLlama, input_ids: torch.Tensor, *rest: object) -> torch.Tensor:
        sizes.append(input_ids.numel())
        return states(self, input_ids, *rest)

    monkeypatch.setattr(FusedLlama, "states", watched)
    likelihood.score(model, sequences * 3, token_budget=10_000)
    assert len(sizes) == 1
    # Everything but the last token of every distinct sequence, each distinct prefix once.
    assert sizes[0] == len({(s.prompt + s.answer)[:n] for s in sequences for n in range(1, len(s.prompt + s.answer))})
    sizes.clear()
    likelihood.score(model, sequences, token_budget=40)
    assert len(sizes) > 1 and max(sizes) <= 40


@pytest.mark.parametrize(("words", "tokens"), [(40, 4096), (8192, 4096), (16_384, 2048), (50_000, 671), (300_000, 256)])
def test_the_usual_budget_makes_logits_of_128_mebibytes(words: int, tokens: int) -> None:
    """From 256 to 4096 tokens of float32 on a processor."""
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=words))
    assert likelihood.default_token_budget(model) == tokens
    assert tokens in (256, 4096) or 4 * words * tokens <= 2**27 < 4 * words * (tokens + 1)


def test_batches_cover_everything_once_and_keep_a_prompt_together() -> None:
    sequences = some_sequences(60)
    parts = list(likelihood.batches(sequences, 50))
    assert sorted(i for part in parts for i in part) == list(range(len(sequences)))
    for part in parts:
        tokens = sum(len(p) for p in {sequences[i].prompt for i in part}) + sum(len(sequences[i].answer) for i in part)
        assert tokens <= 50
    order = [sequences[i].prompt for part in parts for i in part]
    assert sum(a != b for a, b in itertools.pairwise(order)) == len(set(order)) - 1


def test_a_batch_may_hold_just_as_many_tokens_as_the_budget() -> None:
    pair = [TokenSequence((1, 2), (3, 4)), TokenSequence((5,), (6, 7))]
    assert [len(list(likelihood.batches(pair, budget))) for budget in (7, 6)] == [1, 2]
    assert [len(list(likelihood.ordered_batches(pair, budget))) for budget in (7, 6)] == [1, 2]


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("hidden", [None, "mean"])
@pytest.mark.usefixtures("four_threads")
def test_batches_scored_side_by_side_give_the_same(
    model: LlamaForCausalLM, hidden: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences, threads = some_sequences(200), set()
    call = Scorer.__call__

    def watched(self: Scorer, batch: PackedBatch, *, states: bool = False, moments: bool = False) -> object:
        threads.add(threading.get_ident())
        assert torch.get_num_threads() == (4 if self.workers == 1 else 1)
        return call(self, batch, states=states, moments=moments)

    monkeypatch.setattr(Scorer, "__call__", watched)
    together = likelihood.score(model, sequences, token_budget=50, hidden=hidden)
    assert len(threads) > 1 and torch.get_num_threads() == 4
    threads.clear()
    monkeypatch.setattr(fused, "WORKERS_BYTES", 0)
    alone = likelihood.score(model, sequences, token_budget=50, hidden=hidden)
    assert threads == {threading.get_ident()}
    for i in range(len(sequences)):
        np.testing.assert_allclose(together.log_probs[i], alone.log_probs[i], atol=1e-5)
        np.testing.assert_array_equal(together.correct[i], alone.correct[i])
        if hidden is not None:
            np.testing.assert_allclose(together.hidden[i], alone.hidden[i], atol=1e-5)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.usefixtures("four_threads")
def test_an_error_side_by_side_is_raised_and_ends_the_work(workers: int) -> None:
    seen: list[int] = []

    def work(item: int) -> None:
        if item == 3:
            raise ValueError("three")
        time.sleep(0.001)
        seen.append(item)

    with pytest.raises(ValueError, match="three"):
        side_by_side(work, range(1000), workers)
    assert set(seen) >= {0, 1, 2} and len(seen) < 500
    assert torch.get_num_threads() == 4
    seen.clear()
    side_by_side(work, range(10, 50), workers)
    assert sorted(seen) == list(range(10, 50))


def test_small_probabilities_do_not_vanish_in_large_sums(model: LlamaForCausalLM) -> None:
    """A token of 4096 nats and 4095 of 1e-4 each, of which float32 would keep less."""
    found = likelihood.ScoreTable([TokenSequence((1,), (2,) * 4096)], None, None, ())
    found.log_probs[0] = np.array([-4096.0] + [-1e-4] * 4095, np.float32)
    scores = found.scores()
    assert scores.sum_nll.dtype == scores.mean_nll.dtype == np.float64
    assert scores.sum_nll[0] == pytest.approx(4096.4095, abs=1e-6)
    assert scores.mean_nll[0] == pytest.approx(4096.4095 / 4096, abs=1e-9) and scores.moments is None


def test_take_picks_by_index(model: LlamaForCausalLM) -> None:
    scores = likelihood.score(model, some_sequences(), hidden="last")
    taken = scores.take([4, 1])
    assert taken.mean_nll.tolist() == scores.mean_nll[[4, 1]].tolist()
    assert taken.correct[1] is scores.correct[1]
    assert taken.hidden is not None and scores.hidden is not None and taken.hidden[0] is scores.hidden[4]


def test_flags_are_restored_and_no_gradient_is_kept(model: LlamaForCausalLM) -> None:
    model.train()
    model.model.norm.eval()
    likelihood.score(model, some_sequences(3))
    assert model.training and model.lm_head.training and not model.model.norm.training
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequences": []}, "no sequences"),
        ({"sequences": [TokenSequence((1,), ())]}, "empty answer"),
        ({"hidden": "first"}, "unknown hidden 'first'"),
        ({"mode": "fast"}, "unknown packing mode 'fast'"),
        ({"token_budget": 0}, "at least 1, got 0"),
    ],
)
def test_bad_arguments(model: LlamaForCausalLM, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        likelihood.score(model, **{"sequences": some_sequences(2), **arguments})


def test_a_prompt_that_the_sequence_before_begins_with_costs_nothing() -> None:
    """Its answer included: of 3 + 1 tokens both fit into four; into three only one does, and then the prompt counts."""
    sequences = [TokenSequence((1,), (2, 3)), TokenSequence((1, 2, 3), (4,)), TokenSequence((1, 9), (4,))]
    assert list(likelihood.ordered_batches(sequences, 4)) == [[0, 1], [2]]
    assert list(likelihood.ordered_batches(sequences, 7)) == [[0, 1, 2]]
    assert list(likelihood.ordered_batches(sequences, 3)) == [[0], [1], [2]]


def test_as_many_batches_run_at_once_as_a_quarter_of_a_gibibyte_holds_logits_of(model: LlamaForCausalLM) -> None:
    """In float32, of 512 rows each."""
    words = model.config.vocab_size
    assert fused.fused_workers(model) == 2**28 // (4 * 512 * words)
    model.config.vocab_size, before = 2**20, words
    try:
        assert fused.fused_workers(model) == 1
    finally:
        model.config.vocab_size = before


def test_the_longest_of_one_prompt_and_the_prompt_of_the_longest_come_first() -> None:
    answers = {(1, 2): (1, 5), (3,): (9,), (4, 4): (2, 6, 4)}
    sequences = [TokenSequence(prompt, (7,) * n) for prompt, sizes in answers.items() for n in sizes]
    assert list(likelihood.batches(sequences, 1000)) == [[2, 4, 5, 3, 1, 0]]
    assert list(likelihood.batches(sequences, 13)) == [[2], [4, 5], [3, 1, 0]]


@pytest.mark.parametrize(("words", "tokens"), [(1, 32768), (2**13, 2**14), (2**20, 256)])
def test_elsewhere_than_on_the_cpu_batches_are_four_times_as_large_and_may_be_larger(words: int, tokens: int) -> None:
    model = tiny_llama.base().to("meta")
    model.config.vocab_size = words
    assert likelihood.default_token_budget(model) == tokens
