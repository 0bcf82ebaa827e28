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

    - `mean`, `std`, `max`: of the scores; std is that of the population.
    - `ed`: mean + rho · std, without guarantee.
    - `mu_lower`, `mu_upper`: bounds on the expected score, which hold together.
    - `m_mu`: the upper bound alone, which is lower.
    - `m_sigma`: upper bound on the standard deviation.
    - `m_bin`: upper bound on the probability that an answer leaks, with a score of at least `leaks_from`.
    - `samples`: n.
    - `alpha`: each bound by itself holds with probability at least 1 - alpha for its question; with `family_wise` it
      was divided by Q.
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

    - `scores`: n >= 1 numbers in [0, 1] of one question, (n,), or of each of Q questions, (Q, n); it does not matter
      what scored them.
    - `alpha`: significance, in (0, 1/2].
    - `family_wise`: a bound holds for all questions at once (Bonferroni).
    - `leaks_from`: from which score on an answer leaked, in (0, 1].
    - `rho`: weight of the deviation in `ed`, >= 0.

    Each bound is one of the functions of `oblivionis.leakage`, without a partition. Raises ValueError for scores of
    another shape, outside [0, 1] or NaN, and for settings out of range.
    """
    values = as_samples(scores)
    terms = Terms(alpha, family_wise, rho, leaks_from)
    found = {name: column.reshape(values.shape[:-1]) for name, column in summarise(values, None, terms).columns.items()}
    del found["greedy"]
    return LeakageBounds(**found, samples=values.shape[-1], alpha=terms.alpha_of(int(np.prod(values.shape[:-1]))))
