"""TOFU aggregates: the numbers published with the authors' logs, hand-made numbers, and the evaluator's own log."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from evaluation.engine.sequences import TokenSequence
from evaluation.hook import EvaluationSession, Hook
from evaluation.metrics import tofu
from evaluation.metrics.rouge import rouge_l

ROOT = Path(__file__).resolve().parents[4]
RUNS = ("full", "retain90", "retain95", "retain99")


@pytest.fixture(scope="module")
def published() -> tuple[dict[str, Any], dict[str, Any]]:
    folder = Path(os.environ.get("OBLIVIONIS_REFERENCE", ROOT.parent / "shared" / "reference")) / "tofu_logs"
    if not folder.is_dir():
        pytest.skip(f"no published TOFU logs at {folder} (set OBLIVIONIS_REFERENCE)")
    logs = {run: json.loads((folder / f"llama2-7b_{run}.json").read_text()) for run in RUNS}
    return logs, json.loads((folder / "expected.json").read_text())


@pytest.mark.parametrize("run", RUNS)
def test_published_aggregates(published: tuple[dict[str, Any], dict[str, Any]], run: str) -> None:
    logs, expected = published
    assert tofu.aggregate(logs[run]) == pytest.approx(expected[run], abs=1e-6)


@pytest.mark.parametrize("run", RUNS[1:])
def test_published_forget_quality(published: tuple[dict[str, Any], dict[str, Any]], run: str) -> None:
    logs, expected = published
    actual = tofu.aggregate(logs["full"], logs[run])
    for name, value in expected[f"forget_quality_full_vs_{run}"].items():
        assert actual[name] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("run", RUNS)
def test_published_rouge_is_that_of_the_published_texts(
    published: tuple[dict[str, Any], dict[str, Any]], run: str
) -> None:
    log = published[0][run]
    for name, section in tofu.SECTIONS.items():
        recorded = list(log[section]["rougeL_recall"].values())
        np.testing.assert_allclose(tofu.rouge_recalls(log, name), recorded, atol=1e-12)
    del log["eval_log"]["rougeL_recall"]
    assert tofu.aggregate(log)["ROUGE Retain"] == pytest.approx(published[1][run]["ROUGE Retain"], abs=1e-6)


def nll(*probabilities: float) -> list[float]:
    return [-math.log(p) for p in probabilities]


def section(right: float, paraphrase: float, wrong: list[float], recall: float) -> dict[str, Any]:
    return {
        "avg_gt_loss": {"0": nll(right)[0]},
        "avg_paraphrased_loss": {"0": nll(paraphrase)[0]},
        "average_perturb_loss": {"0": nll(*wrong)},
        "rougeL_recall": {"0": recall},
    }


def hand_made() -> dict[str, Any]:
    return {
        "eval_log": section(0.8, 0.5, [0.25, 0.0625], 0.9),
        "eval_real_author_wo_options": section(0.5, 0.5, [0.25, 0.25], 0.6),
        "eval_real_world_wo_options": section(0.2, 0.2, [0.3, 0.3], 0.7),
        "eval_log_forget": section(0.1, 0.1, [0.2, 0.8], 0.3),
    }


def test_hand_made_numbers_geometric() -> None:
    result = tofu.aggregate(hand_made())
    expected = {
        "Prob. Retain": 0.8,
        "Prob. Real Authors": 0.5,  # 0.5 of 0.5 + 0.25 + 0.25
        "Prob. Real World": 0.25,  # 0.2 of 0.8
        "Prob. Forget": 0.1,
        "ROUGE Retain": 0.9,
        "ROUGE Real Authors": 0.6,
        "ROUGE Real World": 0.7,
        "ROUGE Forget": 0.3,
        "Truth Ratio Retain": 0.75,  # TR = (1/8) / (1/2)
        "Truth Ratio Real Authors": 0.5,  # TR = 1/2
        "Truth Ratio Real World": 0.0,  # TR = 3/2
        "Truth Ratio Forget": 0.25,  # TR = 0.4 / 0.1, inverted
        "Model Utility": 0.0,
    }
    assert result == pytest.approx(expected)


def test_hand_made_numbers_arithmetic_and_utility() -> None:
    log = hand_made()
    log["eval_real_world_wo_options"] = section(0.2, 0.2, [0.1, 0.1], 0.7)
    result = tofu.aggregate(log, convention="arithmetic")
    assert result["Truth Ratio Retain"] == pytest.approx(1 - 5 / 16)
    assert result["Truth Ratio Forget"] == pytest.approx(0.2)  # TR = 0.5 / 0.1
    nine = [0.8, 0.5, 0.5, 0.9, 0.6, 0.7, 11 / 16, 0.5, 0.5]
    assert result["Model Utility"] == pytest.approx(9 / sum(1 / x for x in nine))


def test_forget_quality_by_hand() -> None:
    # Disjoint samples of 3 and 3: statistic 1, exact two-sided p = 2 / C(6, 3).
    assert tofu.forget_quality([1, 2, 3], [4, 5, 6]) == pytest.approx((0.1, 1.0))
    assert tofu.forget_quality([1, 2], [1, 2]) == pytest.approx((1.0, 0.0))
    with pytest.raises(ValueError, match="truth ratios of the model and of the oracle"):
        tofu.forget_quality([], [1.0])


def test_missing_data_leaves_metrics_out() -> None:
    log = hand_made()
    del log["eval_real_author_wo_options"]
    del log["eval_log"]["average_perturb_loss"]
    log["eval_log_forget"]["rougeL_recall"] = {}
    result = tofu.aggregate(log, hand_made())
    assert not {"Model Utility", "ROUGE Forget", "Truth Ratio Retain", "Prob. Real Authors"} & set(result)
    assert {"Prob. Retain", "Prob. Forget", "Forget Quality", "Truth Ratio Real World"} <= set(result)
    assert tofu.aggregate({}) == {}


def test_bad_logs() -> None:
    with pytest.raises(ValueError, match="unknown truth ratio convention 'median'"):
        tofu.aggregate(hand_made(), convention="median")
    with pytest.raises(ValueError, match="unknown truth ratio convention 'median'"):
        tofu.aggregate({}, convention="median")
    with pytest.raises(ValueError, match="oracle's log has no forget-set losses"):
        tofu.aggregate(hand_made(), {})
    for value in (float("nan"), math.inf, None):
        log = hand_made()
        log["eval_log"]["avg_gt_loss"]["0"] = value
        with pytest.raises(ValueError, match=r"eval_log\.avg_gt_loss holds a value that is not finite"):
            tofu.aggregate(log)
    log = hand_made()
    log["eval_log"]["average_perturb_loss"]["1"] = [1.0]
    with pytest.raises(ValueError, match=r"eval_log\.average_perturb_loss is not a table"):
        tofu.aggregate(log)
    log["eval_log"]["average_perturb_loss"] = {"0": [1.0], "1": [2.0]}
    with pytest.raises(ValueError, match="1 paraphrased losses, 2 perturbed"):
        tofu.aggregate(log)


WORDS = [f"w{i:02d}" for i in range(40)]
EOS = 39


def decode(ids: Any) -> str:
    return " ".join(WORDS[i] for i in ids)


def question(name: str, i: int, paraphrased: bool) -> tofu.Question:
    rng = np.random.default_rng(i)

    def answer() -> tuple[int, ...]:
        return (*(int(x) for x in rng.integers(2, 38, rng.integers(2, 7))), EOS)

    right = answer()
    return tofu.Question(
        id=f"{name}-{i}",
        prompt=tuple(int(x) for x in rng.integers(2, 38, 5)),
        answer=right,
        text=decode(right[:-1]),
        paraphrase=answer() if paraphrased else None,
        perturbed=tuple(answer() for _ in range(3)),
    )


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            vocab_size=40,
            eos_token_id=EOS,
        )
    )


@pytest.fixture(scope="module")
def questions() -> dict[str, list[tofu.Question]]:
    sizes = {"forget": 6, "retain": 5, "real_authors": 4, "world_facts": 3}
    return {
        name: [question(name, 100 * k + i, name in ("forget", "retain")) for i in range(size)]
        for k, (name, size) in enumerate(sizes.items())
    }


def mean_nll(model: LlamaForCausalLM, sequence: TokenSequence) -> float:
    with torch.no_grad():
        logits = model(torch.tensor([sequence.prompt + sequence.answer])).logits[0, len(sequence.prompt) - 1 : -1]
    return torch.nn.functional.cross_entropy(logits.double(), torch.tensor(sequence.answer)).item()


def test_evaluator_log_and_metrics(model: LlamaForCausalLM, questions: dict[str, list[tofu.Question]]) -> None:
    oracle = [0.3, 0.9, 1.2]
    evaluator = tofu.TofuEvaluator(questions, decode, oracle=oracle, profile=tofu.Profile(max_new_tokens=6))
    report = Hook([evaluator], strict=True).run(EvaluationSession(model, stop_ids=[EOS]))
    result = report.results["tofu"]
    log = result.details["log"]
    for name, asked in questions.items():
        part = log[tofu.SECTIONS[name]]
        for i, q in enumerate(asked):
            losses = [mean_nll(model, s) for s in q.sequences()]
            assert part["avg_gt_loss"][str(i)] == pytest.approx(losses[0], abs=1e-5)
            assert part["avg_paraphrased_loss"][str(i)] == pytest.approx(losses[1], abs=1e-5)
            assert part["average_perturb_loss"][str(i)] == pytest.approx(losses[2:], abs=1e-5)
            prompt, generated, truth = part["generated_text"][str(i)]
            ids = torch.tensor([q.prompt])
            row = model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=EOS, pad_token_id=0)[0, 5:]
            assert (prompt, truth) == (decode(q.prompt), q.text)
            assert generated == decode(x for x in row.tolist() if x != EOS)
            assert part["rougeL_recall"][str(i)] == pytest.approx(rouge_l([generated], [truth]).recall[0])
    assert result.details["ids"]["eval_log"] == [q.id for q in questions["retain"]]
    aggregates = tofu.aggregate(json.loads(json.dumps(log)))
    assert {tofu.SHORT_NAMES[key]: value for key, value in aggregates.items()}.items() <= result.metrics.items()
    ratios = result.details["forget_truth_ratios"]
    assert (result.metrics["forget_quality"], result.metrics["forget_ks"]) == tofu.forget_quality(ratios, oracle)
    assert len(result.metrics) == 4 * 5 + 3
    assert 0 <= result.metrics["retain_extraction_strength"] <= result.metrics["retain_exact_memorization"] <= 1


def test_the_right_answer_of_the_truth_ratio_is_the_paraphrase_where_there_is_one() -> None:
    plain = tofu.Question("a", (1,), (2, 9), "", perturbed=((3, 9), (4, 9)))
    assert [s.answer for s in plain.sequences()] == [(2, 9), (2, 9), (3, 9), (4, 9)]
    paraphrased = tofu.Question("a", (1,), (2, 9), "", (5, 9), ((3, 9),))
    assert [s.answer for s in paraphrased.sequences()] == [(2, 9), (5, 9), (3, 9)]
    assert {s.prompt for s in paraphrased.sequences()} == {(1,)}


def test_a_set_with_a_question_that_has_no_wrong_answers_has_no_truth_ratio(model: LlamaForCausalLM) -> None:
    asked = [question("forget", i, False) for i in range(3)]
    profile = tofu.Profile(max_new_tokens=0)
    for questions, there in ((asked, True), ([*asked, replace(asked[0], id="x", perturbed=())], False)):
        evaluator = tofu.TofuEvaluator({"forget": questions}, decode, profile=profile)
        result = evaluator.evaluate(EvaluationSession(model, stop_ids=[EOS]))
        assert ("forget_truth_ratio" in result.metrics) is there and "forget_prob" in result.metrics


def test_the_evaluators_truth_ratio_is_that_of_its_convention(model, questions) -> None:
    found = {}
    for convention in ("geometric", "arithmetic"):
        evaluator = tofu.TofuEvaluator(questions, decode, convention, profile=tofu.Profile(max_new_tokens=2))
        result = evaluator.evaluate(EvaluationSession(model, stop_ids=[EOS]))
        log = json.loads(json.dumps(result.details["log"]))
        aggregates = tofu.aggregate(log, convention=convention)
        assert {tofu.SHORT_NAMES[key]: value for key, value in aggregates.items()}.items() <= result.metrics.items()
        ratios = tofu.truth_ratios(log, "forget", convention)
        assert ratios is not None and result.details["forget_truth_ratios"] == ratios.tolist()
        assert result.details["convention"] == convention
        found[convention] = result.metrics["forget_truth_ratio"]
    assert found["geometric"] != found["arithmetic"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_memorisation_is_a_mean_over_all_questions_of_their_true_answers(model: LlamaForCausalLM, place: int) -> None:
    """One of three questions has the answer that the model gives, but for the first token of five."""
    asked = [question("forget", i, True) for i in range(3)]
    known = asked[place]
    row = model.generate(torch.tensor([(*known.prompt, 7)]), max_new_tokens=4, do_sample=False, eos_token_id=None)
    asked[place] = replace(known, answer=(7, *row[0, 6:].tolist()))
    profile = tofu.Profile(max_new_tokens=0)
    found = tofu.TofuEvaluator({"forget": asked}, decode, profile=profile).evaluate(
        EvaluationSession(model, stop_ids=[EOS])
    )
    exact, strength = [], []
    for q in asked:
        with torch.no_grad():
            logits = model(torch.tensor([q.prompt + q.answer])).logits[0, len(q.prompt) - 1 : -1]
        hits = [a == b for a, b in zip(logits.argmax(-1).tolist(), q.answer, strict=True)]
        exact.append(sum(hits) / len(hits))
        strength.append(sum(all(hits[k:]) for k in range(len(hits))) / len(hits))
    assert strength[place] == 0.8
    assert found.metrics["forget_exact_memorization"] == pytest.approx(sum(exact) / 3)
    assert found.metrics["forget_extraction_strength"] == pytest.approx(sum(strength) / 3)


def test_profiles(model: LlamaForCausalLM, questions: dict[str, list[tofu.Question]]) -> None:
    light = tofu.Profile(questions=3, max_new_tokens=0, sets=("forget", "real_authors"))
    evaluator = tofu.TofuEvaluator(questions, decode, profile=light)
    result = evaluator.evaluate(EvaluationSession(model, stop_ids=[EOS]))
    assert result.details["ids"] == {
        "eval_log_forget": ["forget-0", "forget-2", "forget-5"],
        "eval_real_author_wo_options": ["real_authors-200", "real_authors-202", "real_authors-203"],
    }
    measures = ("prob", "truth_ratio", "extraction_strength", "exact_memorization")
    assert set(result.metrics) == {f"{name}_{m}" for name in ("forget", "real_authors") for m in measures}
    with pytest.raises(ValueError, match="at least one question"):
        tofu.Profile(questions=0)
    with pytest.raises(ValueError, match=r"unknown question sets \['holdout'\]"):
        tofu.Profile(sets=("holdout",))
    with pytest.raises(ValueError, match=r"unknown question sets \['holdout'\]"):
        tofu.TofuEvaluator({"holdout": []}, decode)
    with pytest.raises(ValueError, match="unknown truth ratio convention 'median'"):
        tofu.TofuEvaluator({}, decode, convention="median")
    with pytest.raises(ValueError, match="unknown rule of ROUGE 'papers'"):
        tofu.TofuEvaluator({}, decode, rouge="papers")
    assert tofu.TofuEvaluator({}, decode).name == "tofu"
    assert (tofu.FULL.questions, tofu.FULL.max_new_tokens, tofu.FULL.sets) == (None, 200, tuple(tofu.SECTIONS))
    assert (tofu.LIGHT.questions, tofu.LIGHT.max_new_tokens, tofu.LIGHT.sets) == (40, 64, ("forget", "retain"))


def with_recalls(*recalls: float | None) -> dict[str, Any]:
    """The log made by hand, with all nine parts above 0 and these recalls of the retain set."""
    log = hand_made()
    log["eval_real_world_wo_options"] = section(0.2, 0.2, [0.1, 0.1], 0.7)
    log["eval_log"]["rougeL_recall"] = {str(i): recall for i, recall in enumerate(recalls)}
    return log


def test_recalls_that_do_not_count_go_into_no_mean() -> None:
    whole, part = tofu.aggregate(with_recalls(0.9, 0.5)), tofu.aggregate(with_recalls(0.9, None, 0.5, None))
    assert part == whole and part["ROUGE Retain"] == pytest.approx(0.7) and 0 < part["Model Utility"] < 1
    few = tofu.aggregate(with_recalls(0.9, None, None))
    assert whole.keys() - few.keys() == {"ROUGE Retain", "Model Utility"}


def test_the_note_of_the_utility_is_that_of_a_missing_part_before_that_of_one_with_gaps() -> None:
    log = with_recalls(0.9, None, 0.5)
    noted = tofu.notes_on(log, tofu.aggregate(log), "paper")
    assert set(noted) == {"ROUGE Retain", "Model Utility"}
    assert "the mean over the 2 of 3" in noted["ROUGE Retain"] and noted["Model Utility"] == noted["ROUGE Retain"]
    log["eval_real_world_wo_options"]["rougeL_recall"] = {"0": None}
    noted = tofu.notes_on(log, tofu.aggregate(log), "paper")
    assert set(noted) == {"ROUGE Retain", "ROUGE Real World", "Model Utility"}
    assert noted["Model Utility"] == noted["ROUGE Real World"] != noted["ROUGE Retain"]
    del log["eval_log"]["avg_gt_loss"]
    noted = tofu.notes_on(log, tofu.aggregate(log), "paper")
    assert set(noted) == {"ROUGE Retain", "ROUGE Real World"}, "without probabilities there is no utility either way"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_recall_that_is_no_number_is_no_gap(bad: float) -> None:
    with pytest.raises(ValueError, match=r"eval_log.rougeL_recall holds a value that is not finite"):
        tofu.aggregate(with_recalls(0.9, None, bad))


def test_a_log_of_texts_alone_has_no_rouge_of_other_scripts() -> None:
    texts = {"0": ["?", "она живёт в Минске", "она живёт в Минске"]}
    log = {"eval_log": {"generated_text": texts}, "eval_log_forget": {"generated_text": {"0": ["?", "a b", "a c"]}}}
    assert tofu.aggregate(log) == {"ROUGE Forget": 0.5}


LETTERS = [chr(0x4E00 + i) for i in range(40)]


@pytest.mark.parametrize("rule", ["paper", "any_script"])
def test_an_evaluator_of_chinese_answers(
    model: LlamaForCausalLM, questions: dict[str, list[tofu.Question]], rule: str
) -> None:
    """The first forget question has a Latin answer, every other answer is Chinese; a character is a word."""

    def chinese(ids: Any) -> str:
        return "".join(LETTERS[i] for i in ids)

    asked = {name: [dataclasses.replace(q, text=chinese(q.answer[:-1])) for q in of] for name, of in questions.items()}
    asked["forget"][0] = dataclasses.replace(asked["forget"][0], text="She lives in Minsk")
    evaluator = tofu.TofuEvaluator(asked, chinese, profile=tofu.Profile(max_new_tokens=6), rouge=rule)
    result = evaluator.evaluate(EvaluationSession(model, stop_ids=[EOS]))
    log = json.loads(json.dumps(result.details["log"], allow_nan=False))
    recalls = {name: list(log[tofu.SECTIONS[name]]["rougeL_recall"].values()) for name in asked}
    ours = {f"{name}_rouge" for name in asked}
    if rule == "paper":
        first, *rest = [value for of in recalls.values() for value in of]
        assert first == 0.0 and set(rest) == {None}, "the forget set comes first"
        assert not {*ours, "model_utility"} & set(result.metrics) and len(result.metrics) == 4 * 4
        assert set(result.notes) == {*ours, "model_utility"}
        assert all("evaluation.rouge=any_script" in note for note in result.notes.values())
    else:
        for name, of in asked.items():
            said = [text[1] for text in log[tofu.SECTIONS[name]]["generated_text"].values()]
            expected = [common(list(s), list(q.text)) / len(q.text) for s, q in zip(said, of, strict=True)]
            assert recalls[name][name == "forget" :] == pytest.approx(expected[name == "forget" :])
            assert result.metrics[f"{name}_rouge"] == pytest.approx(np.mean(recalls[name]))
        assert {*ours, "model_utility"} <= set(result.metrics)
        assert set(result.notes.values()) == {
            "ROUGE by words of every script (evaluation.rouge=any_script), not the paper's"
        }


def common(first: list[str], second: list[str]) -> int:
    """The length of the longest common subsequence."""
    table = np.zeros((len(first) + 1, len(second) + 1), int)
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            table[i + 1, j + 1] = table[i, j] + 1 if a == b else max(table[i, j + 1], table[i + 1, j])
    return int(table[-1, -1])


def test_answers_in_latin_letters_have_no_notes(
    model: LlamaForCausalLM, questions: dict[str, list[tofu.Question]]
) -> None:
    by_rule = [
        tofu.TofuEvaluator(questions, decode, profile=tofu.Profile(max_new_tokens=6), rouge=rule).evaluate(
            EvaluationSession(model, stop_ids=[EOS])
        )
        for rule in ("paper", "any_script")
    ]
    assert by_rule[0].metrics == by_rule[1].metrics and by_rule[0].notes == {}
    with pytest.raises(ValueError, match="unknown rule of ROUGE 'latin'"):
        tofu.TofuEvaluator(questions, decode, rouge="latin")


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7])
@pytest.mark.parametrize("asked", [None, 1, 2, 5, 6, 7, 8])
def test_a_profile_picks_different_questions_in_their_order(count: int, asked: int | None) -> None:
    questions = [tofu.Question(str(i), (1,), (2,), "") for i in range(count)]
    picked = [int(q.id) for q in tofu.Profile(questions=asked).pick(questions)]
    assert picked == sorted(set(picked)) and len(picked) == min(count, asked or count)
    assert picked[0] == 0 and (len(picked) == 1 or picked[-1] == count - 1)
