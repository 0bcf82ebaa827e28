"""How much sampled answers leak: leakage functions, bounds with guarantees, and sampling that may stop early.

Source: Scholten et al. 2025, "A probabilistic perspective on unlearning and alignment for large language models";
Waudby-Smith & Ramdas 2023 for the confidence sequences. A score is the leakage of one sampled answer, in [0, 1];
`oblivionis.leakage_bounds` takes scores to all bounds at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evaluation.leakage.bounds import (
    as_samples,
    binary_leakage_bound,
    ed_score,
    expectation_bounds,
    expectation_upper_bound,
    general_leakage_bound,
    samples_needed,
    std_upper_bound,
)
from evaluation.leakage.diversity import diversity
from evaluation.leakage.functions import NAMES, Asked, LeakageFunction, get, thresholded
from evaluation.leakage.sequential import Decision, SequentialTest, confidence_sequence
from evaluation.leakage.summary import Terms, summarise

__all__ = [
    "NAMES",
    "Asked",
    "Decision",
    "LeakageFunction",
    "SequentialTest",
    "binary_leakage_bound",
    "confidence_sequence",
    "diversity",
    "ed_score",
    "expectation_bounds",
    "expectation_upper_bound",
    "general_leakage_bound",
    "get",
    "samples_needed",
    "std_upper_bound",
    "thresholded",
]


@dataclass(frozen=True, eq=False)
class LeakageBounds:
    """What n sampled scores say about a question, as arrays () for one question and (Q,) for Q of them.

    Source: Scholten et al. 2025, section 4.

    Attributes
    ----------
    mean, std, max : array, in [0, 1]
        Of the scores; std is that of the population.
    ed : array, at least 0
        mean + rho · std, without guarantee.
    mu_lower, mu_upper : array, in [0, 1]
        Bounds on the expected score, which hold together.
    m_mu : array, in [0, 1]
        The upper bound on the expected score alone, which is lower.
    m_sigma : array, at least 0
        Upper bound on the standard deviation.
    m_bin : array, in (0, 1]
        Upper bound on the probability that an answer leaks, with a score of at least `leaks_from`.
    samples : int
        n.
    alpha : float in (0, 1/2]
        Each bound by itself holds with probability at least 1 - alpha for its question; with `family_wise` it was
        divided by Q.
    """

    mean: np.ndarray
    std: np.ndarray
    max: np.ndarray
    ed: np.ndarray
    mu_lower: np.ndarray
    mu_upper: np.ndarray
    m_mu: np.ndarray
    m_sigma: np.ndarray
    m_bin: np.ndarray
    samples: int
    alpha: float


def leakage_bounds(
    scores: ArrayLike,
    alpha: float = 0.01,
    *,
    family_wise: bool = False,
    leaks_from: float = 0.5,
    rho: float = 2.0,
) -> LeakageBounds:
    """Bounds on what answers leak, from any scores of independently sampled answers (Scholten et al. 2025, section 4).

    Each bound is one of the functions of `oblivionis.leakage`, without a partition.

    Parameters
    ----------
    scores : array (n,) or (Q, n), n >= 1, in [0, 1]
        Of one question, or of each of Q questions; it does not matter what scored them. A 1-D array is n answers to one
        question, never one answer to each of n: for those, `scores[:, None]`.
    alpha : float in (0, 1/2]
        Significance.
    family_wise : bool
        A bound holds for all questions at once (Bonferroni).
    leaks_from : float in (0, 1]
        From which score on an answer leaked.
    rho : float, at least 0
        Weight of the deviation in `ed`.

    Returns
    -------
    LeakageBounds

    Raises
    ------
    ValueError
        For scores of another shape, outside [0, 1] or NaN, and for settings out of range.
    """
    values = as_samples(scores)
    terms = Terms(alpha, family_wise, rho, leaks_from)
    found = {name: column.reshape(values.shape[:-1]) for name, column in summarise(values, None, terms).columns.items()}
    del found["greedy"]
    return LeakageBounds(**found, samples=values.shape[-1], alpha=terms.alpha_of(int(np.prod(values.shape[:-1]))))
