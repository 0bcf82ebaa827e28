"""Diversity of the answers sampled for one question: one minus their self-BLEU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ORDERS = 4
EPSILON = 0.1


def bleu_against_others(texts: Sequence[str]) -> np.ndarray:
    """BLEU-4 of each text with all others as its references.

    Words are separated by white space; uniform weights, the brevity penalty takes the closest reference length (the
    shorter of two), a count of zero becomes 0.1: exactly NLTK's sentence_bleu with SmoothingFunction().method1.

    Parameters
    ----------
    texts : sequence of n >= 2 str

    Returns
    -------
    array (n,), float64, in [0, 1]
        0 where a text shares no word with any other.

    Raises
    ------
    ValueError
        For fewer than two texts.
    """
    if len(texts) < 2:
        raise ValueError(f"BLEU against the other texts needs at least two texts, got {len(texts)}")
    words = [text.split() for text in texts]
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    numbers: dict[str, int] = {}
    unigrams = np.array([numbers.setdefault(w, len(numbers)) for part in words for w in part], dtype=np.int64)
    owner = np.repeat(np.arange(len(words)), lengths)
    left = np.concatenate([np.arange(n, 0, -1) for n in lengths])  # words from here to the end of the text
    grams, shared = unigrams, np.zeros(len(words), bool)
    logs = np.zeros(len(words))
    for order in range(1, ORDERS + 1):
        starts = np.flatnonzero(left >= order)
        if order > 1:
            # An n-gram is the (n-1)-gram at its start and its last word.
            pairs = grams[starts] * max(len(numbers), 1) + unigrams[starts + order - 1]
            grams = np.zeros_like(unigrams)
            grams[starts] = np.unique(pairs, return_inverse=True)[1]
        matches = _clipped_matches(owner[starts], grams[starts], len(words))
        if order == 1:
            shared = matches > 0
        total = np.maximum(lengths - order + 1, 1)
        logs += np.log(np.where(matches > 0, matches, EPSILON) / total) / ORDERS
    return np.where(shared, _brevity_penalty(lengths) * np.exp(logs), 0.0)


def _clipped_matches(owner: np.ndarray, grams: np.ndarray, texts: int) -> np.ndarray:
    """Per text the sum over its n-grams of their count, at most the largest count in any other text; (texts,)."""
    if not grams.size:
        return np.zeros(texts, dtype=np.int64)
    keys, counts = np.unique(grams * texts + owner, return_counts=True)
    gram, text = np.divmod(keys, texts)
    order = np.lexsort((-counts, gram))
    gram, text, counts = gram[order], text[order], counts[order]
    # Of each n-gram the entries stand together, the largest count first: for it the second is the largest of others.
    first = np.flatnonzero(np.diff(gram, prepend=-1))
    sizes = np.diff(first, append=len(gram))
    in_others = np.repeat(counts[first], sizes)
    in_others[first] = np.where(sizes > 1, counts[np.minimum(first + 1, len(gram) - 1)], 0)
    return np.bincount(text, weights=np.minimum(counts, in_others), minlength=texts).astype(np.int64)


def _brevity_penalty(lengths: np.ndarray) -> np.ndarray:
    """min(1, exp(1 - r/c)) with the other length r closest to c, the shorter of two equally close ones; 0 for c = 0."""
    order = np.argsort(lengths, kind="stable")
    ranked = lengths[order].astype(np.float64)
    shorter = np.concatenate([[-np.inf], ranked[:-1]])
    longer = np.concatenate([ranked[1:], [np.inf]])
    closest = np.where(ranked - shorter <= longer - ranked, shorter, longer)
    penalty = np.zeros(len(lengths))
    penalty[order] = np.exp(np.minimum(0.0, 1 - closest / np.maximum(ranked, 1))) * (ranked > 0)
    return penalty


def self_bleu(texts: Sequence[str]) -> float:
    """Self-BLEU: the mean of `bleu_against_others`.

    Parameters
    ----------
    texts : sequence of n >= 2 str

    Returns
    -------
    float in [0, 1]
        1 where all texts are equal and have at least four words.

    Raises
    ------
    ValueError
        For fewer than two texts.
    """
    return float(bleu_against_others(texts).mean())


def diversity(texts: Sequence[str]) -> float:
    """Diversity of texts: 1 − self-BLEU; the larger, the less they repeat each other.

    Parameters
    ----------
    texts : sequence of n >= 2 str

    Returns
    -------
    float in [0, 1]

    Raises
    ------
    ValueError
        For fewer than two texts.
    """
    return 1.0 - self_bleu(texts)
