"""Self-BLEU equals NLTK's sentence_bleu of each text against all others."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

from evaluation.leakage.diversity import bleu_against_others, diversity, self_bleu


def by_nltk(texts: list[str]) -> list[float]:
    words = [text.split() for text in texts]
    smooth = SmoothingFunction().method1
    return [
        float(sentence_bleu(words[:i] + words[i + 1 :], part, smoothing_function=smooth))  # type: ignore[arg-type]
        for i, part in enumerate(words)
    ]


TEXTS = st.one_of(st.lists(st.sampled_from("abcd"), max_size=14).map(" ".join), st.text(max_size=20))


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXTS, min_size=2, max_size=7))
@pytest.mark.slow
def test_equals_nltk(texts: list[str]) -> None:
    each = bleu_against_others(texts)
    np.testing.assert_allclose(each, by_nltk(texts), atol=1e-12, rtol=0)
    assert self_bleu(texts) == each.mean()
    assert diversity(texts) == 1 - self_bleu(texts)
    assert 0 <= self_bleu(texts) <= 1 + 1e-12


def samples(n: int, seed: int = 0) -> list[str]:
    """Sentences of about 50 words that share many phrases."""
    rng = random.Random(seed)
    phrases = [" ".join(f"w{int(rng.paretovariate(0.7)) % 300}" for _ in range(rng.randint(1, 7))) for _ in range(80)]
    return [" ".join(rng.choices(phrases, k=rng.randint(8, 17))) for _ in range(n)]


def test_equals_nltk_on_long_texts() -> None:
    texts = [*samples(40), *samples(3)]
    np.testing.assert_allclose(bleu_against_others(texts), by_nltk(texts), atol=1e-12, rtol=0)


def test_by_hand() -> None:
    assert diversity(["one two three four"] * 3) == pytest.approx(0)
    assert diversity(["one two three four", "five six seven eight"]) == 1
    # "a b c d" in "a b c d e": every n-gram matches, brevity exp(1 - 5/4); the other way 4/5, 3/4, 2/3, 1/2.
    texts = ["a b c d", "a b c d e"]
    expected = [np.exp(-0.25), (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25]
    np.testing.assert_allclose(bleu_against_others(texts), expected)


def test_texts_without_words() -> None:
    assert bleu_against_others(["", " \n"]).tolist() == [0, 0]
    assert bleu_against_others(["", "a"]).tolist() == [0, 0]


@pytest.mark.parametrize("texts", [[], ["a b c d"]])
def test_fewer_than_two_texts(texts: list[str]) -> None:
    for f in (bleu_against_others, self_bleu, diversity):
        with pytest.raises(ValueError, match=f"at least two texts, got {len(texts)}"):
            f(texts)


def test_many_samples_take_little_time() -> None:
    texts = samples(1024)
    start = time.process_time()
    assert 0 < self_bleu(texts) < 1
    assert time.process_time() - start < 5
