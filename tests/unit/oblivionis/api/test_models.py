"""Functions of the library on models of any origin give what the program's own ways give, and tell mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evaluation.metrics.tofu import forget_quality
from evaluation.wikimem import engine
from oblivionis import DataError, ModelError, PromptTemplate, evaluate_model, load_model, ruler, wikimem
from oblivionis.config.compose import compose
from oblivionis.data.records import Record
from oblivionis.measures.assessor import Assessor
from oblivionis.models.assembly import assemble_untrained
from oblivionis.models.configured_corpus import corpus_of

MOST = 8
SETTINGS = (
    "model.device=cpu",
    "data.authors=4",
    "data.questions_per_author=2",
    "data.forget_authors=2",
    "evaluation.full.questions_per_set=null",
    "evaluation.full.sets=[forget, retain]",
    f"evaluation.full.max_new_tokens={MOST}",
    "evaluation.leakage.full_samples=0",
    "evaluation.wikimem.enabled=false",
    "evaluation.ruler.enabled=false",
    "evaluation.membership.bootstrap=10",
)
EVALUATION = corpus_of(compose("smoke", SETTINGS)).evaluation


def row(record: Record) -> dict[str, Any]:
    """The record in the shape of TOFU's files."""
    found: dict[str, Any] = {"id": record.id, "question": record.question, "answer": record.answer}
    if record.paraphrased_answer is not None:
        found["paraphrased_answer"] = record.paraphrased_answer
    return found | {"perturbed_answer": list(record.perturbed_answers)}


QUESTIONS: Mapping[str, list[dict[str, Any]]] = {
    name: [row(r) for r in EVALUATION[name]] for name in ("forget", "retain")
}
FORGET = {"forget": QUESTIONS["forget"]}


@pytest.fixture(scope="module")
def noisy() -> tuple[Any, Any]:
    """Another model than the embedded one."""
    model, tokenizer = load_model("embedded", device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return model, tokenizer


@pytest.fixture(scope="module")
def folder(noisy: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a model folder."""
    found = tmp_path_factory.mktemp("model")
    for part in noisy:
        part.save_pretrained(found)
    return found


@pytest.fixture(scope="module")
def assessor(folder: Path) -> Assessor:
    """The program's own way to its metrics."""
    config = compose("smoke", [*SETTINGS, f"model.source={folder}", "model.name=noisy"])
    assembled = assemble_untrained(config.model)
    return Assessor(assembled, corpus_of(config), config, assembled.flat.numpy())


@pytest.mark.slow
def test_the_numbers_are_those_of_the_program(noisy: tuple[Any, Any], folder: Path, assessor: Assessor) -> None:
    expected = assessor.measure(assessor.assembled.flat.numpy(), full=True).report.results["tofu"]
    for model in (folder, noisy):
        found = evaluate_model(model, QUESTIONS, max_new_tokens=MOST)
        assert found.metrics == pytest.approx(expected.metrics, rel=1e-5)
        assert found.truth_ratios == pytest.approx(expected.details["forget_truth_ratios"], rel=1e-4)
        for section, columns in expected.details["log"].items():
            assert found.log[section].keys() == columns.keys()
            assert found.log[section]["generated_text"] == columns["generated_text"]


def test_a_forget_quality_beside_another_model(noisy: tuple[Any, Any]) -> None:
    oracle = evaluate_model("embedded", FORGET, max_new_tokens=0)
    found = evaluate_model(noisy, FORGET, oracle=oracle, max_new_tokens=0)
    expected = forget_quality(found.truth_ratios, oracle.truth_ratios)
    assert (found.metrics["forget_quality"], found.metrics["forget_ks"]) == expected
    assert "forget_rouge" not in found.metrics
    with pytest.raises(ValueError, match="needs arithmetic truth ratios"):
        evaluate_model(noisy, FORGET, oracle=oracle, truth_ratio="arithmetic")


def test_rows_without_wrong_answers_have_no_truth_ratio(noisy: tuple[Any, Any]) -> None:
    plain = {"forget": [{"question": r["question"], "answer": r["answer"]} for r in QUESTIONS["forget"]]}
    found = evaluate_model(noisy, plain, max_new_tokens=0)
    names = {"forget_prob", "forget_extraction_strength", "forget_exact_memorization"}
    assert found.metrics.keys() == names and not found.truth_ratios.size
    with pytest.raises(ValueError, match="needs geometric truth ratios of forget questions"):
        evaluate_model(noisy, FORGET, oracle=found)


def test_the_template_is_that_of_the_prompt(noisy: tuple[Any, Any]) -> None:
    bare = PromptTemplate(question_prefix="", question_suffix=" ", answer_prefix="A:")
    found = evaluate_model(noisy, FORGET, template=bare, max_new_tokens=1)
    prompt, _, _ = found.log["eval_log_forget"]["generated_text"]["0"]
    assert prompt.strip() == QUESTIONS["forget"][0]["question"] + " A:"


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ({}, "no questions; expected some of the sets forget, retain"),
        ({"forgt": FORGET["forget"]}, "unknown question set 'forgt'; did you mean forget?"),
        ({"forget": []}, "forget: expected a list of at least one question"),
        ({"forget": "forget.json"}, "forget: expected a list of at least one question"),
        ({"forget": FORGET["forget"][0]}, "forget: expected a list of at least one question"),
        ({"forget": ["Who?"]}, "forget[0]: expected a mapping with question and answer, found str"),
        ({"forget": [{"question": "Who?"}]}, "forget[0]: field 'answer' is missing"),
        ({"retain": [{"question": "Who?", "answer": 3}]}, "retain[0]: answer must be a non-empty text, found 3"),
    ],
)
def test_mistakes_in_questions_are_told(noisy: tuple[Any, Any], questions: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        evaluate_model(noisy, questions)
    assert message in str(caught.value)


def test_what_is_too_long_is_told_or_cut(noisy: tuple[Any, Any]) -> None:
    with pytest.raises(DataError, match="records longer than max_length=32") as caught:
        evaluate_model(noisy, FORGET, max_length=32, max_new_tokens=0)
    assert f"{QUESTIONS['forget'][0]['id']}: " in str(caught.value)
    assert evaluate_model(noisy, FORGET, max_length=32, max_new_tokens=0, on_overflow="truncate").metrics


@pytest.mark.parametrize("model", ["./nowhere", 3, ("a", "b")])
def test_what_is_no_model_is_told(model: Any) -> None:
    for ask in (evaluate_model, lambda m, q: ruler.representations(m, q["forget"])):
        with pytest.raises(ModelError):
            ask(model, FORGET)
    with pytest.raises(ModelError):
        wikimem.score_facts(model, [])


def test_a_model_without_finite_numbers_is_told() -> None:
    model, tokenizer = load_model("embedded", device="cpu")
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(ModelError, match="the model cannot be evaluated: "):
        evaluate_model((model, tokenizer), FORGET, max_new_tokens=0)


@pytest.mark.parametrize(("pooling", "layer"), [("last", None), ("mean", 0)])
def test_representations_are_those_that_transformers_has(noisy: tuple[Any, Any], pooling: Any, layer: Any) -> None:
    model, tokenizer = noisy
    found = ruler.representations(noisy, QUESTIONS["retain"][:3], pooling=pooling, layer=layer)
    for record, state in zip(QUESTIONS["retain"][:3], found, strict=True):
        prompt = tokenizer(f"Question: {record['question']}\nAnswer:")["input_ids"]
        ids = [*prompt, *tokenizer(f" {record['answer']}", add_special_tokens=False)["input_ids"]]
        ids.append(tokenizer.eos_token_id)
        with torch.no_grad():
            states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        whole = states[-1 if layer is None else layer + 1][0, len(prompt) :]
        expected = whole[-1] if pooling == "last" else whole.mean(0)
        np.testing.assert_allclose(state, expected.numpy(), rtol=1e-4, atol=1e-5)


def test_representations_go_into_the_lenses(noisy: tuple[Any, Any]) -> None:
    forget, retain = (ruler.representations(noisy, QUESTIONS[name]) for name in ("forget", "retain"))
    ranks = ruler.percentile_rank(forget, retain)
    assert ranks.ranks.shape == (len(forget),) and 0 <= ranks.mean <= 1
    with pytest.raises(ValueError, match="unknown pooling 'first'"):
        ruler.representations(noisy, QUESTIONS["forget"], pooling="first")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="decoder layers 0 to"):
        ruler.representations(noisy, QUESTIONS["forget"], layer=99)


def test_facts_about_people_are_scored_as_by_the_engine(noisy: tuple[Any, Any], folder: Path) -> None:
    facts = [wikimem.Fact("Mara Lindqvist", "P19", ("Bergen",)), wikimem.Fact("Mara Lindqvist", "P106", ("baker",))]
    asking = wikimem.Asking(templates=2, counterfactuals=5)
    expected = engine.score_facts(*noisy, facts, asking)
    for found in (wikimem.score_facts(noisy, facts, asking), wikimem.score_facts(folder, facts, asking)):
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine.scores, theirs.scores, rtol=1e-5)
    assert wikimem.summarize([score.pair for score in expected]).pairs == 2
    with pytest.raises(ValueError, match="property P0 is unknown"):
        wikimem.score_facts(noisy, [wikimem.Fact("Mara Lindqvist", "P0", ("Bergen",))])
