"""Every test that a sentence or a mark rests on, by simulation: where nothing differs it says so in 95 % of the cases.

Two models that are alike: what one says of a record could as well be said by the other. Or two groups of seeds, or
records, of one distribution. A test may find a difference in at most so many of the cases as its level says.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

from benchmarks.federated.comparison import Pair
from evaluation.metrics import retrained_comparison
from evaluation.metrics.membership import LEAST_RECORDS, auc_difference
from evaluation.metrics.retrained_comparison import (
    OVER_UNLEARNED,
    STILL_KNOWN,
    judge_probability,
    judge_recall,
    judge_truth_ratio,
)
from evaluation.metrics.tofu import forget_quality
from evaluation.ruler import rank_significance, statistics
from evaluation.ruler.rank_significance import ABOVE, BELOW, rank_test
from oblivionis.measures.membership import report as membership_report
from oblivionis.reports import verdicts

CASES = 2000
KINDS = {
    "normal": lambda rng, *shape: rng.normal(size=shape),
    "skewed": lambda rng, *shape: rng.lognormal(0.0, 1.2, shape),
    "heavy tails": lambda rng, *shape: rng.standard_t(1.5, shape),
    "ties": lambda rng, *shape: rng.integers(0, 3, shape).astype(float),
    "constant": lambda rng, *shape: np.zeros(shape),
}


def most(level: float, cases: int = CASES) -> int:
    """So many of `cases` that a test of this level finds more with a probability of 1e-4."""
    return int(binom.ppf(1 - 1e-4, cases, level))


def alike(kind: str, rng: np.random.Generator, records: int, shift: float = 0.0, spread: float = 1.0) -> np.ndarray:
    """(CASES, 2, records): what two models say of each record; what it is like, and what each adds, are of one kind."""
    common, own = KINDS[kind](rng, CASES, 1, records), KINDS[kind](rng, CASES, 2, records)
    return shift + spread * (0.6 * common + 0.4 * own)


@pytest.mark.parametrize(
    ("kind", "members", "others"),
    [("normal", 2, 20), *((kind, 8, 8) for kind in KINDS), ("normal", 8, 20), ("skewed", 20, 20)],
)
def test_differences_of_aucs(kind: str, members: int, others: int) -> None:
    """Members above the others, whose scores lie five times as far apart; with fewer than eight nothing is said."""
    rng = np.random.default_rng(members + others)
    x, y = alike(kind, rng, members, shift=1.5), alike(kind, rng, others, spread=5.0)
    if min(members, others) < LEAST_RECORDS:
        assert auc_difference((x[0, 0], y[0, 0]), (x[0, 1], y[0, 1])) is None
        return
    found = [auc_difference((x[i, 0], y[i, 0]), (x[i, 1], y[i, 1])) for i in range(CASES)]
    p = np.array([f.p_value for f in found if f is not None])
    for level in (0.05, 0.05 / 6):
        assert (p <= level).sum() <= most(level)
    assert sum(f is not None and not f.low <= 0 <= f.high for f in found) <= most(0.05)


@pytest.mark.parametrize(("kind", "questions"), [("normal", 7), ("skewed", 9), ("heavy tails", 20), ("ties", 14)])
@pytest.mark.slow
def test_words_on_the_knowledge_of_answers(kind: str, questions: int) -> None:
    """Each of the two words for a model that differs, and the two-sided test that the outcome counts."""
    losses = np.abs(alike(kind, np.random.default_rng(questions), questions)) * 3
    found = [judge_probability(*pair) for pair in losses]
    words = [f.verdict for f in found if f is not None]
    assert max(words.count(OVER_UNLEARNED), words.count(STILL_KNOWN)) <= most(retrained_comparison.LEVEL)
    two_sided = np.array([2 * min(f.p_below, f.p_above) for f in found if f is not None])
    assert (two_sided <= 0.05).sum() <= most(0.05)


@pytest.mark.slow
def test_words_on_recall_and_truth_ratios() -> None:
    values = expit(alike("heavy tails", np.random.default_rng(1), 8))[: CASES // 4]
    by_recall = [found.significance for a, b in values if (found := judge_recall(a, b)) is not None]
    by_ratio = [found.verdict for a, b in values if (found := judge_truth_ratio(1 / a, 1 / b)) is not None]
    for words in (by_recall, by_ratio):
        assert max(words.count(OVER_UNLEARNED), words.count(STILL_KNOWN)) <= most(
            retrained_comparison.LEVEL, len(values)
        )


@pytest.mark.parametrize(("kind", "questions"), [("normal", 2), ("normal", 20), ("ties", 8), ("constant", 8)])
@pytest.mark.slow
def test_forget_quality(kind: str, questions: int) -> None:
    ratios = KINDS[kind](np.random.default_rng(questions), CASES, 2, questions)
    assert sum(forget_quality(*pair)[0] <= 0.05 for pair in ratios) <= most(0.05)


@pytest.mark.parametrize(
    ("kind", "records"), [("uniform", 2), ("uniform", 6), ("ends", 20), ("ties", 20), ("constant", 20)]
)
@pytest.mark.slow
def test_mean_ranks(kind: str, records: int) -> None:
    """Records that lie among the retained ones as these do: ranks symmetric about 0.5."""
    rng = np.random.default_rng(records)
    draw = {
        "uniform": rng.uniform(size=(CASES, records)),
        "ends": rng.beta(0.3, 0.3, (CASES, records)),
        "ties": rng.integers(0, 4, (CASES, records)) / 3,
        "constant": np.full((CASES, records), 0.5),
    }
    words = [rank_test(ranks).verdict for ranks in draw[kind]]
    assert sum(word in (ABOVE, BELOW) for word in words) <= most(rank_significance.LEVEL)


@pytest.mark.parametrize(
    ("kind", "mine", "theirs"),
    [("normal", 3, 3), ("normal", 2, 20), ("skewed", 2, 20), ("ties", 2, 2), ("ties", 5, 20), ("constant", 3, 3)],
)
def test_values_of_suites(kind: str, mine: int, theirs: int) -> None:
    """Seeds of one distribution; normal ones also where one side's lie five times as far apart."""
    rng = np.random.default_rng(mine + theirs)
    for spread in (1.0, 0.2, 5.0) if kind == "normal" else (1.0,):
        a, b = spread * KINDS[kind](rng, CASES, mine), KINDS[kind](rng, CASES, theirs)
        pairs = [Pair((), *sides) for sides in zip(a, b, strict=True)]
        assert sum(abs(pair.difference) > pair.margin() for pair in pairs) <= most(0.05), spread


@pytest.mark.slow
def test_means_of_few_datasets() -> None:
    """The mixed model of three datasets with ten seeds each, whose means lie far apart."""
    rng, cases = np.random.default_rng(0), 100
    values = rng.normal(size=(cases, 3, 1)) + 0.5 * rng.normal(size=(cases, 3, 10))
    groups = np.repeat(np.arange(3), 10).tolist()
    found = [statistics.mixed_model(v.ravel(), groups) for v in values]
    assert sum((f.signed_rank.p if f.p is None else f.p) <= 0.05 for f in found) <= most(0.05, cases)


@pytest.mark.slow
def test_all_tests_of_the_outcome_together() -> None:
    """By none of N tests: with 12 records to forget and 12 of the holdout, any of six tells two models apart in 5 %."""
    rng, cases = np.random.default_rng(3), 300
    losses, ratios, others = (alike("skewed", rng, 12) for _ in range(3))
    attacks = [f"membership_auc_{name}" for name in ("loss", "zlib", "min_k_20")]
    told = 0
    for i in range(cases):
        found = {"prob": judge_probability(*losses[i]), "truth_ratio": judge_truth_ratio(*ratios[i])}
        metrics = {"forget_quality": forget_quality(*ratios[i])[0]}
        for attack in attacks:
            noise = 0.3 * rng.normal(size=(2, 12))
            difference = auc_difference(
                (-losses[i, 0] + noise[0], -others[i, 0]), (-losses[i, 1] + noise[1], -others[i, 1])
            )
            assert difference is not None
            metrics[f"{attack}_p"] = difference.p_value
        tests = verdicts.p_values(
            {k: v for k, v in found.items() if v is not None},
            {"unlearn": metrics, "retrain": dict.fromkeys(attacks, 0.5)},
        )
        assert len(tests) == 6
        told += bool(verdicts.telling(tests))
    assert 0 < told <= most(membership_report.LEVEL, cases)
