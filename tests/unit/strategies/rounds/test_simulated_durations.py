import math
import random

import numpy as np
import pytest
from scipy import stats

from strategies.rounds.simulated_durations import Durations


def drawn(distribution, spread, persistence=0.0, count=4000):
    durations = Durations(distribution, 30.0, spread, persistence, seed=7)
    return np.array([durations.seconds("train", "train", client, 1) for client in range(count)])


@pytest.mark.parametrize(
    ("distribution", "spread", "expected"),
    [
        ("lognormal", 1.0, stats.lognorm(s=1.0, scale=30.0)),
        ("pareto", 0.5, stats.pareto(b=2.0, scale=30.0 / 2**0.5)),
        ("pareto", 1.0, stats.pareto(b=1.0, scale=15.0)),
    ],
)
@pytest.mark.parametrize("persistence", [0.0, 0.5, 1.0])
def test_the_distribution_is_the_one_that_is_named(distribution, spread, expected, persistence):
    """SciPy's, whichever part of the spread is the client's own; its median is the one given."""
    assert expected.median() == pytest.approx(30.0)
    assert stats.kstest(drawn(distribution, spread, persistence), expected.cdf).pvalue > 0.01


def test_equal_times_and_the_same_ones_on_every_run():
    assert set(drawn("lognormal", 0.0)) == set(drawn("pareto", 0.0)) == {30.0}
    assert np.array_equal(drawn("pareto", 1.0), drawn("pareto", 1.0))


def test_persistence_is_the_correlation_of_a_clients_times():
    """Of the logarithms between two rounds over many clients."""
    for persistence in (0.0, 0.5, 1.0):
        durations = Durations("lognormal", 1.0, 1.0, persistence, seed=1)
        first, second = (
            np.log([durations.seconds("train", "train", client, server_round) for client in range(3000)])
            for server_round in (1, 2)
        )
        assert np.corrcoef(first, second)[0, 1] == pytest.approx(persistence, abs=0.05)


def test_a_client_is_as_slow_in_another_stage_where_all_is_its_own():
    durations = Durations("pareto", 1.0, 1.0, 1.0)
    assert durations.seconds("train", "train", 3, 1) == durations.seconds("unlearn", "train.unlearn", 3, 9)


@pytest.mark.parametrize(
    "wrong",
    [("weibull", 1, 1, 1), ("pareto", 0, 1, 1), ("pareto", 1, -1, 1), ("pareto", 1, math.inf, 1), ("pareto", 1, 1, 2)],
)
def test_values_out_of_range(wrong):
    with pytest.raises(ValueError, match="expected"):
        Durations(*wrong)


def test_a_client_that_is_slow_by_one_law_is_slow_by_the_other():
    """Both grow with the same normal number, so that a seed gives the same order."""
    laws = [Durations(law, 10.0, 0.7, 0.5, seed=3) for law in ("lognormal", "pareto")]
    seconds = [[law.seconds("finetune", "train", client, 1) for client in range(50)] for law in laws]
    order, other = (sorted(range(50), key=times.__getitem__) for times in seconds)
    assert order == other


def test_every_message_has_a_time_of_its_own():
    """By stage, kind, client and round, as far as the time is not the client's in all of them."""
    asked = [("train", "train", 1, 1), ("unlearn", "train", 1, 1), ("train", "query", 1, 1), ("train", "train", 2, 1)]
    asked.append(("train", "train", 1, 2))
    assert len({Durations("pareto", 1.0, 1.0, 0.5, seed=3).seconds(*message) for message in asked}) == 5
    assert len({Durations("pareto", 1.0, 1.0, 1.0, seed=3).seconds(*message) for message in asked}) == 2


def test_the_smallest_number_of_a_generator_gives_a_time(monkeypatch):
    """0 has no quantile of its own."""
    monkeypatch.setattr("random.Random.random", lambda _: 0.0)
    assert 0 < Durations("pareto", 1.0, 1.0, 0.5).seconds("train", "train", 1, 1) < math.inf


def test_times_go_by_the_seed_the_client_the_stage_and_the_kind():
    """By the inverse of the normal distribution at Python's random numbers, the client's own part and the message's."""

    def normal(*labels):
        return stats.norm.ppf(random.Random("/".join(map(str, labels))).random() + 2.0**-54)

    for seed, stage, kind, client, server_round in ((1, "a", "train", 4, 2), (2, "b", "train.unlearn", 5, 7)):
        made = Durations("lognormal", 10.0, 0.7, 0.36, seed=seed).seconds(stage, kind, client, server_round)
        own = normal(seed, "seconds", "client", client)
        z = 0.6 * own + 0.8 * normal(seed, "seconds", stage, kind, client, server_round)
        assert made == pytest.approx(10 * math.exp(0.7 * z), rel=1e-9)
