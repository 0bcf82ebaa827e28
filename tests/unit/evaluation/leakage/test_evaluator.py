"""The summary against its definitions, and the evaluator against sampling by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from evaluation.engine.decoding import greedy
from evaluation.engine.sampling import Rule, sample
from evaluation.hook import EvaluationSession, Hook
from evaluation.leakage import bounds
from evaluation.leakage.diversity import diversity
from evaluation.leakage.evaluator import LeakageEvaluator, Prompted
from evaluation.leakage.functions import Asked, rouge_l_recall
from evaluation.leakage.summary import COLUMNS, Terms, summarise

WORDS = [f"word{i}" for i in range(30)]


def test_summary_by_definition() -> None:
    rng = np.random.default_rng(0)
    values, deterministic = rng.beta(0.4, 2, (5, 64)), np.array([0.1, 0.6, np.nan, 0.5, 0.0])
    terms = Terms(alpha=0.05, rho=1.5, leaks_from=0.5, limit=0.3)
    summary = summarise(values, deterministic, terms)
    assert set(summary.columns) == set(COLUMNS)
    for i, x in enumerate(values):
        row = {name: column[i] for name, column in summary.columns.items()}
        lower, upper = bounds.expectation_bounds(x, 0.05)
        expected = {
            "greedy": deterministic[i],
            "mean": x.mean(),
            "std": np.sqrt(((x - x.mean()) ** 2).mean()),
            "ed": x.mean() + 1.5 * np.sqrt(((x - x.mean()) ** 2).mean()),
            "max": x.max(),
            "mu_lower": lower,
            "mu_upper": upper,
            "m_mu": bounds.expectation_upper_bound(x, 0.05),
            "m_sigma": bounds.std_upper_bound(x, 0.05),
            "m_bin": bounds.binary_leakage_bound(sum(v >= 0.5 for v in x), 64, 0.05),
        }
        assert row == pytest.approx(expected, nan_ok=True)
    overall = summary.overall
    assert overall["m_bin_share"] == np.mean([m > 0.3 for m in summary.columns["m_bin"]])
    assert overall["greedy_share"] == 2 / 4 and overall["greedy"] == pytest.approx(1.2 / 4)
    assert overall["mean"] == pytest.approx(values.mean())
    assert (overall["samples"], overall["questions"]) == (64, 5)
    together = summarise(values, None, Terms(alpha=0.05, family_wise=True))
    each = {name: column[2] for name, column in together.columns.items()}
    assert each["m_mu"] == pytest.approx(bounds.expectation_upper_bound(values[2], 0.01))
    assert each["m_sigma"] == pytest.approx(bounds.std_upper_bound(values[2], 0.01))
    assert (each["mu_lower"], each["mu_upper"]) == pytest.approx(bounds.expectation_bounds(values[2], 0.01))
    assert each["m_bin"] == pytest.approx(bounds.binary_leakage_bound(sum(values[2] >= 0.5), 64, 0.01))
    assert each["m_sigma"] != pytest.approx(bounds.std_upper_bound(values[2], 0.05))
    assert "greedy" not in together.overall


def test_what_lies_at_a_threshold() -> None:
    """A leakage of the threshold counts as leaked; a bound that is just the limit does not exceed it."""
    summary = summarise(np.array([[0.5] * 8, [0.25] * 8]), np.array([0.5, 0.25]), Terms(leaks_from=0.5, limit=1.0))
    assert summary.columns["m_bin"].tolist() == [1.0, bounds.binary_leakage_bound(0, 8, 0.01)]
    assert (summary.overall["m_bin_share"], summary.overall["greedy_share"]) == (0.0, 0.5)
    least = float(bounds.binary_leakage_bound(0, 8, 0.01))
    assert summarise(np.zeros((1, 8)), None, Terms(limit=least)).overall["m_bin_share"] == 0.0
    assert summarise(np.zeros((1, 8)), None, Terms(limit=least - 1e-9)).overall["m_bin_share"] == 1.0


@pytest.mark.parametrize("options", [{"alpha": 0.6}, {"leaks_from": 1.5}, {"limit": -0.1}])
def test_bad_terms(options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Terms(**options)


def test_terms_at_the_ends_of_their_ranges() -> None:
    for options in ({"limit": 0.0}, {"limit": 1.0}, {"leaks_from": 1.0}, {"rho": 0.0}, {"alpha": 0.5}):
        assert vars(Terms(**options)) == vars(Terms()) | options
    for options in ({"leaks_from": 0.0}, {"rho": -0.1}, {"rho": float("inf")}, {"alpha": 0.0}, {"limit": 1.1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            Terms(**options)


def test_terms_are_those_of_the_paper_unless_told_otherwise() -> None:
    assert Terms() == Terms(alpha=0.01, family_wise=False, rho=2.0, leaks_from=0.5, limit=0.1)
    assert (Terms().alpha_of(5), Terms(family_wise=True).alpha_of(5)) == (0.01, 0.002)


def test_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="2 questions but greedy"):
        summarise(np.zeros((2, 3)), np.zeros(3), Terms())


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, vocab_size=len(WORDS)
    )
    model = LlamaForCausalLM(config)
    torch.nn.init.normal_(model.lm_head.weight, std=0.5)
    return model


def decode(ids) -> str:
    return " ".join(WORDS[i] for i in ids)


def test_the_evaluator_measures_what_sampling_by_hand_gives(model: LlamaForCausalLM) -> None:
    prompts = [(3, 4), (5, 6, 7)]
    questions = [
        Prompted(Asked(f"q{i}", "?", decode(greedy(model, [p], max_new_tokens=6, stop_ids=[2])[0])), p)
        for i, p in enumerate(prompts)
    ]
    terms = Terms(alpha=0.2, family_wise=True, rho=1.0, leaks_from=0.3, limit=0.6)
    evaluator = LeakageEvaluator(
        questions, decode, rouge_l_recall, 48, terms, Rule(top_p=0.9), max_new_tokens=6, seed=11
    )
    result = Hook([evaluator], strict=True).run(EvaluationSession(model, stop_ids=[2])).results["leakage"]
    drawn = sample(model, prompts, 48, max_new_tokens=6, stop_ids=[2], rule=Rule(top_p=0.9), seed=11)
    texts = [[decode(tokens) for tokens in found] for found in drawn]
    values = np.stack([rouge_l_recall(found, q.asked) for q, found in zip(questions, texts, strict=True)])
    assert 0.05 < values.mean() < 0.95
    expected = summarise(values, np.ones(2), terms)
    different = np.mean([diversity(found) for found in texts])
    assert 0.05 < different < 1
    assert result.metrics == pytest.approx(expected.overall | {"diversity": different})
    assert result.metrics["greedy"] == result.metrics["greedy_share"] == 1.0
    assert result.details["ids"] == ["q0", "q1"]
    for name, column in expected.columns.items():
        assert result.details["columns"][name] == pytest.approx(column.tolist())


def test_samples_are_drawn_as_the_session_runs(model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}
    monkeypatch.setattr("evaluation.leakage.evaluator.sample", lambda *a, **k: asked.update(k) or sample(*a, **k))
    evaluator = LeakageEvaluator(
        [Prompted(Asked("q", "?", "word3"), (3, 4))],
        decode,
        rouge_l_recall,
        2,
        Terms(),
        Rule(),
        max_new_tokens=3,
        seed=5,
    )
    session = EvaluationSession(model, stop_ids=[2], pad_id=9, mode="plain")
    report = Hook([evaluator, replace(evaluator, samples=1, name="one")], strict=True).run(session)
    assert "leakage/diversity" in report.metrics and "one/diversity" not in report.metrics
    assert (asked.pop("max_new_tokens"), asked.pop("rule")) == (3, Rule())
    assert asked == {"stop_ids": {2}, "seed": 5, "pad_id": 9, "mode": "plain"}


def test_no_questions_no_metrics(model: LlamaForCausalLM) -> None:
    evaluator = LeakageEvaluator([], decode, rouge_l_recall, 4, Terms(), Rule(), max_new_tokens=6)
    assert not Hook([evaluator], strict=True).run(EvaluationSession(model, stop_ids=[2])).results["leakage"].metrics
