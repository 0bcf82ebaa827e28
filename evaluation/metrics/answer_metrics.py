"""Metrics of one answer, from the likelihoods of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CONVENTIONS = ("geometric", "arithmetic")


def probability(mean_nll: float | np.ndarray) -> np.ndarray:
    """P(a|q)^{1/|a|} = exp(-mean answer-token NLL), in [0, 1] (Oblivionis eq. 10)."""
    return np.exp(-np.asarray(mean_nll, dtype=np.float64))


def truth_ratio(
    right: float | np.ndarray, wrong: Sequence[float] | np.ndarray, convention: str = "geometric"
) -> np.ndarray:
    """Wrong over right: how much likelier the wrong answers are, in [0, inf] (Oblivionis eq. 13).

    right (...): mean NLL of the paraphrased answer; wrong (..., E): mean NLLs of E wrong answers. geometric:
    exp(-mean of the wrong NLLs) in the numerator (the public TOFU code); arithmetic: mean of exp(-NLL) (the paper).
    Raises ValueError for an unknown convention or no wrong answers.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"unknown truth ratio convention {convention!r}, expected {' or '.join(CONVENTIONS)}")
    right, wrong = np.asarray(right, dtype=np.float64), np.asarray(wrong, dtype=np.float64)
    if wrong.ndim == 0 or wrong.shape[-1] == 0:
        raise ValueError("the truth ratio needs at least one wrong answer")
    if convention == "geometric":
        return np.exp(right - wrong.mean(-1))
    return np.exp(right[..., None] - wrong).mean(-1)


def extraction_strength(correct: Sequence[bool] | np.ndarray) -> float:
    """1 - k/|y| for the smallest k from which on every teacher-forced argmax is right, in [0, 1].

    Raises ValueError for an empty answer.
    """
    hits = np.asarray(correct, dtype=bool)
    if hits.size == 0:
        raise ValueError("extraction strength of an empty answer is undefined")
    misses = np.flatnonzero(~hits)
    return 1.0 - (int(misses[-1]) + 1 if misses.size else 0) / hits.size


def exact_memorization(correct: Sequence[bool] | np.ndarray) -> float:
    """Share of teacher-forced argmax tokens that are right, in [0, 1]. Raises ValueError for an empty answer."""
    hits = np.asarray(correct, dtype=bool)
    if hits.size == 0:
        raise ValueError("exact memorisation of an empty answer is undefined")
    return float(hits.mean())
