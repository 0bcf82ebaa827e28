"""Comparison with the retrained model: whether a model knows more, or less, of the forget questions.

A model far *below* the retrained one does not merely not know an answer, it avoids it: that is itself a sign of the
record (the Streisand effect).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

OVER_UNLEARNED, STILL_KNOWN, NEAR, UNDECIDED = "over-unlearned", "still known", "near", "undecided"

FACTOR = 2.0
LEVEL = 0.01
LEAST_QUESTIONS = 7
"""Fewest questions that can be significant: n differences of one sign have the p-value 2^-n."""


@dataclass(frozen=True)
class Verdict:
    """A measure of a model and of the retrained model, larger where the true answers are likelier.

    Attributes
    ----------
    value, oracle : float, at least 0
        Of the model and of the retrained model.
    p_below, p_above : float
        P-values of the one-sided Wilcoxon signed-rank tests that the model's values per question lie below, above the
        retrained model's.
    questions : int
        How many were compared.
    """

    value: float
    oracle: float
    p_below: float
    p_above: float
    questions: int

    @property
    def verdict(self) -> str:
        """Verdict by effect size and significance.

        A model that does not differ from the retrained one is called over-unlearned with probability LEVEL at most.

        Returns
        -------
        str
            "over-unlearned": less than 1/FACTOR of the retrained model's value and p_below <= LEVEL; "still known":
            more than FACTOR times it and p_above <= LEVEL; "undecided": as far away, but not significant; else "near".
        """
        if self.value < self.oracle / FACTOR:
            return OVER_UNLEARNED if self.p_below <= LEVEL else UNDECIDED
        if self.value > self.oracle * FACTOR:
            return STILL_KNOWN if self.p_above <= LEVEL else UNDECIDED
        return NEAR

    @property
    def significance(self) -> str:
        """Verdict by significance alone, for a measure that is far from 0 also where nothing is known; never "near"."""
        if self.value > self.oracle and self.p_above <= LEVEL:
            return STILL_KNOWN
        return OVER_UNLEARNED if self.value < self.oracle and self.p_below <= LEVEL else UNDECIDED


def judge_probability(losses: Sequence[float] | np.ndarray, oracle: Sequence[float] | np.ndarray) -> Verdict | None:
    """Verdict on the mean probability exp(−loss) of the true answers (Oblivionis eq. 10).

    Parameters
    ----------
    losses, oracle : array (n,)
        Mean answer-token NLL of each question, nats, of the model and of the retrained one. A question with a NaN is
        left out; an infinite loss is a probability of 0.

    Returns
    -------
    Verdict or None
        None where no question is left.

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    return _judge(-np.asarray(losses, np.float64), -np.asarray(oracle, np.float64), np.mean)


def judge_truth_ratio(ratios: Sequence[float] | np.ndarray, oracle: Sequence[float] | np.ndarray) -> Verdict | None:
    """Verdict on the median of 1/R, how many times as likely as the wrong answers the right one is.

    Not on the mean of min(R, 1/R) that tables show: that is small both for a model that knows the answer and for one
    that avoids it.

    Parameters
    ----------
    ratios, oracle : array (n,), at least 0
        Truth ratios R = wrong/right (Oblivionis eq. 13); NaN as in `judge_probability`.

    Returns
    -------
    Verdict or None
    """
    with np.errstate(divide="ignore"):
        return _judge(-np.log(np.asarray(ratios, np.float64)), -np.log(np.asarray(oracle, np.float64)), np.median)


def judge_recall(recalls: Sequence[float] | np.ndarray, oracle: Sequence[float] | np.ndarray) -> Verdict | None:
    """Verdict on the mean recall.

    Parameters
    ----------
    recalls, oracle : array (n,) in [0, 1]
        Such as ROUGE-L recall or leakage; NaN as in `judge_probability`.

    Returns
    -------
    Verdict or None
    """
    with np.errstate(divide="ignore"):
        return _judge(np.log(np.asarray(recalls, np.float64)), np.log(np.asarray(oracle, np.float64)), np.mean)


def _judge(logs: np.ndarray, oracle: np.ndarray, average: Callable[[np.ndarray], Any]) -> Verdict | None:
    """The verdict on the `average` of exp(logs) and exp(oracle), both (n,) and paired by question.

    The tests use the order of the differences only, so infinite ones count as the largest.
    """
    if logs.shape != oracle.shape:
        raise ValueError(f"{len(logs)} questions of the model, {len(oracle)} of the retrained one")
    known = ~(np.isnan(logs) | np.isnan(oracle))
    logs, oracle = logs[known], oracle[known]
    if not logs.size:
        return None
    with np.errstate(invalid="ignore"):
        differences = np.where(logs == oracle, 0.0, logs - oracle)
    differences = np.clip(differences, -1e300, 1e300)
    below, above = _p_values(differences)
    with np.errstate(over="ignore"):
        return Verdict(float(average(np.exp(logs))), float(average(np.exp(oracle))), below, above, logs.size)


def _p_values(differences: np.ndarray) -> tuple[float, float]:
    """P-values of the one-sided Wilcoxon tests that the differences lie below, above 0; 1 where nothing differs."""
    if not differences.any():
        return 1.0, 1.0
    from scipy.stats import wilcoxon  # a client's process starts without scipy

    test: Any = wilcoxon(np.stack([differences, -differences]), alternative="less", axis=1)
    below, above = test.pvalue.tolist()
    return below, above
