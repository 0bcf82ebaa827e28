"""How well a metric tells, what it says after an attack, and whether federations agree on it; with intervals.

Models of one federation share records, partition and base, so a resample draws whole federations. Everywhere `values`
(federations, models, states) are the values of one metric, higher where the model should know; the first model knows,
the others do not; the first state is that before attacks. NaN is a value that is undefined, and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Estimate:
    """A statistic with its percentile bootstrap interval over federations; NaN where it is undefined."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Bootstrap:
    """counts (resamples, federations): how often each federation is in each resample; confidence of intervals."""

    counts: np.ndarray
    confidence: float

    @classmethod
    def drawn(cls, federations: int, resamples: int, confidence: float, seed: int) -> Bootstrap:
        """As many federations as there are, with replacement, `resamples` times."""
        drawn = np.random.default_rng(seed).multinomial(federations, np.full(federations, 1 / federations), resamples)
        return cls(drawn.astype(np.float64), confidence)

    def estimate(self, value: float, resampled: np.ndarray) -> Estimate:
        """resampled (resamples,): the statistic of each; those without it (NaN) are left out of the interval."""
        known = resampled[np.isfinite(resampled)]
        if not np.isfinite(value) or not known.size:
            return Estimate(value, np.nan, np.nan)
        low, high = np.quantile(known, [(1 - self.confidence) / 2, (1 + self.confidence) / 2])
        return Estimate(value, float(low), float(high))

    def ratio(self, above: np.ndarray, below: np.ndarray) -> Estimate:
        """Σ above / Σ below, both of one number per federation (n,) or per pair of federations (n, n)."""
        form = "rf,f->r" if above.ndim == 1 else "rf,fg,rg->r"
        inputs = (self.counts,) if above.ndim == 1 else (self.counts, self.counts)

        def total(parts: np.ndarray) -> np.ndarray:
            return np.einsum(form, inputs[0], parts, *inputs[1:], optimize=True)

        return self.estimate(float(_ratio(above.sum(), below.sum())), _ratio(total(above), total(below)))


def _ratio(above: ArrayLike, below: ArrayLike) -> np.ndarray:
    """Element by element; NaN where there is nothing below."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.asarray(below) > 0, np.divide(above, below), np.nan)


def wins(knowing: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each pair of federations: how many of the second's others lie below the first's knowing model, and how many
    there are, (n, n) each; a tie counts half.

    knowing (n,), others (n, k).
    """
    signs = np.sign(knowing[:, None, None] - others[None])
    return np.nansum((signs + 1) / 2, axis=2), np.isfinite(signs).sum(axis=2).astype(np.float64)


def auc(values: np.ndarray, state: int, others: list[int], drawn: Bootstrap) -> Estimate:
    """P(knowing above other) + P(tie)/2 over all pairs of models of any federations, in one state; [0, 1].

    others: which of the models that do not know.
    """
    return drawn.ratio(*wins(values[:, 0, state], values[:, others, state]))


def auc_within(values: np.ndarray, state: int, others: list[int], drawn: Bootstrap) -> Estimate:
    """The same over pairs of one federation: compared with a model of the same records, clients and base."""
    won, count = wins(values[:, 0, state], values[:, others, state])
    return drawn.ratio(won.diagonal(), count.diagonal())


def threshold(knowing: np.ndarray, others: np.ndarray) -> float:
    """Above which value a model is said to know, so that the balanced accuracy is largest; NaN without both kinds.

    Halfway between two neighbouring values; of several, where these lie farthest apart, then the lowest. −∞ where
    no value in between is better than one half.
    """
    knowing, others = knowing[np.isfinite(knowing)], others[np.isfinite(others)]
    if not knowing.size or not others.size:
        return np.nan
    known = np.unique(np.concatenate([knowing, others]))
    middle, gap = (known[1:] + known[:-1]) / 2, np.diff(known)
    right = (knowing[:, None] > middle).mean(axis=0) + (others[:, None] <= middle).mean(axis=0)
    if not middle.size or right.max() <= 1:
        return -np.inf
    best = np.flatnonzero(np.isclose(right, right.max(), rtol=0, atol=1e-12))
    return float(middle[best[gap[best].argmax()]])


def balanced_accuracy(values: np.ndarray, drawn: Bootstrap) -> list[Estimate]:
    """In each state (true positive rate + true negative rate) / 2, by a threshold from models before any attack.

    The threshold of a federation is chosen on all other federations. Resamples draw federations with their thresholds.
    """
    count, models, states = values.shape
    limits = np.full(count, np.nan)
    for i in range(count):
        rest = np.delete(values[:, :, 0], i, axis=0)
        limits[i] = threshold(rest[:, 0], rest[:, 1:].ravel())
    judged = np.isfinite(values) & ~np.isnan(limits)[:, None, None]
    right = judged & ((values > limits[:, None, None]) == (np.arange(models) == 0)[None, :, None])
    found = []
    for state in range(states):
        rates = []
        for kind in (slice(0, 1), slice(1, None)):
            hits, asked = (a[:, kind, state].sum(axis=1).astype(float) for a in (right, judged))
            rates.append((_ratio(hits.sum(), asked.sum()), _ratio(drawn.counts @ hits, drawn.counts @ asked)))
        (value, resampled), (other, also) = rates
        found.append(drawn.estimate(float(value + other) / 2, (resampled + also) / 2))
    return found


def agreement(values: np.ndarray, drawn: Bootstrap) -> tuple[Estimate, int]:
    """Mean Kendall τ-b of two federations' orders of all models in all states, and of how many pairs it is defined.

    A pair is judged by the values that both have; it has no τ where one federation has the same value throughout.
    """
    taus = kendall(values.reshape(len(values), -1))
    defined = np.isfinite(taus) & ~np.eye(len(taus), dtype=bool)
    found = drawn.ratio(np.where(defined, taus, 0.0), defined.astype(np.float64))
    return found, int(defined.sum()) // 2


def kendall(rows: np.ndarray) -> np.ndarray:
    """(n, m) -> (n, n): Kendall τ-b of every two rows over the columns that both have; NaN where it is undefined."""
    first, second = np.triu_indices(rows.shape[1], 1)
    signs = np.sign(rows[:, first] - rows[:, second])
    known = np.isfinite(signs).astype(np.float64)
    signs = np.nan_to_num(signs)
    untied = np.abs(signs) @ known.T
    return _ratio(signs @ signs.T, np.sqrt(untied * untied.T))
