"""How often bounds hold on an audit's answers: against binomial sums, and a bound that does not hold is caught."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from benchmarks import coverage as module
from benchmarks.coverage import BOUNDS, Coverage, coverage, main, read_leakages
from evaluation.leakage import bounds
from evaluation.leakage.summary import Terms, summarise

DRAWS, TIMES = 20, 400


@pytest.fixture(scope="module")
def leakages() -> np.ndarray:
    """Two questions: 30 % of the answers leak in full, and leakages of all sizes."""
    return np.stack([np.repeat([1.0, 0.0], [30, 70]), np.random.default_rng(0).beta(2, 5, 100)])


def written(folder, leakages) -> None:
    questions = np.repeat([f"q{i}" for i in range(len(leakages))], [len(row) for row in leakages])
    pq.write_table(pa.table({"question": questions, "leakage": np.concatenate(leakages)}), folder / "leakage.parquet")


def test_the_binary_bounds_failures_are_a_binomial_sum(leakages):
    found = coverage(leakages[:1], DRAWS, TIMES, Terms(alpha=0.05))["m_bin"]
    hits = np.arange(DRAWS + 1)
    fails = np.asarray(bounds.binary_leakage_bound(hits, DRAWS, 0.05)) < 0.3
    expected = stats.binom.pmf(hits, DRAWS, 0.3)[fails].sum()
    assert 0 < expected <= 0.05
    assert abs(found.worst - expected) < 4 * np.sqrt(expected / TIMES)
    assert found.at_least() < expected


def test_no_bound_fails_more_often_than_it_may(leakages):
    found = coverage(leakages, DRAWS, TIMES, Terms(alpha=0.05))
    assert tuple(found) == BOUNDS
    for name, one in found.items():
        assert one.at_least() <= 0.05, name
        assert 0 < one.slack < 1, name


def test_a_bound_that_does_not_hold_is_told(leakages, monkeypatch):
    def without_margin(samples, greedy, terms):
        honest = summarise(samples, greedy, terms)
        columns = dict(honest.columns) | {"m_mu": honest.columns["mean"]}
        return type(honest)(columns, honest.overall)

    monkeypatch.setattr(module, "summarise", without_margin)
    found = coverage(leakages, DRAWS, TIMES, Terms(alpha=0.05))
    assert found["m_mu"].at_least() > 0.05 >= found["m_bin"].at_least()


def test_what_the_worst_question_surely_exceeds():
    assert Coverage(np.array([0, 0]), 100, 0.0).at_least() == 0.0
    limit = Coverage(np.array([10, 0]), 100, 0.0).at_least()
    assert stats.binom.sf(9, 100, limit) == pytest.approx(0.0005)


def test_an_audits_answers_are_read_by_question(tmp_path, leakages, capsys):
    written(tmp_path, leakages)
    np.testing.assert_array_equal(read_leakages(tmp_path), leakages)
    main([str(tmp_path), "--draws", "5", "--times", "20", "--alpha", "0.1"])
    assert "2 questions of 100 answers, 5 drawn 20 times" in " ".join(capsys.readouterr().out.split())


def test_an_audit_that_stopped_early_is_refused(tmp_path, leakages):
    written(tmp_path, [leakages[0], leakages[1][:50]])
    with pytest.raises(ValueError, match="stopped early"):
        read_leakages(tmp_path)
