"""Do the leakage bounds hold on the answers of a real model, and how much do they give away?

    oblivionis audit leakage RUN --samples 1024 --out AUDIT
    python -m benchmarks.coverage AUDIT [--draws 64] [--times 4000] [--alpha 0.05 0.01]

What the audit found about a question stands for everything the model answers. `draws` answers at a time are drawn from
it with replacement, which is what sampling the model anew would be if it answered exactly so; every bound is computed
from these alone and held against the truth about all. A bound of significance α may fail in that share of the draws.
Printed per bound: the worst question's share of failures, what that share surely exceeds when the chance of the draws
is allowed for (Clopper and Pearson's lower limit, wrong for one of all questions in 0.1 % of the cases), and how far
the bound lies from the truth on average.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from scipy import stats

from evaluation.leakage.summary import Terms, summarise

BOUNDS = ("m_bin", "m_mu", "mu_lower", "mu_upper", "m_sigma")
PIECE = 500
_DOUBT = 1e-3


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of one bound: failures (Q,) among `times` draws of each question, and `slack`, its mean distance to the truth."""

    failures: np.ndarray
    times: int
    slack: float

    @property
    def worst(self) -> float:
        return float(self.failures.max()) / self.times

    def at_least(self) -> float:
        """What the worst question's share of failures would exceed in ever more draws, but for a chance of 0.1 %."""
        worst, level = int(self.failures.max()), _DOUBT / len(self.failures)
        return float(stats.beta.ppf(level, worst, self.times - worst + 1)) if worst else 0.0


def read_leakages(audit: Path) -> np.ndarray:
    """(Q, N) leakages of an audit. Raises ValueError where its questions have different numbers of answers."""
    table = pq.read_table(audit / "leakage.parquet").to_pydict()
    by_question: dict[str, list[float]] = {}
    for question, leakage in zip(table["question"], table["leakage"], strict=True):
        by_question.setdefault(question, []).append(leakage)
    if len({len(found) for found in by_question.values()}) != 1:
        raise ValueError(f"{audit}: an audit that stopped early has no common number of answers")
    return np.array(list(by_question.values()), dtype=np.float64)


def coverage(leakages: np.ndarray, draws: int, times: int, terms: Terms, seed: int = 0) -> dict[str, Coverage]:
    """By name of the bound, from `draws` of each row of `leakages` (Q, N), `times` times.

    Bounds of one question; `terms.family_wise` has no meaning here.
    """
    rng = np.random.default_rng(seed)
    truth = {
        "m_bin": (leakages >= terms.leaks_from).mean(1),
        "m_sigma": leakages.std(1),
        **dict.fromkeys(("m_mu", "mu_lower", "mu_upper"), leakages.mean(1)),
    }
    failures = {name: np.zeros(len(leakages), int) for name in BOUNDS}
    slack = dict.fromkeys(BOUNDS, 0.0)
    for row, known in enumerate(leakages):
        for start in range(0, times, PIECE):
            count = min(PIECE, times - start)
            columns = summarise(rng.choice(known, (count, draws)), None, terms).columns
            for name in BOUNDS:
                above = columns[name] - truth[name][row]
                gap = -above if name == "mu_lower" else above
                failures[name][row] += (gap < -1e-12).sum()
                slack[name] += gap.sum() / (times * len(leakages))
    return {name: Coverage(failures[name], times, float(slack[name])) for name in BOUNDS}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("audit", type=Path, help="folder of an `oblivionis audit leakage`")
    parser.add_argument("--draws", type=int, default=64)
    parser.add_argument("--times", type=int, default=4000)
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.05, 0.01])
    options = parser.parse_args(arguments)
    leakages = read_leakages(options.audit)
    title = f"{len(leakages)} questions of {leakages.shape[1]} answers, {options.draws} drawn {options.times} times"
    table = Table(
        "alpha", "bound", "worst share of failures", "surely above", "mean distance to the truth", title=title
    )
    for alpha in options.alpha:
        for name, found in coverage(leakages, options.draws, options.times, Terms(alpha=alpha)).items():
            table.add_row(f"{alpha:g}", name, f"{found.worst:.4f}", f"{found.at_least():.4f}", f"{found.slack:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
