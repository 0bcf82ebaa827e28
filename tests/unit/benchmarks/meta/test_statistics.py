"""AUC, thresholds, agreement and their intervals against definitions, and what must not change them."""

import itertools

import numpy as np
import pytest
from scipy.stats import kendalltau

from benchmarks.meta import statistics
from benchmarks.meta.statistics import Bootstrap

FEDERATIONS, MODELS, STATES = 7, 4, 3
OTHERS = [1, 2, 3]


@pytest.fixture
def drawn():
    return Bootstrap.drawn(FEDERATIONS, 300, 0.95, 0)


@pytest.fixture
def values():
    """Rounded, so that there are ties; the first model of each federation is somewhat higher."""
    random = np.random.default_rng(3)
    found = random.normal(size=(FEDERATIONS, MODELS, STATES))
    found[:, 0] += 1
    return found.round(1)


@pytest.fixture
def label():
    """1 of the model that knows, 0 of the others."""
    found = np.zeros((FEDERATIONS, MODELS, STATES))
    found[:, 0] = 1
    return found


def pairs(knowing, others):
    """AUC by its definition: every pair, a tie counts half."""
    compared = [(k > o) + (k == o) / 2 for k, o in itertools.product(knowing, others) if k == k and o == o]
    return sum(compared) / len(compared)


# -- AUC -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [[1], [2, 3], OTHERS])
@pytest.mark.parametrize("state", range(STATES))
def test_auc_is_the_share_of_pairs_in_order(values, drawn, others, state):
    values[2, 1, state] = values[4, 0, state] = np.nan
    found = statistics.auc(values, state, others, drawn)
    assert found.value == pytest.approx(pairs(values[:, 0, state], values[:, others, state].ravel()))
    assert found.low <= found.value <= found.high and found.low < found.high


def test_auc_within_compares_models_of_one_federation_only(values, drawn):
    won = [(v[0, 0] > o) + (v[0, 0] == o) / 2 for v in values for o in v[1:, 0]]
    assert statistics.auc_within(values, 0, OTHERS, drawn).value == pytest.approx(np.mean(won))
    moved = values + 100 * np.arange(FEDERATIONS)[:, None, None]
    assert statistics.auc_within(moved, 0, OTHERS, drawn) == statistics.auc_within(values, 0, OTHERS, drawn)
    assert statistics.auc(moved, 0, OTHERS, drawn) != statistics.auc(values, 0, OTHERS, drawn)


def test_a_resample_is_the_auc_of_the_federations_in_it(values):
    counts = np.array([[3, 0, 1, 0, 0, 2, 1.0]])
    resample = np.repeat(values, counts[0].astype(int), axis=0)
    found = statistics.auc(values, 1, OTHERS, Bootstrap(counts, 0.95))
    assert found.low == found.high == pytest.approx(pairs(resample[:, 0, 1], resample[:, 1:, 1].ravel()))


# -- the threshold -------------------------------------------------------------------------------------------------


def accuracy(limit, knowing, others):
    return (np.mean(knowing > limit) + np.mean(others <= limit)) / 2


def test_no_threshold_has_a_larger_balanced_accuracy():
    random = np.random.default_rng(0)
    for _ in range(50):
        knowing, others = random.normal(1, 1, 6).round(1), random.normal(0, 1, 11).round(1)
        limit = statistics.threshold(knowing, others)
        best = max(accuracy(t, knowing, others) for t in np.arange(-5, 5, 0.1) + 0.05)
        assert accuracy(limit, knowing, others) == pytest.approx(best)


def test_of_equal_thresholds_the_widest_gap_then_the_lowest_is_taken():
    assert statistics.threshold(np.array([9.0, 10.0]), np.array([0.0, 1.0])) == 5
    assert statistics.threshold(np.array([2.0, 20.0]), np.array([1.0, 9.0])) == 14.5
    # 1 | 2 and 3 | 4 are equally good and equally wide
    assert statistics.threshold(np.array([2.0, 4.0]), np.array([1.0, 3.0])) == 1.5


def test_what_does_not_tell_gives_no_threshold():
    assert statistics.threshold(np.array([1.0, 1.0]), np.array([1.0])) == -np.inf
    assert statistics.threshold(np.array([0.0]), np.array([1.0])) == -np.inf
    assert np.isnan(statistics.threshold(np.array([np.nan]), np.array([1.0])))


def test_balanced_accuracy_by_the_thresholds_of_the_others(values, drawn):
    values[1, 2, 2] = np.nan
    for state, found in enumerate(statistics.balanced_accuracy(values, drawn)):
        right = {True: [], False: []}
        for i, federation in enumerate(values):
            rest = np.delete(values, i, axis=0)
            limit = statistics.threshold(rest[:, 0, 0], rest[:, 1:, 0].ravel())
            for model, value in enumerate(federation[:, state]):
                if value == value:
                    right[model == 0].append((value > limit) == (model == 0))
        assert found.value == pytest.approx((np.mean(right[True]) + np.mean(right[False])) / 2)
        assert found.low <= found.value <= found.high


def test_a_threshold_does_not_move_with_the_values(label, drawn):
    moved = label.copy()
    moved[:, :, 1] += 2  # all are said to know
    moved[:, :, 2] -= 2  # none is
    assert [e.value for e in statistics.balanced_accuracy(moved, drawn)] == [1, 0.5, 0.5]
    assert [statistics.auc(moved, state, OTHERS, drawn).value for state in range(STATES)] == [1, 1, 1]


# -- agreement -----------------------------------------------------------------------------------------------------


def test_kendall_is_scipys():
    random = np.random.default_rng(5)
    rows = random.integers(0, 6, (8, 12)).astype(float)
    rows[2, 3] = rows[2, 4] = rows[5, 0] = np.nan
    rows[7] = 1
    found = statistics.kendall(rows)
    for i, j in itertools.combinations(range(8), 2):
        both = np.isfinite(rows[i]) & np.isfinite(rows[j])
        expected = kendalltau(rows[i][both], rows[j][both]).statistic
        assert found[i, j] == pytest.approx(expected, nan_ok=True)
    assert np.isnan(found[7]).all()


def test_agreement_is_the_mean_over_pairs_that_have_one(values, drawn):
    values[3] = 0.5
    rows = np.delete(values, 3, axis=0).reshape(FEDERATIONS - 1, -1)
    taus = [kendalltau(a, b).statistic for a, b in itertools.combinations(rows, 2)]
    found, count = statistics.agreement(values, drawn)
    assert found.value == pytest.approx(np.mean(taus)) and count == len(taus) == 15
    assert found.low <= found.value <= found.high


def test_a_federation_that_is_drawn_twice_does_not_agree_with_itself(values):
    counts = np.array([[2, 1, 0, 0, 0, 0, 0.0]])
    found, _ = statistics.agreement(values, Bootstrap(counts, 0.95))
    assert found.low == pytest.approx(kendalltau(values[0].ravel(), values[1].ravel()).statistic)


# -- invariants ----------------------------------------------------------------------------------------------------


def test_a_monotone_change_moves_neither_auc_nor_agreement(values, drawn):
    changed = np.exp(values) + 7
    for state in range(STATES):
        for of in (statistics.auc, statistics.auc_within):
            assert of(values, state, OTHERS, drawn) == of(changed, state, OTHERS, drawn)
    assert statistics.agreement(values, drawn) == statistics.agreement(changed, drawn)


def test_turning_the_sign_turns_the_auc(values, drawn):
    there, back = (statistics.auc(sign * values, 0, OTHERS, drawn) for sign in (1, -1))
    assert there.value == pytest.approx(1 - back.value) and there.low == pytest.approx(1 - back.high)


def test_the_label_itself_is_perfect(label, drawn):
    for found in (
        *(statistics.auc(label, state, OTHERS, drawn) for state in range(STATES)),
        statistics.auc_within(label, 0, OTHERS, drawn),
        *statistics.balanced_accuracy(label, drawn),
    ):
        assert (found.value, found.low, found.high) == (1, 1, 1)
    assert statistics.agreement(label, drawn)[0].value == pytest.approx(1)


def test_a_constant_says_nothing(label, drawn):
    constant = np.full_like(label, 3)
    for found in (
        statistics.auc(constant, 0, OTHERS, drawn),
        statistics.auc_within(constant, 0, OTHERS, drawn),
        *statistics.balanced_accuracy(constant, drawn),
    ):
        assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)
    found, count = statistics.agreement(constant, drawn)
    assert np.isnan([found.value, found.low, found.high]).all() and count == 0


def test_what_is_never_defined_has_no_statistic(label, drawn):
    nothing = np.full_like(label, np.nan)
    for found in (statistics.auc(nothing, 0, OTHERS, drawn), *statistics.balanced_accuracy(nothing, drawn)):
        assert np.isnan([found.value, found.low, found.high]).all()
    assert statistics.agreement(nothing, drawn)[1] == 0


def test_the_bootstrap_is_that_of_its_seed(values):
    def interval(seed):
        return statistics.auc(values, 0, OTHERS, Bootstrap.drawn(FEDERATIONS, 200, 0.9, seed))

    assert interval(1) == interval(1) != interval(2)
    counts = Bootstrap.drawn(FEDERATIONS, 200, 0.9, 1).counts
    assert counts.shape == (200, FEDERATIONS) and (counts.sum(axis=1) == FEDERATIONS).all()


def test_an_interval_covers_as_often_as_it_says():
    random = np.random.default_rng(8)
    covered = 0
    for seed in range(150):
        values = random.normal(size=(30, 2, 1))
        values[:, 0] += 1  # true AUC: Φ(1/√2)
        found = statistics.auc(values, 0, [1], Bootstrap.drawn(30, 300, 0.9, seed))
        covered += found.low <= 0.7602 <= found.high
    assert 0.8 <= covered / 150 <= 0.97
