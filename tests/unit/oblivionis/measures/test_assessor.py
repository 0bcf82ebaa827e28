"""The assessor and the untouched base model: fluency is what `transformers` says, and nothing else sees the change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from clients.calibrated_forgetting import record_nll
from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.measures.assessor import Assessor
from oblivionis.measures.questions import encode_records
from oblivionis.models.assembly import Assembled, assemble, load_base
from oblivionis.models.configured_corpus import corpus_of

LIMIT = 8


def setting(*overrides: str) -> Config:
    limits = [f"evaluation.{name}.max_new_tokens={LIMIT}" for name in ("light", "full")]
    without = ["leakage.full_samples=0", "leakage.samples=0", "wikimem.enabled=false", "ruler.enabled=false"]
    quick = [f"evaluation.{name}" for name in without]
    return configuration.compose(
        "smoke", ["strict=true", "evaluation.membership.bootstrap=10", *limits, *quick, *overrides]
    )


def trained(assembled: Assembled, seed: int = 0) -> np.ndarray:
    """A vector away from the base model."""
    start = assembled.flat.numpy()
    noise = np.random.default_rng(seed).normal(0, 0.05, start.size).astype(np.float32)
    return start + noise


def plain_fluency(base: Any, assembled: Assembled, answers: dict[str, list[list[int]]], asked: Any) -> dict[str, float]:
    """The metrics by a forward pass of the base model for each answer."""
    stops = assembled.stop_ids

    def nll(prompt: tuple[int, ...], answer: tuple[int, ...]) -> float:
        with torch.no_grad():
            logits = base(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1].double()
        return float(torch.nn.functional.cross_entropy(logits, torch.tensor(answer)))

    true = [
        nll(q.prompt, q.answer[:-1] if q.answer[-1] in stops else q.answer)
        for questions in asked.values()
        for q in questions
    ]
    threshold = float(np.quantile(true, 0.95))
    found = {"fluency_threshold": threshold}
    for group, questions in asked.items():
        pairs = zip(questions, answers[group], strict=True)
        values = [nll(q.prompt, tuple(a)) for q, a in pairs if a]
        found |= {
            f"fluency_{group}_nll": float(np.mean(values)),
            f"fluency_{group}_gibberish": sum(v > threshold for v in values) / len(questions),
            f"fluency_{group}_endless": sum(len(a) == LIMIT for a in answers[group]) / len(questions),
        }
    return found


@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.slow
def test_fluency_under_the_base_model(mode: str) -> None:
    config = setting(f"model.mode={mode}")
    assembled = assemble(config.model, 0)
    base, _ = load_base(config.model)
    vector = trained(assembled)
    assessor = Assessor(assembled, corpus_of(config), config, assembled.flat.numpy() if mode == "full" else None)
    measured = assessor.measure(vector, full=True)
    assert np.array_equal(assembled.flat.numpy(), vector), "the measured model is loaded again"
    context = assessor.context
    asked, log = {}, measured.log
    assert log is not None
    for name, section in (("forget", "eval_log_forget"), ("retain", "eval_log")):
        ids = log["ids"][section]
        asked[name] = [q for q in context.questions[name] if q.id in ids]
        assert log["fluency"][name]["ids"] == ids == [q.id for q in asked[name]]
    answers = {name: [_generated(assembled, q.prompt) for q in questions] for name, questions in asked.items()}
    expected = plain_fluency(base, assembled, answers, asked)
    found = {key: value for key, value in measured.metrics.items() if key.startswith("fluency_")}
    assert found == pytest.approx(expected, abs=1e-4)
    assert expected["fluency_forget_nll"] > 1.5 * expected["fluency_threshold"], "noise is no language"
    again = assessor.measure(vector, full=True)
    assert again.metrics == measured.metrics


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_what_a_model_would_know_had_it_never_seen_a_record_is_the_estimate_of_calibrated_forgetting(mode: str) -> None:
    """By `clients.calibrated_forgetting.record_nll`, which asks by another way: a model of its own for each set of
    parameters."""
    config = setting("data.reference_authors=6", f"model.mode={mode}")
    assembled = assemble(config.model, 0)
    corpus, start, vector = corpus_of(config), assembled.flat.numpy(), trained(assembled)
    assessor = Assessor(assembled, corpus, config, start if mode == "full" else None)
    records = corpus.train[:4]
    references = corpus.evaluation["reference"]
    found = assessor.never_seen(vector, [r.id for r in records])
    assert np.array_equal(assembled.flat.numpy(), vector), "the model that was asked is there again"

    def nll(parameters: np.ndarray, of: Any) -> np.ndarray:
        assembled.flat.load(parameters)
        return record_nll(assembled.model, encode_records(of, assembled, config), 4).double().numpy()

    before, now, own = nll(start, references), nll(vector, references), nll(start, records)
    slope = max(0.0, np.polyfit(before, now, 1)[0])
    expected = np.exp(-np.maximum(now.mean() + slope * (own - before.mean()), 0.0))
    assert list(found) == [r.id for r in records]
    assert list(found.values()) == pytest.approx(expected.tolist(), rel=1e-4)
    few = replace(corpus, evaluation={**corpus.evaluation, "reference": references[:7], "holdout": ()})
    assert Assessor(assembled, few, config, start).never_seen(vector, [records[0].id]) == {}, "too few"


def test_how_likely_wrong_answers_are_is_their_mean() -> None:
    config = setting()
    assembled, corpus = assemble(config.model, 0), corpus_of(config)
    asked, other, *_ = [r for r in corpus.train if r.perturbed_answers]
    bare = replace(other, perturbed_answers=())
    corpus = replace(corpus, train=(asked, bare), forget_ids=frozenset(), evaluation={})
    assessor, vector = Assessor(assembled, corpus, config), trained(assembled)
    wrong = [replace(asked, answer=answer) for answer in asked.perturbed_answers]
    assembled.flat.load(vector)
    nll = record_nll(assembled.model, encode_records(wrong, assembled, config), 4).double().numpy()
    found = assessor.wrong_answers(vector, [bare.id, asked.id])
    assert found == {asked.id: pytest.approx(float(np.exp(-nll).mean()), rel=1e-4)}
    assert assessor.wrong_answers(vector, [bare.id]) == {}


def _generated(assembled: Assembled, prompt: tuple[int, ...]) -> list[int]:
    model = assembled.model.eval()
    with torch.no_grad():
        made = model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=LIMIT,
            do_sample=False,
            eos_token_id=sorted(assembled.stop_ids),
            pad_token_id=0,
        )
    said = made[0, len(prompt) :].tolist()
    return said[:-1] if said and said[-1] in assembled.stop_ids else said


@pytest.mark.slow
def test_other_metrics_are_the_same_without_it() -> None:
    config = setting("evaluation.membership.attacks=[loss, reference]")
    vector, found = None, []
    for enabled in (True, False):
        config.evaluation.more["fluency"]["enabled"] = enabled
        assembled = assemble(config.model, 0)
        vector = trained(assembled) if vector is None else vector
        assessor = Assessor(assembled, corpus_of(config), config)
        found.append(assessor.measure(vector, full=True).metrics | assessor.measure(vector, full=False).metrics)
    with_, without = found
    added = set(with_) - set(without)
    assert added and all(key.startswith("fluency_") for key in added)
    assert {key: with_[key] for key in without} == without, "to the last bit"


@pytest.mark.slow
def test_where_it_is_left_out() -> None:
    config = setting()
    assembled = assemble(config.model, 0)
    corpus, vector = corpus_of(config), trained(assembled)
    assert "fluency_forget_nll" not in Assessor(assembled, corpus, config).measure(vector, full=False).metrics
    config.evaluation.more["fluency"]["after_rounds"] = True
    assert "fluency_forget_nll" in Assessor(assembled, corpus, config).measure(vector, full=False).metrics
    full = setting("model.mode=full")
    whole = assemble(full.model, 0)
    metrics = Assessor(whole, corpus, full).measure(trained(whole), full=True).metrics
    assert "forget_prob" in metrics and "fluency_forget_nll" not in metrics, "nobody knows the base model any more"
