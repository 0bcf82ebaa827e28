"""What is told of a run's differential privacy: in the summary, and on a certificate."""

from __future__ import annotations

import pytest

from oblivionis.config import compose as configuration
from oblivionis.files import write_json
from oblivionis.reports import privacy as report
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.epsilon import Event, epsilon
from oblivionis.runs.privacy import open_account
from strategies.privacy.private_mean import Release


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


@pytest.mark.slow
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


def account(**more):
    spent = {"epsilon": 2.0, "epsilon_if_drawing_is_known": 3.0, "releases": 1, "unlearning_exchanges": 2}
    known = {"level": "client", "delta": 1e-5, "units": 4, "target_epsilon": None, "noise_multiplier": 1.0}
    return {**known, "lineages": {"finetune and unlearn": spent}, "requests": [], "releases": [], **more}


def told_of(folder, **more):
    run = RunDirectory.create(folder, "run")
    write_json(run.path / "privacy.json", account(**more))
    return run


@pytest.mark.parametrize(
    ("level", "known", "more"),
    [
        ("client", 3.0, "; ε = 3 for who knows which clients were drawn"),
        ("client", 2.0002, ""),
        ("client", 2.0003, "; ε = 2 for who knows which clients were drawn"),
        ("record", 3.0, ""),
    ],
)
def test_who_knows_who_was_drawn_learns_more(tmp_path, level, known, more):
    spent = {"epsilon": 2.0, "epsilon_if_drawing_is_known": known, "releases": 1, "unlearning_exchanges": 2}
    run = told_of(tmp_path, level=level, noise="secret", lineages={"finetune and unlearn": spent})
    assert report.sentences(run) == [
        f"Differential privacy: {level} level, ε = 2 at δ = 1e-05, 1 release, of which 2 exchanges of unlearning{more}"
    ]


def test_an_account_without_releases_says_nothing_and_one_without_a_word_on_its_noise_doubts_it(tmp_path):
    assert report.sentences(told_of(tmp_path / "a", lineages={}, noise="seed")) == []
    assert report.sentences(told_of(tmp_path / "b"))[-1].startswith("The noise came from the run's seed")


@pytest.mark.parametrize("level", ["client", "record"])
def test_what_a_certificate_is_told(tmp_path, level):
    served = [{"id": name, "round": n, "epsilon_before": n, "epsilon_after": n + 1.0} for n, name in enumerate("aba")]
    found = report.of_request(told_of(tmp_path, level=level, requests=served, noise="secret"), "a")
    known = {"epsilon for who knows who was drawn": 3.0} if level == "client" else {}
    assert found == {
        "level": level,
        "delta": 1e-5,
        "epsilon before the request": 2,
        "epsilon after its exchange": 3.0,
        "epsilon of the final model": 2.0,
        **known,
        "noise": "secret",
    }
    who = "all that one client holds" if level == "client" else "a single record"
    drawn = "; who knows which clients took part, as this page tells, at most ε = 3" if level == "client" else ""
    assert report.certified(found) == (
        f"Whoever sees the final model learns of {who} no more than ε = 2 at δ = 1e-05 allows (differential privacy, "
        f"{level} level){drawn}. The exchange that served the request raised ε from 2 to 3. What was released before "
        "stays released: forgetting takes none of its ε back."
    )
