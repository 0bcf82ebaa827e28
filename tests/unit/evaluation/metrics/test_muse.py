"""VerbMem, KnowMem and PrivLeak against their public definitions: numbers by hand, and rouge-score."""

from __future__ import annotations

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from support import tiny_llama

from evaluation.engine.decoding import greedy
from evaluation.hook import EvaluationSession, Hook
from evaluation.metrics.membership import Candidate, auc
from evaluation.metrics.muse import Item, MuseEvaluator, Scored, few_shot, first_answer, privleak

WORDS = [f"w{i}" for i in range(tiny_llama.VOCABULARY)]


def decode(ids) -> str:
    return " ".join(WORDS[i] for i in ids)


def test_few_shot_prompt() -> None:
    shots = [("Who?", "Ann"), ("Where?", "Oslo")]
    expected = "Question: Who?\nAnswer: Ann\n\nQuestion: Where?\nAnswer: Oslo\n\nQuestion: When?\nAnswer:"
    assert few_shot(shots, "When?") == expected
    assert few_shot([], "When?") == "Question: When?\nAnswer:"


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (" Ann of Oslo.", "Ann of Oslo."),
        (" Ann\n\nof Oslo", "Ann"),
        (" Ann\nof Oslo", "Ann\nof Oslo"),
        (" Ann\nQuestion 2", "Ann"),
        (" Ann Question: Who?\n\n", "Ann"),
        ("\n\n Ann", ""),
        ("Questionable taste", "Questionable taste"),
        ("", ""),
    ],
)
def test_an_answer_ends_at_a_blank_line_or_the_next_question(said: str, answer: str) -> None:
    assert first_answer(said) == answer


@pytest.mark.parametrize(
    ("model", "oracle", "expected"),
    # By MUSE's own AUC a = 1 - model, r = 1 - oracle: (a - r) / r · 100.
    [
        (0.5, 0.5, 0.0),
        (1.0, 0.5, -100.0),  # all remembered: (0 - 0.5) / 0.5
        (0.0, 0.5, 100.0),  # all avoided: (1 - 0.5) / 0.5
        (0.4, 0.2, -25.0),  # (0.6 - 0.8) / 0.8
        (0.1, 0.4, 50.0),  # (0.9 - 0.6) / 0.6
    ],
)
def test_privleak_by_hand(model: float, oracle: float, expected: float) -> None:
    assert privleak(model, oracle) == pytest.approx(expected)


def test_privleak_where_it_is_undefined() -> None:
    assert privleak(0.7, 1.0) is None
    with pytest.raises(ValueError, match="AUC"):
        privleak(1.2, 0.5)


def item(name: str, prompt: tuple[int, ...], truth: str) -> Item:
    return Item(name, prompt, decode(prompt), truth)


def test_the_evaluator_by_definition() -> None:
    model = tiny_llama.base()
    prompts = [(5, 6, 7), (9, 4), (11, 12, 13)]
    said = [decode(x) for x in greedy(model, prompts, max_new_tokens=8, stop_ids=[])]
    assert all(len(x.split()) > 3 for x in said)
    truths = [said[0], " ".join(["other", *said[1].split()[2:]]), "nothing alike"]
    passages = [item(f"v{i}", p, t) for i, (p, t) in enumerate(zip(prompts, truths, strict=True))]
    short = [decode(x) for x in greedy(model, prompts, max_new_tokens=3, stop_ids=[])]
    knowledge = {"forget": [item("f", prompts[0], short[0] + " more")], "retain": [item("r", prompts[1], short[1])]}
    sequences = tiny_llama.sequences(9, seed=3)
    members = [Candidate(f"m{i}", s, "") for i, s in enumerate(sequences[:5])]
    others = [Candidate(f"h{i}", s, "") for i, s in enumerate(sequences[5:])]
    evaluator = MuseEvaluator(passages, knowledge, decode, members, others, 0.25, continuation=8, answer=3)
    result = Hook([evaluator], strict=True).run(EvaluationSession(model, stop_ids=[])).results["muse"]

    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    verbatim = [scorer.score(t, s)["rougeL"].fmeasure for t, s in zip(truths, said, strict=True)]
    assert verbatim[0] == 1.0 and 0 < verbatim[1] < 1 and verbatim[2] == 0.0
    assert result.metrics["verbmem"] == pytest.approx(np.mean(verbatim))
    assert [x["score"] for x in result.details["verbmem"].values()] == pytest.approx(verbatim)
    # Recall: three of four words; all words.
    assert result.metrics["knowmem_forget"] == pytest.approx(len(short[0].split()) / (len(short[0].split()) + 1))
    assert result.metrics["knowmem_retain"] == 1.0
    assert result.details["knowmem_forget"]["f"]["generated"] == short[0]

    def lowest(share: float) -> float:
        logs = [x.detach().numpy() for x in tiny_llama.padded_log_probs(model, sequences)]
        values = [float(np.sort(x)[: max(1, int(share * len(x)))].mean()) for x in logs]
        return auc(values[:5], values[5:])

    assert result.details["auc"] == pytest.approx(lowest(0.4))
    assert lowest(0.4) not in (lowest(0.2), lowest(1.0)), "the share can be told"
    assert result.metrics["privleak"] == pytest.approx(100 * ((1 - result.details["auc"]) - 0.75) / 0.75)


def test_words_count_as_they_are_without_stemming() -> None:
    found = Scored("paper")
    found.add(
        "a", [item("x", (3,), "the runs ended"), item("y", (3,), "the runs")], ["the running ended", "runs"], "recall"
    )
    assert found.details["a"]["x"]["score"] == pytest.approx(2 / 3) and found.details["a"]["y"]["score"] == 0.5
    assert found.metrics == {"a": pytest.approx(7 / 12)} and not found.notes


def test_a_continuation_and_an_answer_are_as_long_as_the_papers() -> None:
    plain = MuseEvaluator([], {}, decode)
    assert (plain.continuation, plain.answer, plain.rouge, plain.name) == (128, 32, "paper", "muse")


def test_what_has_no_items_has_no_metric() -> None:
    evaluator = MuseEvaluator([], {"forget": [], "retain": [item("r", (3, 4), "w1")]}, decode, answer=2)
    result = Hook([evaluator], strict=True).run(EvaluationSession(tiny_llama.base(), stop_ids=[2])).results["muse"]
    assert set(result.metrics) == {"knowmem_retain"}
    with pytest.raises(ValueError, match="unknown sets"):
        MuseEvaluator([], {"world": []}, decode)


@pytest.mark.parametrize("rule", ["paper", "any_script"])
def test_texts_that_rouge_cannot_read_have_no_metric_but_a_note(rule: str) -> None:
    model, prompts = tiny_llama.base(), [(5, 6, 7), (9, 4), (11, 12, 13)]

    def cyrillic(ids) -> str:
        return " ".join(f"слово{chr(0x430 + i % 32)}" for i in ids)

    said = [cyrillic(x) for x in greedy(model, prompts, max_new_tokens=8, stop_ids=[])]
    passages = [Item(f"v{i}", p, cyrillic(p), t) for i, (p, t) in enumerate(zip(prompts, said, strict=True))]
    knowledge = {"forget": [Item("f", prompts[0], "", "только другое")], "retain": [Item("r", prompts[1], "", "Oslo")]}
    evaluator = MuseEvaluator(passages, knowledge, cyrillic, continuation=8, answer=3, rouge=rule)
    result = Hook([evaluator], strict=True).run(EvaluationSession(model, stop_ids=[])).results["muse"]
    if rule == "paper":
        assert result.metrics == {"knowmem_retain": 0.0} and set(result.notes) == {"verbmem", "knowmem_forget"}
        assert {x["score"] for x in result.details["verbmem"].values()} == {None}
    else:
        assert result.metrics == {"verbmem": 1.0, "knowmem_forget": 0.0, "knowmem_retain": 0.0}
        assert all("not the paper's" in note for note in result.notes.values()) and len(result.notes) == 3
