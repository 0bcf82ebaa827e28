"""ROUGE equals the package rouge-score, on random and on real text, and its definition by hand."""

from __future__ import annotations

import json
import os
import random
import string
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from evaluation.metrics import rouge

ROOT = Path(__file__).resolve().parents[4]


def assert_equals_rouge_score(predictions: list[str], references: list[str], stemmed: bool = True) -> None:
    scorer = RougeScorer(["rouge1", "rougeL"], use_stemmer=stemmed)
    expected = [scorer.score(r, p) for p, r in zip(predictions, references, strict=True)]
    for name, result in (
        ("rouge1", rouge.rouge_1(predictions, references, stemmed=stemmed)),
        ("rougeL", rouge.rouge_l(predictions, references, stemmed=stemmed)),
    ):
        for field, values in (("precision", result.precision), ("recall", result.recall), ("fmeasure", result.f1)):
            theirs = np.array([getattr(score[name], field) for score in expected])
            np.testing.assert_array_equal(values, theirs, err_msg=f"{name} {field}")


@pytest.mark.parametrize("stemmed", [True, False])
def test_random_text_with_odd_characters(stemmed: bool) -> None:
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
    assert_equals_rouge_score(["", "...", *predictions], ["a word", "", *references], stemmed)


WORDS = st.sampled_from(
    ["run", "Running", "runs", "relational", "1958", "x1y2", "don't", "İİ", "K", "é", "\0", ".", "\ud800"]
)
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="aAbB09 .\0\n", max_size=80),
    st.lists(WORDS, max_size=80).map(" ".join),
    st.lists(WORDS, max_size=10).map("".join),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=12))
def test_any_text(pairs: list[tuple[str, str]]) -> None:
    assert_equals_rouge_score([p for p, _ in pairs], [r for _, r in pairs])


def test_every_character_that_has_a_lower_case() -> None:
    characters = [chr(i) for i in range(0x110000)]
    # Only where str.lower changes a character or leaves ASCII can it become a word.
    texts = [f"a{c}b" for c in characters if c.isascii() or c.lower() != c]
    assert_equals_rouge_score(texts, ["a b ab aib akb a0b a9b"] * len(texts))


@given(st.lists(TEXTS, max_size=8), TEXTS)
def test_one_reference_for_all(predictions: list[str], reference: str) -> None:
    for f in (rouge.rouge_1, rouge.rouge_l):
        one, each = f(predictions, reference), f(predictions, [reference] * len(predictions))
        for field in ("precision", "recall", "f1"):
            np.testing.assert_array_equal(getattr(one, field), getattr(each, field))


def test_a_repeated_text_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    encoded = rouge._encoded
    monkeypatch.setattr(
        rouge, "_encoded", lambda texts, characters: (seen.extend(texts), encoded(texts, characters))[1]
    )
    result = rouge.rouge_l(["a b", "b", "a b", "c"], "a b c")
    assert result.recall.tolist() == [2 / 3, 1 / 3, 2 / 3, 1 / 3]
    assert sorted(seen) == ["a b", "a b c", "b", "c"]


def random_texts(seed: int, n: int) -> list[str]:
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 6))) for _ in range(150)]
    return [" ".join(rng.choices(words, k=rng.randint(0, 30))) for _ in range(n)]


@pytest.mark.parametrize(("kept", "chunk"), [(0, 1 << 18), (10, 200), (50, 1), (1 << 18, 300)])
def test_any_size_of_dictionary_and_chunk(monkeypatch: pytest.MonkeyPatch, kept: int, chunk: int) -> None:
    monkeypatch.setattr(rouge, "_KEPT_WORDS", kept)
    monkeypatch.setattr(rouge, "_CHUNK", chunk)
    assert_equals_rouge_score(random_texts(1, 60), random_texts(2, 60))
    if kept < 100:
        assert len(rouge._current_characters(True)) <= max(kept, 1)


def test_threads_with_restarts_of_the_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    predictions, references = random_texts(3, 200), random_texts(4, 200)
    expected = rouge.rouge_l(predictions, references).f1
    monkeypatch.setattr(rouge, "_KEPT_WORDS", 20)
    monkeypatch.setattr(rouge, "_CHUNK", 500)
    wrong: list[int] = []

    def work() -> None:
        for _ in range(5):
            wrong.append(int((rouge.rouge_l(predictions, references).f1 != expected).sum()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0] * 20


def test_real_text() -> None:
    folder = Path(os.environ.get("OBLIVIONIS_TOFU", ROOT.parent / "shared" / "tofu"))
    path = folder / "forget01_perturbed.json"
    if not path.exists():
        pytest.skip(f"no TOFU data at {folder} (set OBLIVIONIS_TOFU)")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [(wrong, row["answer"]) for row in rows for wrong in [row["paraphrased_answer"], *row["perturbed_answer"]]]
    assert_equals_rouge_score([p for p, _ in pairs], [r for _, r in pairs])


def test_words_with_other_letters_have_no_stem() -> None:
    """Porter's rules are for English."""
    assert rouge.unicode_tokens("Elections élections") == ("elect", "élections")
    assert rouge.unicode_tokens("Elections élections", stemmed=False) == ("elections", "élections")
    found = rouge.rouge_1(["élections", "elections"], ["élection", "election"], any_script=True)
    assert found.f1.tolist() == [0.0, 1.0]


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
