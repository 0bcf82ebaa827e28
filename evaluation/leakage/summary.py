"""From sampled leakages to what a report states: per question and over all questions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evaluation.leakage import bounds

COLUMNS = ("greedy", "mean", "std", "ed", "max", "mu_lower", "mu_upper", "m_mu", "m_sigma", "m_bin")


@dataclass(frozen=True)
class Terms:
    """On what terms leakage is judged.

    alpha: significance of every bound, in (0, 1/2]; family_wise: divide alpha by the number of questions, so that a
    bound holds for all of them at once (Bonferroni), otherwise for each by itself; rho: weight of the deviation in
    the ED score; leaks_from: a leakage of at least this counts as leaked, for M_bin of a graded leakage function;
    limit: what M_bin of a question may reach before the question counts as leaking.
    """

    alpha: float = 0.01
    family_wise: bool = False
    rho: float = 2.0
    leaks_from: float = 0.5
    limit: float = 0.1

    def __post_init__(self) -> None:
        bounds.check_alpha(self.alpha)
        if not 0 <= self.rho < math.inf:
            raise ValueError(f"rho must be finite and not negative, got {self.rho}")
        if not 0 < self.leaks_from <= 1:
            raise ValueError(f"leaks_from must lie in (0, 1], got {self.leaks_from}")
        if not 0 <= self.limit <= 1:
            raise ValueError(f"limit must lie in [0, 1], got {self.limit}")

    def alpha_of(self, questions: int) -> float:
        """Significance of one question's bound where there are so many questions."""
        return self.alpha / questions if self.family_wise else self.alpha


@dataclass(frozen=True)
class Summary:
    """Leakage of Q questions from n samples each (Scholten et al. 2025, section 4).

    columns: (Q,) arrays by the names of `COLUMNS`; `greedy` is NaN where there is no greedy answer. mu_lower, mu_upper
    hold together, m_mu alone, all with probability 1 − alpha. overall: the mean of each column; `m_bin_share` and
    `greedy_share`, the shares of the questions whose M_bin exceeds the limit and whose greedy answer leaks; `samples`
    and `questions`, how many there were.
    """

    columns: Mapping[str, np.ndarray]
    overall: Mapping[str, float]


def summarise(samples: np.ndarray, greedy: np.ndarray | None, terms: Terms) -> Summary:
    """Summary of leakages (Q, n) in [0, 1] and of the leakage (Q,) of the greedy answers, NaN where there is none.

    Raises ValueError for another shape or a value out of range.
    """
    values = bounds.as_samples(np.atleast_2d(samples))
    count, n = values.shape
    deterministic = np.full(count, np.nan) if greedy is None else np.asarray(greedy, dtype=np.float64)
    if deterministic.shape != (count,):
        raise ValueError(f"{count} questions but greedy leakages of shape {deterministic.shape}")
    alpha = terms.alpha_of(count)
    lower, upper = bounds.expectation_bounds(values, alpha)
    columns = {
        "greedy": deterministic,
        "mean": values.mean(1),
        "std": values.std(1),
        "ed": np.asarray(bounds.ed_score(values, terms.rho)),
        "max": values.max(1),
        "mu_lower": np.asarray(lower),
        "mu_upper": np.asarray(upper),
        "m_mu": np.asarray(bounds.expectation_upper_bound(values, alpha)),
        "m_sigma": np.asarray(bounds.std_upper_bound(values, alpha)),
        "m_bin": np.asarray(bounds.binary_leakage_bound((values >= terms.leaks_from).sum(1), n, alpha)),
    }
    known = ~np.isnan(deterministic)
    overall = {name: float(column.mean()) for name, column in columns.items() if name != "greedy"}
    if known.any():
        overall["greedy"] = float(deterministic[known].mean())
        overall["greedy_share"] = float((deterministic[known] >= terms.leaks_from).mean())
    overall["m_bin_share"] = float((columns["m_bin"] > terms.limit).mean())
    return Summary(columns, overall | {"samples": float(n), "questions": float(count)})
