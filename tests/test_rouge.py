"""ROUGE equals the package rouge-score, on random and on real text, and its definition by hand."""

from __future__ import annotations

import json
import os
import random
import string
from pathlib import Path

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from evaluation import rouge

ROOT = Path(__file__).resolve().parents[1]


def assert_equals_rouge_score(predictions: list[str], references: list[str]) -> None:
    scorer = RougeScorer(["rouge1", "rougeL"], use_stemmer=True)
    expected = [scorer.score(r, p) for p, r in zip(predictions, references, strict=True)]
    for name, result in (
        ("rouge1", rouge.rouge_1(predictions, references)),
        ("rougeL", rouge.rouge_l(predictions, references)),
    ):
        for field, values in (("precision", result.precision), ("recall", result.recall), ("fmeasure", result.f1)):
            theirs = np.array([getattr(score[name], field) for score in expected])
            np.testing.assert_allclose(values, theirs, atol=1e-12, rtol=0, err_msg=f"{name} {field}")


def test_random_text_with_odd_characters() -> None:
    rng = random.Random(0)
    words = ["running", "runs", "The", "relational", "sky", "skies", "flies", "dying", "café", "naïve", "ÉCOLE", "x1y2"]
    words += [
        "",
        "...",
        "don't",
        "U.S.A.",
        "generalizations",
        "oscillators",
        "İstanbul",
        "a",
        "ſs",
        "日本",
        "--",
        "3.14",
    ]
    words += ["".join(rng.choices(string.ascii_letters + "-'", k=rng.randint(1, 12))) for _ in range(60)]

    def text() -> str:
        return "".join(rng.choice(words) + rng.choice([" ", "  ", "\n", ", ", "-"]) for _ in range(rng.randint(0, 40)))

    predictions, references = [text() for _ in range(300)], [text() for _ in range(300)]
    assert_equals_rouge_score(["", "...", *predictions], ["a word", "", *references])


def test_real_text() -> None:
    folder = Path(os.environ.get("OBLIVIONIS_TOFU", ROOT.parent / "shared" / "tofu"))
    path = folder / "forget01_perturbed.json"
    if not path.exists():
        pytest.skip(f"no TOFU data at {folder} (set OBLIVIONIS_TOFU)")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [(wrong, row["answer"]) for row in rows for wrong in [row["paraphrased_answer"], *row["perturbed_answer"]]]
    assert_equals_rouge_score([p for p, _ in pairs], [r for _, r in pairs])


def test_by_hand() -> None:
    # Stemmed: "author write book" against "book the author wrote": common words author, book; in order: one of them.
    one, longest = (f(["Authors writing books"], ["Books the author wrote"]) for f in (rouge.rouge_1, rouge.rouge_l))
    assert (one.precision[0], one.recall[0]) == (2 / 3, 2 / 4)
    assert (longest.precision[0], longest.recall[0]) == (1 / 3, 1 / 4)
    assert longest.f1[0] == pytest.approx(2 / 7)


def test_text_without_words_scores_zero_and_lengths_must_agree() -> None:
    assert rouge.rouge_l(["", "a"], ["a", "!"]).f1.tolist() == [0.0, 0.0]
    assert rouge.rouge_l([], []).recall.shape == (0,)
    with pytest.raises(ValueError, match="1 predictions for 2 references"):
        rouge.rouge_1(["a"], ["a", "b"])
