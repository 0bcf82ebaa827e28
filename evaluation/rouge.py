"""ROUGE-1 and ROUGE-L with Porter stemming, number for number those of the package rouge-score (use_stemmer=True)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from nltk.stem.porter import PorterStemmer
from rapidfuzz.distance import LCSseq

_NOT_A_WORD = re.compile(r"[^a-z0-9]+")
_stemmer = PorterStemmer()


@dataclass(frozen=True)
class Rouge:
    """Precision, recall and F1 of each pair, arrays (n,) in [0, 1]."""

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray


@lru_cache(maxsize=1 << 17)
def _stem(word: str) -> str:
    return _stemmer.stem(word) if len(word) > 3 else word


@lru_cache(maxsize=1 << 14)
def tokens(text: str) -> tuple[str, ...]:
    """Lower-cased runs of a-z and 0-9; those longer than three characters are stemmed."""
    return tuple(_stem(word) for word in _NOT_A_WORD.sub(" ", text.lower()).split())


def _common_words(prediction: tuple[str, ...], reference: tuple[str, ...]) -> int:
    return (Counter(prediction) & Counter(reference)).total()


def _common_subsequence(prediction: tuple[str, ...], reference: tuple[str, ...]) -> int:
    numbers: dict[str, int] = {}
    first, second = ([numbers.setdefault(word, len(numbers)) for word in x] for x in (prediction, reference))
    return LCSseq.similarity(first, second)


def _rouge(
    predictions: Seq[str],
    references: Seq[str],
    overlap: Callable[[tuple[str, ...], tuple[str, ...]], int],
) -> Rouge:
    if len(predictions) != len(references):
        raise ValueError(f"{len(predictions)} predictions for {len(references)} references")
    precision, recall, f1 = (np.zeros(len(predictions)) for _ in range(3))
    for i, (prediction, reference) in enumerate(zip(predictions, references, strict=True)):
        predicted, expected = tokens(prediction), tokens(reference)
        common = overlap(predicted, expected) if predicted and expected else 0
        if common:
            p, r = common / len(predicted), common / len(expected)
            precision[i], recall[i], f1[i] = p, r, 2 * p * r / (p + r)
    return Rouge(precision, recall, f1)


def rouge_1(predictions: Seq[str], references: Seq[str]) -> Rouge:
    """Overlap of stemmed words, each counted as often as in both; 0 where either text has no word.

    Raises ValueError where the lists differ in length.
    """
    return _rouge(predictions, references, _common_words)


def rouge_l(predictions: Seq[str], references: Seq[str]) -> Rouge:
    """Longest common subsequence of stemmed words (whole text, not per sentence); 0 where either has no word.

    Recall is what TOFU reports (Oblivionis eq. 12). Raises ValueError where the lists differ in length.
    """
    return _rouge(predictions, references, _common_subsequence)
