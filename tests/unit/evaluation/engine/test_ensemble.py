"""An ensemble beside its members run one by one by transformers: log of the mean of their probabilities."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from support import tiny_models
from torch import nn

from evaluation.engine import decoding, sampling
from evaluation.engine.architectures import way
from evaluation.engine.ensemble import Ensemble, mean_of_log_probs
from evaluation.engine.likelihood import score
from evaluation.engine.sequences import TokenSequence

MEMBERS = 3
PROMPTS = [(3, 4), (5, 6, 7, 8, 9), (10,), (3, 4, 11), (12, 13, 14)]
STOPS = (2, 17, 30)
SEQUENCES = [TokenSequence(p, tuple(range(20 + i, 23 + i + i % 3))) for i, p in enumerate([*PROMPTS, PROMPTS[1]])]


def vector_of(model: nn.Module) -> np.ndarray:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()


@pytest.fixture(params=["llama", "qwen2"])
def ensemble(request):
    model = tiny_models.model(request.param)
    assert way(model).name == {"llama": "fused", "qwen2": "packed"}[request.param]

    def load(values: np.ndarray) -> None:
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(torch.from_numpy(values), model.parameters())

    made = Ensemble(model, load)
    made.hold([vector_of(tiny_models.model(request.param, seed=seed)) for seed in range(MEMBERS)])
    made.kind = request.param
    return made


def log_probs(kind: str, tokens) -> np.ndarray:
    """log (1/S) Σ softmax of each member, in float64, at each place."""
    probabilities = []
    for seed in range(MEMBERS):
        with torch.no_grad():
            logits = tiny_models.model(kind, seed=seed)(input_ids=torch.tensor([tokens])).logits[0].double().numpy()
        e = np.exp(logits - logits.max(-1, keepdims=True))
        probabilities.append(e / e.sum(-1, keepdims=True))
    return np.log(np.mean(probabilities, axis=0))


def test_the_mean_of_probabilities_is_one_distribution():
    logits = [torch.randn(4, 9) * 30 for _ in range(5)]
    found = mean_of_log_probs(logits)
    expected = torch.stack([x.double().softmax(-1) for x in logits]).mean(0)
    torch.testing.assert_close(found.double().exp(), expected, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(4))


def test_likelihoods_are_those_of_the_mixture(ensemble):
    scores = score(ensemble, SEQUENCES)
    for s, found in zip(SEQUENCES, scores.mean_nll, strict=True):
        table = log_probs(ensemble.kind, [*s.prompt, *s.answer])
        places = np.arange(len(s.answer)) + len(s.prompt) - 1
        np.testing.assert_allclose(found, -table[places, list(s.answer)].mean(), rtol=2e-5)


def test_likelihoods_need_the_logits_of_few_rows_and_members_at_once(ensemble, monkeypatch):
    """Of however many members and tokens: with a real vocabulary those of some thousand tokens are a gigabyte."""
    ensemble.hold([vector_of(tiny_models.model(ensemble.kind, seed=seed)) for seed in range(7)])
    expected = score(ensemble, SEQUENCES).mean_nll
    alive, most = weakref.WeakSet(), []

    def watched(logits):
        def each():
            for one in logits:
                alive.add(one)
                most.append((len(alive), one.shape[0]))
                yield one

        return mean_of_log_probs(each())

    monkeypatch.setattr("evaluation.engine.backends.fused.HEAD_ROWS", 2)
    monkeypatch.setattr("evaluation.engine.backends.together.mean_of_log_probs", watched)
    np.testing.assert_allclose(score(ensemble, SEQUENCES).mean_nll, expected, rtol=1e-5)
    assert most and max(count for count, _ in most) <= 3
    assert ensemble.kind != "llama" or max(rows for _, rows in most) == 2


def test_states_are_the_means_of_the_members(ensemble):
    expected = []
    for seed in range(MEMBERS):
        expected.append(score(tiny_models.model(ensemble.kind, seed=seed), SEQUENCES, hidden="mean").hidden)
    found = score(ensemble, SEQUENCES, hidden="mean").hidden
    for number in range(len(SEQUENCES)):
        each = np.mean([np.asarray(member[number]) for member in expected], axis=0)
        np.testing.assert_allclose(np.asarray(found[number]), each, rtol=1e-4, atol=1e-5)


def greedily(kind: str, prompt, limit: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(limit):
        token = int(log_probs(kind, tokens)[-1].argmax())
        if token in STOPS:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.slow
def test_greedy_answers_are_those_of_the_mixture_with_caches(ensemble, rows):
    expected = [greedily(ensemble.kind, prompt, 9) for prompt in PROMPTS]
    found = decoding.greedy(ensemble, PROMPTS, max_new_tokens=9, stop_ids=STOPS, max_batch=rows)
    assert found == expected
    one = decoding.greedy(ensemble.choose(0), PROMPTS, max_new_tokens=9, stop_ids=STOPS)
    assert one != expected


def test_samples_come_from_the_mixture(ensemble):
    """The first token of 4000 samples, whose copies share their prompt, against the probabilities of the mixture."""
    count = 4000
    (found,) = sampling.sample(ensemble, [PROMPTS[1]], count, max_new_tokens=2, stop_ids=(), seed=4)
    frequencies = np.bincount([tokens[0] for tokens in found], minlength=tiny_models.ROWS) / count
    p = np.exp(log_probs(ensemble.kind, PROMPTS[1])[-1])
    assert np.abs(frequencies - p).max() < 4 * np.sqrt(0.25 / count)
    first = int(frequencies.argmax())
    then = np.array([tokens[1] for tokens in found if tokens[0] == first])
    p = np.exp(log_probs(ensemble.kind, [*PROMPTS[1], first])[-1])
    frequencies = np.bincount(then, minlength=tiny_models.ROWS) / len(then)
    assert np.abs(frequencies - p).max() < 4 * np.sqrt(0.25 / len(then))


def test_a_way_without_rows_generates_no_ensemble(ensemble):
    with pytest.raises(ValueError, match="the way plain pads its rows, or runs one model's own generation"):
        decoding.greedy(ensemble, PROMPTS, max_new_tokens=2, stop_ids=STOPS, mode="plain")
