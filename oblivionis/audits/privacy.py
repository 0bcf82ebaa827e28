"""ε from below: what an attacker's guesses about canaries prove against a claim of differential privacy."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


def epsilon_lower_bound(
    inside: ArrayLike, outside: ArrayLike, delta: float, *, confidence: float = 0.95, threshold: float | None = None
) -> float:
    """An ε that no mechanism at δ is below, up to an error with probability 1 − confidence; 0 where nothing is shown.

    inside, outside: scores (n,), (m,) of canaries that took part and of such that did not, one independent trial each;
    higher means a guess of `inside`. From how many exceed `threshold`: max of ln((TPR − δ)/FPR) and ln((TNR − δ)/FNR)
    with Clopper and Pearson's one-sided bounds in the place of the rates (Jagielski, Ullman and Oprea 2020). None: the
    threshold that does best on the first half of the trials is judged on the second half. Raises ValueError for values
    out of range, or with less than two scores on a side where a threshold is sought.
    """
    within, without = (np.asarray(scores, dtype=np.float64).reshape(-1) for scores in (inside, outside))
    if not 0 <= delta < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"delta is {delta} and confidence {confidence}, expected 0 <= delta < 1 and 0 < confidence < 1"
        )
    if min(within.size, without.size) < (2 if threshold is None else 1) or np.isnan([*within, *without]).any():
        raise ValueError(f"{within.size} and {without.size} scores: too few, or not all of them are numbers")
    if threshold is None:
        halves = [(scores[: scores.size // 2], scores[scores.size // 2 :]) for scores in (within, without)]
        (known_in, within), (known_out, without) = halves
        candidates = np.unique(np.concatenate([known_in, known_out]))
        candidates = candidates[np.linspace(0, candidates.size - 1, min(candidates.size, 200)).astype(int)]
        found = [_bound(known_in > t, known_out > t, delta, confidence) for t in candidates]
        threshold = float(candidates[int(np.argmax(found))])
    return _bound(within > threshold, without > threshold, delta, confidence)


def _bound(hits: np.ndarray, alarms: np.ndarray, delta: float, confidence: float) -> float:
    """From which canaries that took part, and which that did not, were guessed to be inside.

    Four bounds on rates, each of which fails with a quarter of the probability.
    """
    each = (1 - confidence) / 4
    ways = [(hits.sum(), hits.size, alarms.sum(), alarms.size)]
    ways.append((alarms.size - alarms.sum(), alarms.size, hits.size - hits.sum(), hits.size))
    best = 0.0
    for right, of_right, wrong, of_wrong in ways:
        low = float(stats.beta.ppf(each, right, of_right - right + 1)) if right else 0.0
        high = float(stats.beta.ppf(1 - each, wrong + 1, of_wrong - wrong)) if wrong < of_wrong else 1.0
        if low > delta:
            best = max(best, math.log((low - delta) / high))
    return best
