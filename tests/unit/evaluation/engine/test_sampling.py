"""Samples come from the very distribution that transformers samples from, and do not depend on the batch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from evaluation.engine import sampling
from evaluation.engine.sampling import Rule, draw, sample, uniforms

VOCABULARY = 12


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=24,
        vocab_size=VOCABULARY,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    return model


def expected_distribution(logits: torch.Tensor, rule: Rule) -> torch.Tensor:
    """What transformers samples from, (B, V)."""
    scores = TemperatureLogitsWarper(rule.temperature)(None, logits)  # type: ignore[arg-type]
    if rule.top_k is not None:
        scores = TopKLogitsWarper(rule.top_k)(None, scores)  # type: ignore[arg-type]
    if rule.top_p < 1:
        scores = TopPLogitsWarper(rule.top_p)(None, scores)  # type: ignore[arg-type]
    return scores.double().softmax(-1)


RULES = [
    Rule(),
    Rule(top_p=0.9),
    Rule(top_p=0.1),
    Rule(temperature=0.5, top_p=0.8),
    Rule(temperature=2.5),
    Rule(top_k=3),
    Rule(top_k=1),
    Rule(top_k=200, top_p=0.7, temperature=1.3),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(("size", "spread"), [(7, 2.0), (300, 0.3), (700, 0.01)])
def test_every_probability_is_that_of_transformers(rule: Rule, size: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(size)
    logits = spread * torch.randn(3, size, generator=generator)
    expected = expected_distribution(logits, rule)
    # A fine grid of chances measures the probability of every token; 24,000 rows of 700 are drawn in two parts.
    count = 24_000
    chance = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    for row in range(3):
        tokens = draw(logits[row].expand(count, size), chance, rule)
        measured = torch.bincount(tokens, minlength=size).double() / count
        torch.testing.assert_close(measured, expected[row], rtol=0, atol=2.0 / count + 1e-6)


def test_extreme_chances_and_ties_stay_inside() -> None:
    logits = torch.zeros(4, 100)
    chance = torch.tensor([0.0, 0.5, 1 - 2**-53, 0.999999], dtype=torch.float64)
    for rule in (*RULES, Rule(temperature=1e-3, top_p=0.9), Rule(temperature=1e4, top_p=0.9)):
        tokens = draw(logits, chance, rule)
        assert ((tokens >= 0) & (tokens < 100)).all()
    peaked = torch.full((4, 100), -1e4)
    peaked[:, 17] = 1e4
    for rule in RULES:
        assert draw(peaked, chance, rule).tolist() == [17] * 4
    assert draw(peaked, chance, Rule(temperature=0)).tolist() == [17] * 4


@pytest.mark.parametrize("rule", [Rule(top_p=0.8), Rule(top_k=20, top_p=0.8), Rule(top_k=20)], ids=str)
def test_the_largest_chance_draws_a_token_of_the_rule(rule: Rule) -> None:
    """Rounded sums of probabilities must not lead beyond the last one."""
    logits = 3 * torch.randn(2000, 50, generator=torch.Generator().manual_seed(0))
    tokens = draw(logits, torch.full((2000,), 1 - 2**-53, dtype=torch.float64), rule)
    assert (expected_distribution(logits, rule).gather(1, tokens[:, None]) > 0).all()


@pytest.mark.parametrize("rule", [*RULES, Rule(temperature=0)], ids=str)
def test_logits_that_are_not_finite_are_refused(rule: Rule) -> None:
    for bad in (float("nan"), float("inf")):
        logits = torch.randn(3, 100)
        logits[1, 5] = bad
        with pytest.raises(ValueError, match="logits are not finite"):
            draw(logits, torch.rand(3, dtype=torch.float64), rule)
    excluded = torch.randn(3, 100)
    excluded[:, ::2] = float("-inf")
    assert (draw(excluded, torch.rand(3, dtype=torch.float64), rule) % 2 == 1).all()


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("spread", [0.0, 1.0, 6.0])
def test_row_by_row_and_all_at_once_draw_the_same(top_p: float, spread: float) -> None:
    probability = (spread * torch.randn(60, 3000)).softmax(-1)
    chance = torch.cat([torch.rand(58, dtype=torch.float64), torch.tensor([0.0, 1 - 1e-16], dtype=torch.float64)])
    rows = sampling.draw_nucleus(probability, chance, top_p)
    assert torch.equal(rows, sampling.draw_all_at_once(probability, chance, top_p))


@pytest.mark.parametrize("rule", [Rule(), Rule(top_k=4), Rule(top_p=0.99), Rule(top_k=8, top_p=0.99)])
def test_a_chance_on_the_border_of_two_tokens_is_that_of_the_second(rule: Rule) -> None:
    """Four tokens of a quarter each, to the last bit: the ith has the chances from i/4 on, below (i + 1)/4."""
    chances = torch.tensor([0.0, 0.25, 0.5, 0.75], dtype=torch.float64)
    assert sorted(draw(torch.zeros(4, 4), chances, rule).tolist()) == [0, 1, 2, 3]
    below = torch.nextafter(chances[1:], torch.zeros(3, dtype=torch.float64))
    assert draw(torch.zeros(3, 4), below, Rule()).tolist() == [0, 1, 2]
    halves = torch.tensor([[0.5, 0.25, 0.125, 0.125]] * 4)
    borders = torch.tensor([0.0, 0.5, 0.75, 0.875], dtype=torch.float64)
    for nucleus in (sampling.draw_nucleus, sampling.draw_all_at_once):
        assert nucleus(halves, borders, 0.99).tolist() == [0, 1, 2, 3]


def test_a_nucleus_ends_with_the_token_that_reaches_top_p() -> None:
    """1/2 + 1/4 + 1/8 + 1/8, to the last bit: the second of them reaches 3/4, and a third has no part in it."""
    chances = torch.arange(64, dtype=torch.float64) / 64
    exact = torch.tensor([[0.5, 0.25, 0.125, 0.125]] * 64)
    for nucleus in (sampling.draw_nucleus, sampling.draw_all_at_once):
        for top_p, tokens in ((0.5, {0}), (0.51, {0, 1}), (0.75, {0, 1}), (0.76, {0, 1, 2, 3})):
            assert set(nucleus(exact, chances, top_p).tolist()) == tokens
    quarters = Rule(top_k=4, top_p=0.5), Rule(top_k=4, top_p=0.51), Rule(top_k=3, top_p=1.0)
    assert [len(set(draw(torch.zeros(64, 4), chances, rule).tolist())) for rule in quarters] == [2, 3, 3]


def test_a_confidence_of_just_the_threshold_is_not_beyond_it() -> None:
    """The likelier of two equal tokens has 1/2 to the last bit; of two unequal ones it has more."""
    for logits, greedy in ((torch.zeros(40, 2), False), (torch.tensor([[0.1, 0.0]] * 40), True)):
        choose = sampling.Chooser(Rule(confidence=0.5), 0, np.arange(5), 8, 0)
        drawn = [set(choose(logits, list(range(40))).tolist()) for _ in range(3)]
        assert drawn == [{0, 1}, *[{0} if greedy else {0, 1}] * 2]


def test_large_batches_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, chance = torch.randn(50, 200), torch.rand(50, dtype=torch.float64)
    whole = draw(logits, chance, Rule(top_p=0.9))
    monkeypatch.setattr(sampling, "NUMBERS_AT_ONCE", 1500)
    assert torch.equal(draw(logits, chance, Rule(top_p=0.9)), whole)


def all_continuations(model: LlamaForCausalLM, prompt: tuple[int, ...], rule: Rule, length: int, stop: int) -> dict:
    """Probability of every continuation of at most `length` tokens, by the definition."""
    found: dict[tuple[int, ...], float] = {}
    running: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        extended: dict[tuple[int, ...], float] = {}
        for tokens, probability in running.items():
            with torch.no_grad():
                logits = model(torch.tensor([prompt + tokens])).logits[:, -1]
            following = expected_distribution(logits, rule)[0].tolist()
            for token, p in enumerate(following):
                if token == stop:
                    found[tokens] = found.get(tokens, 0.0) + probability * p
                elif p > 0:
                    extended[(*tokens, token)] = probability * p
        running = extended
    return {**running, **found}


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
def test_samples_pass_a_chi_squared_test_against_all_continuations(model: LlamaForCausalLM, mode: str) -> None:
    prompts, rule, count, stop = [(3, 4, 5, 6), (7,)], Rule(temperature=1.2, top_p=0.9), 4000, 2
    drawn = sample(
        model, prompts, count, max_new_tokens=3, stop_ids=[stop], rule=rule, seed=5, max_batch=700, mode=mode
    )
    for prompt, samples in zip(prompts, drawn, strict=True):
        expected = all_continuations(model, prompt, rule, 3, stop)
        assert sum(expected.values()) == pytest.approx(1)
        observed = {tokens: 0 for tokens in expected}
        for tokens in samples:
            observed[tuple(tokens)] += 1
        frequent = [tokens for tokens, p in expected.items() if p * count >= 5]
        rare = [tokens for tokens in expected if tokens not in set(frequent)]
        seen = [observed[t] for t in frequent] + [sum(observed[t] for t in rare)]
        wanted = [expected[t] * count for t in frequent] + [sum(expected[t] for t in rare) * count]
        if not wanted[-1]:
            seen, wanted = seen[:-1], wanted[:-1]
        assert len(wanted) > 20
        assert stats.chisquare(seen, wanted).pvalue > 1e-4


def test_samples_do_not_depend_on_the_batch(model: LlamaForCausalLM) -> None:
    prompts = [(3, 4, 5, 6), (7,), (8, 9, 10), (7,)]
    arguments = {"max_new_tokens": 12, "stop_ids": [2], "rule": Rule(top_p=0.95), "seed": 3}
    together = sample(model, prompts, 16, **arguments)
    for options in ({"max_batch": 1}, {"max_batch": 5}, {"token_budget": 200}, {"mode": "padded"}, {"mode": "packed"}):
        assert sample(model, prompts, 16, **arguments, **options) == together
    assert sample(model, prompts[1:3], 16, questions=[1, 2], **arguments) == together[1:3]
    assert sample(model, prompts[::-1], 16, questions=[3, 2, 1, 0], **arguments) == together[::-1]
    parts = [sample(model, prompts, n, first=f, **arguments) for f, n in ((0, 2), (2, 13), (15, 1))]
    assert [list(itertools.chain(*x)) for x in zip(*parts, strict=True)] == together
    assert together[1] != together[3], "equal prompts are different questions"
    assert sample(model, prompts, 16, **{**arguments, "seed": 4}) != together
    assert len({tuple(x) for x in together[0]}) > 4


def test_temperature_zero_is_greedy(model: LlamaForCausalLM) -> None:
    prompt = (3, 4, 5)
    ids = torch.tensor([prompt])
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=9, do_sample=False)[0, 3:]
    expected = [x for x in expected.tolist() if x != 2]
    drawn = sample(model, [prompt], 3, max_new_tokens=9, stop_ids=[2], rule=Rule(temperature=0))
    assert drawn == [[expected] * 3]


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.6, 1.0])
def test_adaptive_temperature_scaling_by_its_definition(model: LlamaForCausalLM, threshold: float) -> None:
    prompts, count, length = [(3, 4, 5, 6), (7,)], 12, 10
    plain = sample(model, prompts, count, max_new_tokens=length, stop_ids=[], rule=Rule(), seed=1)
    drawn = sample(model, prompts, count, max_new_tokens=length, stop_ids=[], rule=Rule(confidence=threshold), seed=1)
    switches = []
    for i, prompt in enumerate(prompts):
        for j in range(count):
            tokens, confidences = drawn[i][j], []
            with torch.no_grad():
                probabilities = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 :].softmax(-1)
            switched = None
            for t in range(length):
                if switched is None and t and np.mean(confidences) > threshold:
                    switched = t
                if switched is not None:
                    assert tokens[t] == int(probabilities[t].argmax())
                confidences.append(float(probabilities[t].max()))
            switches.append(switched)
            assert tokens[:switched] == plain[i][j][:switched]
    if threshold == 0:
        assert switches == [1] * len(switches)
    elif threshold == 1:
        assert drawn == plain
    else:
        assert len(set(switches)) > 1


def split_mix(seed: int, *parts: int) -> float:
    """By Python's own integers: each part is mixed in by SplitMix64's finaliser."""
    state = seed % 2**64
    for part in parts:
        state = (state + (part + 1) * 0x9E3779B97F4A7C15) % 2**64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            state = (state ^ (state >> shift)) * factor % 2**64
        state ^= state >> 31
    return (state >> 11) / 2**53


@pytest.mark.parametrize("seed", [0, 1, -1, -7, 128, 2**63, 2**64 - 1, 2**64 + 128])
def test_uniforms_are_those_of_split_mix_by_whole_numbers(seed: int) -> None:
    places = [(0, 0, 0), (5, 0, 1), (0, 5, 1), (7, 1000, 31), (2**31, 2, 3)]
    found = uniforms(seed, *(np.array(part) for part in zip(*places, strict=True)))
    assert found.tolist() == [split_mix(seed, *place) for place in places]


def test_uniforms_are_uniform_and_independent() -> None:
    question, number, step = (x.ravel() for x in np.meshgrid(np.arange(20), np.arange(100), np.arange(50)))
    values = uniforms(0, question, number, step)
    assert values.min() >= 0 and values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    cube = values.reshape(100, 20, 50)
    for a, b in ((cube[1:], cube[:-1]), (cube[:, 1:], cube[:, :-1]), (cube[..., 1:], cube[..., :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02
    pairs = np.histogram2d(cube[..., 1:].ravel(), cube[..., :-1].ravel(), bins=10)[0]
    assert stats.chisquare(pairs.ravel()).pvalue > 1e-3
    assert (uniforms(1, question, number, step) != values).mean() > 0.999
    assert uniforms(0, question[5:6], number[5:6], step[5:6])[0] == values[5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"confidence": 2}, "confidence"),
    ],
)
def test_bad_rules(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rule(**options)


def test_bad_arguments(model: LlamaForCausalLM) -> None:
    for options in ({"samples": 0}, {"first": -1}, {"questions": [1, 2]}, {"max_new_tokens": 0}):
        with pytest.raises(ValueError):
            sample(model, [(1, 2)], **{"samples": 2, "max_new_tokens": 2, "stop_ids": [], **options})
