"""Metrics of a single answer, from the likelihoods of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CONVENTIONS = ("geometric", "arithmetic")


def probability(mean_nll: float | np.ndarray) -> np.ndarray:
    """Length-normalised probability of an answer, P(a|q)^{1/|a|} = exp(−mean NLL) (Oblivionis eq. 10).

    Parameters
    ----------
    mean_nll : float or array
        Mean negative log-likelihood of the answer tokens, nats.

    Returns
    -------
    array of the same shape, float64, in [0, 1]
    """
    return np.exp(-np.asarray(mean_nll, dtype=np.float64))


def truth_ratio(
    right: float | np.ndarray, wrong: Sequence[float] | np.ndarray, convention: str = "geometric"
) -> np.ndarray:
    """Truth ratio: how much likelier the wrong answers are than the right one (Oblivionis eq. 13).

    Parameters
    ----------
    right : float or array (...)
        Mean NLL of the paraphrased answer, nats.
    wrong : array (..., E)
        Mean NLLs of E >= 1 wrong answers.
    convention : {"geometric", "arithmetic"}
        The numerator: exp(−mean of the wrong NLLs), as in the public TOFU code, or the mean of exp(−NLL), as in the
        paper.

    Returns
    -------
    array (...), float64, in [0, inf]

    Raises
    ------
    ValueError
        For an unknown convention or no wrong answers.
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
    """Extraction strength: 1 − k/|y| for the smallest k from which on every teacher-forced argmax is right.

    Parameters
    ----------
    correct : array (T,), bool
        Whether the argmax at each answer token is that token.

    Returns
    -------
    float in [0, 1]

    Raises
    ------
    ValueError
        For an empty answer.
    """
    hits = np.asarray(correct, dtype=bool)
    if hits.size == 0:
        raise ValueError("extraction strength of an empty answer is undefined")
    misses = np.flatnonzero(~hits)
    return 1.0 - (int(misses[-1]) + 1 if misses.size else 0) / hits.size


def exact_memorization(correct: Sequence[bool] | np.ndarray) -> float:
    """Exact memorisation: the share of answer tokens whose teacher-forced argmax is right.

    Parameters
    ----------
    correct : array (T,), bool

    Returns
    -------
    float in [0, 1]

    Raises
    ------
    ValueError
        For an empty answer.
    """
    hits = np.asarray(correct, dtype=bool)
    if hits.size == 0:
        raise ValueError("exact memorisation of an empty answer is undefined")
    return float(hits.mean())
