"""What is told of a run's differential privacy: in the summary, and on a certificate."""

from __future__ import annotations

import pytest

from oblivionis.config import compose as configuration
from oblivionis.reports import privacy as report
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.epsilon import Event, epsilon
from oblivionis.runs.privacy import open_account
from strategies.private_mean import Release


@pytest.fixture
def run(tmp_path):
    given = ["privacy=client", "privacy.epsilon=null", "privacy.noise_multiplier=4", "privacy.delta=1e-3"]
    config = configuration.compose("default", given)
    run = RunDirectory.create(tmp_path, "run")
    account = open_account(config, run, {}, secret=True)
    account.release("finetune", Release("train", 1, 3, 30, 4.0, 1.0))
    account.release("retrain", Release("train", 1, 3, 30, 4.0, 1.0))
    account.release("unlearn", Release("unlearn", 1, 1, None, 4.0, 1.0))
    account.served({"mine"}, 1)
    return run


def test_a_line_for_each_lineage_of_models(run):
    model = epsilon({Event(2.0, 3, 30): 1, Event(2.0): 1}, 1e-3)
    known, alone = epsilon({Event(2.0): 2}, 1e-3), epsilon({Event(2.0, 3, 30): 1}, 1e-3)
    one = epsilon({Event(2.0): 1}, 1e-3)
    assert report.sentences(run) == [
        f"Differential privacy: client level, ε = {model:.4g} at δ = 0.001, 2 releases, of which 1 exchange of "
        f"unlearning; ε = {known:.4g} for who knows which clients were drawn",
        f"Differential privacy (retrain): client level, ε = {alone:.4g} at δ = 0.001, 1 release; ε = {one:.4g} for who "
        "knows which clients were drawn",
    ]


def test_a_certificate_tells_what_its_request_cost(run):
    found = report.of_request(run, "mine")
    before, after = epsilon({Event(2.0, 3, 30): 1}, 1e-3), epsilon({Event(2.0, 3, 30): 1, Event(2.0): 1}, 1e-3)
    assert found["epsilon before the request"] == before
    assert found["epsilon after its exchange"] == found["epsilon of the final model"] == after
    sentence = report.certified(found)
    assert f"raised ε from {before:.4g} to {after:.4g}. What was released before stays released" in sentence
    assert f"all that one client holds no more than ε = {after:.4g} at δ = 0.001 allows" in sentence
    other = report.of_request(run, "other")
    assert other["epsilon before the request"] is None and "raised" not in report.certified(other)


def test_a_request_that_was_served_again_cost_what_its_newest_exchange_did(tmp_path):
    given = ["privacy=client", "privacy.epsilon=null", "privacy.noise_multiplier=4", "privacy.delta=1e-3"]
    run = RunDirectory.create(tmp_path, "run")
    account = open_account(configuration.compose("default", given), run, {}, secret=True)
    for server_round in (1, 2):
        account.release("unlearn", Release("unlearn", server_round, 1, None, 4.0, 1.0))
        account.served({"mine", "other"} if server_round == 1 else {"mine"}, server_round)
    once, twice = (epsilon({Event(2.0): count}, 1e-3) for count in (1, 2))
    found = report.of_request(run, "mine")
    assert (found["epsilon before the request"], found["epsilon after its exchange"]) == (once, twice)
    found = report.of_request(run, "other")
    assert (found["epsilon before the request"], found["epsilon after its exchange"]) == (0.0, once)


def test_noise_that_a_seed_gives_is_told_of(tmp_path):
    config = configuration.compose("default", ["privacy=client"])
    run = RunDirectory.create(tmp_path, "run")
    open_account(config, run, {}, secret=False).release("finetune", Release("train", 1, 3, 30, 9.0, 1.0))
    told = "The noise came from the run's seed"
    assert report.sentences(run)[-1].startswith(told)
    run = RunDirectory.create(tmp_path, "other")
    open_account(config, run, {}, secret=True).release("finetune", Release("train", 1, 3, 30, 9.0, 1.0))
    assert not any(line.startswith(told) for line in report.sentences(run))


def test_without_privacy_nothing_is_told(tmp_path):
    run = RunDirectory.create(tmp_path, "run")
    assert report.sentences(run) == [] and report.of_request(run, "mine") is None
