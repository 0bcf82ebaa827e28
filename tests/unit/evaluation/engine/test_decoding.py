"""Batched greedy decoding gives token for token what Hugging Face generates prompt by prompt."""

from __future__ import annotations

import functools
import random

import pytest
import torch
from torch import nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from evaluation.engine import decoding, shared_decoder
from evaluation.engine.architectures import way
from evaluation.engine.backends.transformers_generate import batches, plain_settings
from evaluation.engine.decoder_loop import Table
from evaluation.engine.decoders import PREFILL_TOKENS, Continuations, attend_few, prefill_parts
from evaluation.engine.progress import watched

VOCABULARY = 40
STOPS = (5, 7)
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "eos_token_id": 2,
}


def make(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "llama":
        model: nn.Module = LlamaForCausalLM(LlamaConfig(**SIZES))
    elif kind == "mistral":
        model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8))
    else:
        model = Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model.eval()


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    return make("llama")  # type: ignore[return-value]


def some_prompts(count: int = 14) -> list[tuple[int, ...]]:
    rng = random.Random(0)
    made = [tuple(rng.randrange(8, VOCABULARY) for _ in range(rng.randint(1, 12))) for _ in range(count)]
    return [*made, made[0]]


@functools.cache
def generated(model: nn.Module, prompt: tuple[int, ...], limit: int) -> list[int]:
    """What transformers generates, with the stop token where there is one."""
    ids = torch.tensor([prompt])
    return model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=limit,
        do_sample=False,
        eos_token_id=list(STOPS),
        pad_token_id=0,
    )[0, len(prompt) :].tolist()


def reference(model: nn.Module, prompts: list[tuple[int, ...]], limit: int) -> list[list[int]]:
    rows = [generated(model, prompt, limit) for prompt in prompts]
    return [row[:-1] if row[-1] in STOPS else list(row) for row in rows]


@pytest.mark.parametrize("limit", [1, 24])
@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
@pytest.mark.parametrize("rows", [None, 5, 1])
def test_equals_generate_prompt_by_prompt(llama: LlamaForCausalLM, rows: int | None, mode: str, limit: int) -> None:
    prompts = some_prompts()
    expected = reference(llama, prompts, limit)
    lengths = {len(tokens) for tokens in expected}
    assert limit == 1 or (len(lengths) > 4 and limit in lengths), "the test wants early and late ends"
    actual = decoding.greedy(llama, prompts, max_new_tokens=limit, stop_ids=STOPS, max_batch=rows, mode=mode)
    assert actual == expected


@pytest.mark.parametrize("kind", ["gemma2", "mistral"])
def test_other_models_fall_back_and_agree(kind: str) -> None:
    model, prompts = make(kind), some_prompts(6)
    assert way(model).name == {"gemma2": "padded", "mistral": "packed"}[kind]
    actual = decoding.greedy(model, prompts, max_new_tokens=12, stop_ids=STOPS, max_batch=3)
    assert actual == reference(model, prompts, 12)


def test_the_usual_budget_is_a_gibibyte_of_keys_and_values_and_eight_on_a_gpu(llama: LlamaForCausalLM) -> None:
    """Two layers of two heads of eight numbers, keys and values, in float32."""
    assert decoding.cached_token_bytes(llama) == 2 * 2 * 2 * 8 * 4
    for on_gpu, expected in ((None, 2**30), (False, 2**30), (True, 2**33)):
        assert decoding.default_token_budget(llama, on_gpu=on_gpu) == expected // 256


def test_cached_numbers_have_the_width_that_the_model_multiplies_by() -> None:
    """A fused Llama widens its weights; other models keep keys and values as they compute them."""
    llama, mistral = make("llama").requires_grad_(False), make("mistral")
    assert decoding.cached_token_bytes(mistral) == 2 * 2 * 2 * 8 * 4
    for model, size in ((llama, 4), (mistral, 2)):
        assert decoding.cached_token_bytes(model.to(torch.bfloat16)) == 2 * 2 * 2 * 8 * size
    first = next(mistral.parameters())
    first.requires_grad_(False).data = first.to(torch.int8)
    assert decoding.cached_token_bytes(mistral) == 2 * 2 * 2 * 8 * 4, "integers stand for wider numbers"


def test_heads_that_share_keys_and_values_are_as_wide_as_those_that_ask() -> None:
    """Two layers of two heads of sixteen numbers, keys and values, in float32; the configuration names no width."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 32}
    config = Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2)
    assert getattr(config, "head_dim", None) is None
    assert decoding.cached_token_bytes(Qwen2ForCausalLM(config)) == 2 * 2 * 2 * 16 * 4


@pytest.mark.parametrize(
    ("mode", "copies", "budget", "most", "rows", "kept"),
    [
        ("fused", 5, 130, None, 10, 40),  # 9 + 2·8/5 tokens for each of 10 rows
        ("padded", 5, 130, None, 9, 49),  # 14 tokens
        ("fused", 3, 42, None, 3, 15),  # 14 tokens: three copies are too few to share
        ("packed", 6, 130, 4, 4, 94),
        ("fused", 1, 1000, None, 2, 982),
    ],
)
def test_a_way_of_running_is_given_what_there_is_to_do(
    llama: LlamaForCausalLM,
    mode: str,
    copies: int,
    budget: int,
    most: int | None,
    rows: int,
    kept: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts of 5 and 8 tokens, of which at most 9 and 2 follow."""
    given: list[Continuations] = []
    asked: list[tuple[str, int]] = []

    class Way:
        def decode(self, work: Continuations) -> list[list[int]]:
            given.append(work)
            return []

    def resolved(_: nn.Module, mode: str, longest: int) -> str:
        asked.append((mode, longest))
        return mode

    monkeypatch.setattr(decoding, "backend", lambda _, way, passes: (asked.append((way, passes)), Way())[1])
    monkeypatch.setattr(decoding, "resolve_mode", resolved)
    options = {"max_new_tokens": [9, 2], "stop_ids": STOPS, "copies": copies, "pad_id": 3, "mode": mode}
    prompts, choose = [(9,) * 5, (10,) * 8], lambda logits, _: logits.argmax(-1)
    decoding.decode(llama, prompts, choose, token_budget=budget, max_batch=most, **options)
    assert asked == [(mode, 14), (mode, "many")]
    assert given == [Continuations(prompts, [9, 2], copies, frozenset(STOPS), choose, 3, rows, kept)]


def test_greedy_continuations_are_decoded_as_they_were_asked_for(
    llama: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[tuple, dict]] = []

    def decoded(*args: object, **options: object) -> list[list[int]]:
        given.append((args[:2], options))
        return [[30], [31, 32]]

    monkeypatch.setattr(decoding, "decode", decoded)
    starts = {(1, 2): [20, 21], (3,): [22, STOPS[0]], (4,): [23] * 9}
    options = {"pad_id": 6, "token_budget": 70, "max_batch": 3, "mode": "plain"}
    prompts = [(1, 2), (3,), (4,), (8, 8), (1, 2)]
    produced = decoding.greedy(llama, prompts, max_new_tokens=5, stop_ids=STOPS, starts=starts, **options)
    assert produced == [[20, 21, 30], [22], [23] * 5, [31, 32], [20, 21, 30]]
    args = (llama, [(1, 2, 20, 21), (8, 8)])
    assert given == [(args, {"max_new_tokens": [3, 5], "stop_ids": STOPS, **options})]


@pytest.mark.parametrize(
    ("budget", "prompt", "new", "columns", "copies", "count", "most", "expected"),
    [
        (100, 10, 5, 15, 1, 50, None, (6, 15)),
        (100, 10, 5, 15, 1, 4, None, (4, 15)),
        (100, 10, 5, 15, 1, 50, 3, (3, 15)),
        (3, 10, 5, 15, 1, 50, None, (1, 15)),
        (100, 10, 5, 15, 4, 50, None, (10, 10)),
        (100, 11, 5, 16, 4, 50, None, (9, 11)),
        (10**9, 10, 5, 15, 1, 10**6, None, (decoding.MAX_ROWS, 15)),
    ],
)
def test_as_many_rows_run_together_as_the_budget_holds(
    budget: int, prompt: int, new: int, columns: int, copies: int, count: int, most: int | None, expected: tuple
) -> None:
    """A prompt of several copies lies in memory twice, whatever their number."""
    assert decoding.table_size(budget, prompt, new, columns, copies, count, most) == expected


def test_token_budget_bounds_the_rows(llama: LlamaForCausalLM) -> None:
    prompts, widths = some_prompts(), []
    handle = llama.lm_head.register_forward_hook(lambda _m, args, _o: widths.append(args[0].shape[-2]))
    # Longest prompt 12 + 4 new tokens = 16 columns: 3 rows of the budget.
    decoding.greedy(llama, prompts, max_new_tokens=4, stop_ids=(), token_budget=50)
    handle.remove()
    assert max(widths) == 3


def test_equal_prompts_are_continued_once_by_greedy_and_each_by_decode(llama: LlamaForCausalLM) -> None:
    prompt, rows = (9, 10, 11), []

    def choose(logits: torch.Tensor, prompts: list[int]) -> torch.Tensor:
        rows.append(list(prompts))
        return torch.tensor([20 + i for i in prompts])

    produced = decoding.decode(llama, [prompt] * 3, choose, max_new_tokens=2, stop_ids=(21,))
    assert produced == [[20, 20], [], [22, 22]]
    assert [sorted(step) for step in rows] == [[0, 1, 2], [0, 2]]
    first, second = decoding.greedy(llama, [prompt] * 2, max_new_tokens=3, stop_ids=())
    assert first == second and first is not second


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
def test_each_prompt_may_have_its_own_limit(llama: LlamaForCausalLM, mode: str) -> None:
    prompts = some_prompts()
    limits = [1 + 5 * i % 17 for i in range(len(prompts))]
    expected = [reference(llama, [p], limit)[0] for p, limit in zip(prompts, limits, strict=True)]
    produced = decoding.decode(
        llama,
        prompts,
        lambda logits, _: logits.argmax(-1),
        max_new_tokens=limits,
        stop_ids=STOPS,
        max_batch=4,
        mode=mode,
    )
    assert produced == expected


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
@pytest.mark.parametrize("limit", [1, 6, 24])
def test_known_starts_change_nothing_but_the_work(llama: LlamaForCausalLM, mode: str, limit: int) -> None:
    prompts = some_prompts()
    expected = reference(llama, prompts, limit)
    full = reference(llama, prompts, 24)
    # All of a continuation, none of it, and everything between; also longer than the limit.
    starts = {
        prompt: tokens[: i % (len(tokens) + 1)] for i, (prompt, tokens) in enumerate(zip(prompts, full, strict=True))
    }
    starts[prompts[0]] = full[0]
    ended = next(i for i, tokens in enumerate(full) if len(tokens) < 24)
    ids = torch.tensor([prompts[ended] + tuple(full[ended])])
    stop = int(llama(ids).logits[0, -1].argmax())
    assert stop in STOPS
    starts[prompts[ended]] = [*full[ended], stop]
    assert any(len(tokens) > limit for tokens in starts.values()) or limit == 24
    produced = decoding.greedy(llama, prompts, max_new_tokens=limit, stop_ids=STOPS, starts=starts, mode=mode)
    assert produced == expected


@pytest.mark.parametrize("mode", ["fused", "packed"])
@pytest.mark.parametrize("rows", [None, 5, 1])
@pytest.mark.parametrize("copies", [1, 6])
@pytest.mark.slow
def test_what_the_memory_held_before_does_not_matter(
    llama: LlamaForCausalLM, rows: int | None, mode: str, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty(x: torch.Tensor, *shape: int) -> torch.Tensor:
        return x.new_full(shape, float("nan"))

    def choose(logits: torch.Tensor, units: list[int]) -> torch.Tensor:
        assert logits.isfinite().all()
        return (logits.argmax(-1) + torch.tensor(units) % copies) % VOCABULARY

    prompts = some_prompts()
    expected = reference(llama, prompts, 24)
    monkeypatch.setattr(torch.Tensor, "new_empty", empty)
    assert torch.zeros(1).new_empty(2, 3).isnan().all()
    produced = decoding.decode(
        llama, prompts, choose, copies=copies, max_new_tokens=24, stop_ids=STOPS, max_batch=rows, mode=mode
    )
    assert produced[::copies] == expected


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
@pytest.mark.parametrize("rows", [None, 30, 7, 1])
def test_copies_share_their_prompt_and_go_their_own_ways(llama: LlamaForCausalLM, mode: str, rows: int | None) -> None:
    prompts, copies, first_tokens = some_prompts(6), 9, {}

    def choose(logits: torch.Tensor, units: list[int]) -> torch.Tensor:
        """Copy j starts with token 10 + j, then goes on greedily."""
        tokens = logits.argmax(-1)
        for row, unit in enumerate(units):
            if first_tokens.setdefault(unit, row) is not None:
                tokens[row], first_tokens[unit] = 10 + unit % copies, None
        return tokens

    limits = [4 + 3 * i for i in range(len(prompts))]
    produced = decoding.decode(
        llama, prompts, choose, copies=copies, max_new_tokens=limits, stop_ids=STOPS, max_batch=rows, mode=mode
    )
    assert len({len(tokens) for tokens in produced}) > 4
    for i, prompt in enumerate(prompts):
        for j in range(copies):
            rest = reference(llama, [(*prompt, 10 + j)], limits[i] - 1)[0]
            assert produced[i * copies + j] == [10 + j, *rest], (i, j)


def test_a_prompt_with_copies_runs_once_and_leaves_nothing_behind(
    llama: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, prefilled, decoders = some_prompts(5)[:5], [], []
    layout = shared_decoder.row_layout
    init = shared_decoder.SharedDecoder.__init__
    monkeypatch.setattr(shared_decoder, "row_layout", lambda x, **k: (prefilled.extend(x), layout(x, **k))[1])
    decoder_class = shared_decoder.SharedDecoder
    monkeypatch.setattr(decoder_class, "__init__", lambda self, *a: (decoders.append(self), init(self, *a))[1])
    decoding.decode(
        llama,
        prompts,
        lambda logits, units: (logits.argmax(-1) + torch.tensor(units)) % VOCABULARY,
        copies=12,
        max_new_tokens=5,
        stop_ids=STOPS,
        max_batch=8,
    )
    assert sorted(prefilled) == sorted(prompts)
    (decoder,) = decoders
    assert not decoder.prefixes and not decoder.first_logits and decoder.size == 0


@pytest.mark.parametrize(("copies", "budget", "length"), [(16, 600, 20), (64, 900, 40), (64, 100, 40)])
def test_shared_prompts_keep_to_the_token_budget(
    llama: LlamaForCausalLM, copies: int, budget: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, limit, peak = random.Random(1), 8, []
    prompts = [tuple(rng.randrange(8, VOCABULARY) for _ in range(length)) for _ in range(12)]
    step = shared_decoder.SharedDecoder.step

    def watched(self: shared_decoder.SharedDecoder, tokens: torch.Tensor) -> torch.Tensor:
        stacked = sum(len(self.prompts[i]) for i in self.prefixes)
        peak.append(self.rows * limit + 2 * stacked)
        assert len(self.prefixes) == 1 or peak[-1] <= budget
        return step(self, tokens)

    def choose(logits: torch.Tensor, units: list[int]) -> torch.Tensor:
        """One continuation of each prompt runs to its limit, the others end at once."""
        return torch.tensor([9 if unit % copies == 0 else STOPS[0] for unit in units])

    monkeypatch.setattr(shared_decoder.SharedDecoder, "step", watched)
    produced = decoding.decode(
        llama, prompts, choose, copies=copies, max_new_tokens=limit, stop_ids=STOPS, token_budget=budget
    )
    assert [len(tokens) for tokens in produced] == ([limit] + [0] * (copies - 1)) * 12
    assert peak


def test_no_prompts_no_continuations(llama: LlamaForCausalLM) -> None:
    assert decoding.greedy(llama, [], max_new_tokens=3, stop_ids=STOPS) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": [(1,), ()]}, "empty prompt"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"max_batch": 0}, "must be at least 1"),
        ({"token_budget": 0}, "must be at least 1"),
        ({"mode": "fast"}, "unknown packing mode"),
    ],
)
def test_bad_arguments(llama: LlamaForCausalLM, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoding.greedy(llama, **{"prompts": [(1, 2)], "max_new_tokens": 2, "stop_ids": STOPS, **arguments})


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_continuations_run_in_batches_of_the_rows_that_there_are(rows: int, together: bool) -> None:
    """Those of long prompts first, each once; unless told otherwise those of one length alone."""
    prompts = [(1,) * n for n in (2, 5, 5, 1, 2)]
    work = Continuations(prompts, [3] * 5, 2, frozenset(), lambda x, _: x, 0, rows, 100)
    parts = list(batches(work, together))
    lengths = [[len(prompts[unit // 2]) for unit in part] for part in parts]
    assert sorted(unit for part in parts for unit in part) == list(range(10))
    assert [n for part in lengths for n in part] == sorted([2, 5, 5, 1, 2] * 2, reverse=True)
    assert max(map(len, parts)) <= rows and (together or all(len(set(part)) == 1 for part in lengths))
    expected = -(-10 // rows) if together else sum(-(-n // rows) for n in (4, 4, 2))
    assert len(parts) == expected


def test_prompts_begin_together_up_to_a_number_of_tokens() -> None:
    half = PREFILL_TOKENS // 2
    prompts = [[9] * n for n in (half, half, 1, 2 * half, half - 1, half, 1, 3 * half, 5)]
    assert prefill_parts(range(9), prompts) == [[0, 1], [2], [3], [4, 5, 6], [7], [8]]
    assert prefill_parts([8, 3, 8], prompts) == [[8], [3], [8]] and prefill_parts([], prompts) == []


def test_long_prompts_begin_first_and_further_ones_once_a_quarter_of_the_rows_is_free() -> None:
    added: list[list[int]] = []
    forgotten: list[int] = []

    class Rows:
        open = True

        def admits(self, number: int) -> bool:
            return True

        def add(self, numbers: list[int]) -> torch.Tensor:
            added.append(numbers)
            return torch.zeros(len(numbers), 3)

        def keep(self, rows: list[int]) -> list[int]:
            return rows

        def forget(self, number: int) -> None:
            forgotten.append(number)

    prompts, stop = [(9,) * n for n in (2, 7, 4)], 5
    work = Continuations(prompts, [50, 2, 50], 5, frozenset({stop}), lambda x, _: x, 0, 8, 100)
    table = Table(Rows(), work)  # type: ignore[arg-type]
    logits = table.admit()
    assert logits is not None and logits.shape == (8, 3)
    # Of the longest prompt all five, of the next three.
    assert added == [[1] * 5 + [2] * 3] and forgotten == [1]
    assert table.running == [9, 8, 7, 6, 5, 14, 13, 12] and table.admit() is None
    assert table.take(torch.tensor([stop, *[6] * 7])).tolist() == [6] * 7
    assert table.admit() is None, "one row of eight is free"
    # The first one's second token is its last; a stop is none.
    assert table.take(torch.tensor([7, 8, 8, stop, 8, 8, 8])).tolist() == [8, 8, 8]
    assert table.running == [14, 13, 12] and [table.produced[i] for i in (9, 8, 7, 5, 14)] == [
        [],
        [6, 7],
        [6, 8],
        [6],
        [6, 8],
    ]
    assert table.admit() is not None
    assert added[1:] == [[2, 2, 0, 0, 0]] and forgotten == [1, 2]


@pytest.mark.parametrize("mode", ["fused", "packed", "padded", "plain"])
@pytest.mark.parametrize("copies", [1, 5])
def test_who_watches_is_told_how_many_answers_are_done(llama: LlamaForCausalLM, mode: str, copies: int) -> None:
    seen: list[tuple[str, str, int, int]] = []
    options = {"copies": copies, "stop_ids": STOPS, "max_batch": 3, "mode": mode}
    with watched(lambda *progress: seen.append(progress)):
        decoding.decode(llama, some_prompts(4), lambda logits, _: logits.argmax(-1), max_new_tokens=6, **options)
    done = [count for *_, count, _ in seen]
    assert {(part, what, total) for part, what, _, total in seen} == {("", "answers", 5 * copies)}
    assert done[0] == 0 and done[-1] == 5 * copies and done == sorted(set(done)) and len(done) > 2


@pytest.mark.parametrize("scale", [None, 0.3])
def test_few_queries_attend_as_many_do(scale: float | None) -> None:
    draws = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, 2, n, d, generator=draws) for n, d in ((2, 4), (5, 4), (5, 6)))
    mask = torch.zeros(3, 1, 1, 5).masked_fill_(torch.arange(5) > torch.tensor([4, 2, 0])[:, None, None, None], -1e30)
    expected = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    told = {"attn_mask": mask, "scale": scale}
    torch.testing.assert_close(attend_few(query, key, value, dropout_p=0.0, **told), expected)
    assert not attend_few(query, key, value, dropout_p=1.0, **told).any(), "all weights are dropped"


@pytest.mark.parametrize("mode", ["padded", "plain"])
def test_a_models_own_settings_of_generation_are_left_out_and_left_alone(llama: LlamaForCausalLM, mode: str) -> None:
    own, prompts = llama.generation_config, some_prompts(3)
    expected = decoding.greedy(llama, prompts, max_new_tokens=5, stop_ids=STOPS, mode=mode)
    try:
        llama.generation_config = GenerationConfig(repetition_penalty=9.0, suppress_tokens=[9, 10], max_length=2)
        theirs = llama.generation_config
        assert decoding.greedy(llama, prompts, max_new_tokens=5, stop_ids=STOPS, mode=mode) == expected
        assert llama.generation_config is theirs
        with pytest.raises(KeyError), plain_settings(llama, use_cache=False):
            assert llama.generation_config == GenerationConfig(do_sample=False, use_cache=False, pad_token_id=0)
            raise KeyError
        assert llama.generation_config is theirs
    finally:
        llama.generation_config = own


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
@pytest.mark.parametrize("copies", [1, 6])
def test_scores_are_scaled_as_the_model_scales_them(mode: str, copies: int) -> None:
    model, prompts = make("llama"), some_prompts(5)
    usual = reference(make("llama"), prompts, 8)
    for layer in model.model.layers:  # type: ignore[union-attr]
        layer.self_attn.scaling = 3.0
    expected = reference(model, prompts, 8)
    assert expected != usual
    options = {"copies": copies, "max_new_tokens": 8, "stop_ids": STOPS, "mode": mode}
    produced = decoding.decode(model, prompts, lambda logits, _: logits.argmax(-1), **options)
    assert produced == [tokens for tokens in expected for _ in range(copies)]
