"""The account in a run's ledger: nothing lost, nothing twice, and ε as the mechanisms have it."""

from __future__ import annotations

import json

import pytest

from oblivionis.config import compose as configuration
from oblivionis.errors import FileError, RunError
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.epsilon import Event, epsilon
from oblivionis.runs.privacy import FILE, open_account, rate_and_steps, read_account, train_steps, unlearn_steps
from strategies.privacy.private_mean import Release

CLIENT = ("privacy=client", "privacy.epsilon=null", "privacy.noise_multiplier=4", "privacy.delta=1e-3")
RECORD = ("privacy=record", "privacy.epsilon=null", "privacy.noise_multiplier=2", "privacy.delta=1e-4")
HOLDINGS = {0: (20, 2), 1: (40, 0)}


def started(tmp_path, *overrides, name="run"):
    config = configuration.compose("default", overrides)
    run = RunDirectory.create(tmp_path, name)
    run.write_config(configuration.to_yaml(config))
    return config, run


def reuse(run, source):
    facts = {"metrics": {}, "stage": "finetune", "rounds": 2, "reused_from": str(source.path)}
    run.finish_stage("finetune", facts, None)


def train(server_round, z=4.0):
    return Release("train", server_round, 3, 30, z, 1.0)


def unlearn(server_round, z=4.0):
    return Release("unlearn", server_round, 2, None, z, 1.0)


def test_without_privacy_there_is_no_account(tmp_path):
    config, run = started(tmp_path)
    assert open_account(config, run, HOLDINGS, secret=False) is None
    assert read_account(run) is None


def test_finetune_and_unlearn_add_up_and_retrain_stands_alone(tmp_path):
    config, run = started(tmp_path, *CLIENT)
    account = open_account(config, run, HOLDINGS, secret=False)
    for server_round in (1, 2):
        account.release("finetune", train(server_round))
    account.release("retrain", train(1))
    account.release("unlearn", unlearn(1))
    account.release("unlearn", train(1))
    of_model = {Event(2.0, 3, 30): 3, Event(2.0): 1}
    assert account.spent("unlearn") == account.spent("finetune") == epsilon(of_model, 1e-3)
    assert account.spent("retrain") == epsilon({Event(2.0, 3, 30): 1}, 1e-3)
    told = read_account(run)
    assert told["lineages"]["finetune and unlearn"] == {
        "epsilon": epsilon(of_model, 1e-3),
        "epsilon_if_drawing_is_known": epsilon({Event(2.0): 4}, 1e-3),
        "releases": 4,
        "unlearning_exchanges": 1,
    }
    assert [r["epsilon"] for r in told["releases"] if r["stage"] != "retrain"] == sorted(
        r["epsilon"] for r in told["releases"] if r["stage"] != "retrain"
    )


def test_a_request_costs_and_gives_nothing_back(tmp_path):
    config, run = started(tmp_path, *CLIENT)
    account = open_account(config, run, HOLDINGS, secret=False)
    account.release("finetune", train(1))
    account.release("unlearn", unlearn(1))
    account.served({"b", "a"}, 1)
    account.release("unlearn", train(1))
    before, after = epsilon({Event(2.0, 3, 30): 1}, 1e-3), epsilon({Event(2.0, 3, 30): 1, Event(2.0): 1}, 1e-3)
    cost = {"round": 1, "epsilon_before": before, "epsilon_after": after}
    assert read_account(run)["requests"] == [{"id": "a", **cost}, {"id": "b", **cost}]
    assert before < after < account.spent("unlearn")


@pytest.mark.parametrize("secret", [False, True])
def test_a_round_done_again_counts_once_if_its_noise_is_the_same_and_twice_if_not(tmp_path, secret):
    config, run = started(tmp_path, *CLIENT)
    account = open_account(config, run, HOLDINGS, secret=secret)
    for server_round in (1, 2):
        account.release("finetune", train(server_round))
    account.release("unlearn", unlearn(1))
    account.served({"a"}, 1)
    again = open_account(config, run, HOLDINGS, secret=secret)
    assert again.spent("unlearn") == account.spent("unlearn"), "what is on disk is all there is"
    again.roll_back("unlearn", 0)
    again.release("unlearn", unlearn(1))
    again.served({"a"}, 1)
    exchanges = 2 if secret else 1
    assert again.spent("unlearn") == epsilon({Event(2.0, 3, 30): 2, Event(2.0): exchanges}, 1e-3)
    assert [r["id"] for r in read_account(run)["requests"]] == ["a"]
    again.roll_back("finetune", 2)
    assert read_account(run)["lineages"]["finetune and unlearn"]["releases"] == 2 + exchanges


def test_a_release_is_on_disk_when_release_returns(tmp_path):
    config, run = started(tmp_path, *CLIENT)
    open_account(config, run, HOLDINGS, secret=False).release("finetune", train(1))
    assert len(json.loads((run.path / FILE).read_text())["releases"]) == 1


def test_the_noise_is_calibrated_to_what_is_planned_and_more_is_refused(tmp_path):
    config, run = started(
        tmp_path,
        *("privacy=client", "privacy.epsilon=4", "federation.rounds.finetune=2", "federation.rounds.unlearn=1"),
        *("unlearning.requests.extra_rounds=1", "federation.rounds.retrain=1"),
    )
    account = open_account(config, run, HOLDINGS, secret=False)
    z = account.noise_multiplier
    assert account.delta == 1 / 300
    for server_round in (1, 2):
        account.release("finetune", train(server_round, z))
    for server_round in (1, 2):
        account.release("unlearn", unlearn(server_round, z))
        account.release("unlearn", train(server_round, z))
    assert 3.9 < account.spent("unlearn") <= 4.0
    with pytest.raises(RunError, match=r"epsilon=4 is used up: the unlearn exchange of round 3 would make it 4\."):
        account.release("unlearn", unlearn(3, z))
    assert len(read_account(run)["releases"]) == 6, "what was refused was not released"
    assert open_account(config, run, HOLDINGS, secret=False).noise_multiplier == z


@pytest.mark.parametrize("masked", [False, True])
def test_what_is_planned_goes_by_who_may_see_whom_a_round_draws(tmp_path, masked):
    """The account under masks is against the server, which draws: of m drawn clients all m take part. Else m of all."""
    secure = ("federation.secure_aggregation.enabled=true", "unlearning.cover=3")
    config, run = started(
        tmp_path,
        *("privacy=client", "privacy.epsilon=4", "federation.rounds.finetune=3", "stages=[finetune]"),
        *(secure if masked else ()),
    )
    account = open_account(config, run, HOLDINGS, secret=False)
    drawn = config.federation.per_round
    event = Event.of_clients(account.noise_multiplier, drawn, drawn if masked else config.federation.clients)
    assert drawn < config.federation.clients and 3.9 < epsilon({event: 3}, account.delta) <= 4.0


@pytest.mark.slow
def test_what_the_source_of_a_run_spent_is_carried_over(tmp_path):
    config, source = started(tmp_path, *CLIENT, name="source")
    theirs = open_account(config, source, HOLDINGS, secret=False)
    for server_round in (1, 2):
        theirs.release("finetune", train(server_round))
    theirs.release("unlearn", unlearn(1))
    config, run = started(tmp_path, "privacy=client", "privacy.epsilon=6", "privacy.delta=1e-3", name="second")
    run.finish_stage(
        "finetune", {"metrics": {}, "stage": "finetune", "rounds": 2, "reused_from": str(source.path)}, None
    )
    ours = open_account(config, run, HOLDINGS, secret=False)
    assert ours.spent("unlearn") == theirs.spent("unlearn"), "whoever saw its unlearned model saw these records, too"
    rounds = config.federation.rounds.unlearn + config.unlearning.requests.extra_rounds
    for server_round in range(1, rounds + 1):
        ours.release("unlearn", unlearn(server_round, ours.noise_multiplier))
        ours.release("unlearn", train(server_round, ours.noise_multiplier))
    assert 5.85 < ours.spent("unlearn") <= 6.0
    assert {r.get("from") for r in read_account(run)["releases"]} == {str(source.path), None}


def test_a_source_without_an_account_cannot_be_hidden_any_more(tmp_path):
    _, source = started(tmp_path, name="source")
    config, run = started(tmp_path, *CLIENT, name="second")
    run.finish_stage(
        "finetune", {"metrics": {}, "stage": "finetune", "rounds": 2, "reused_from": str(source.path)}, None
    )
    with pytest.raises(RunError, match="trained without differential privacy"):
        open_account(config, run, HOLDINGS, secret=False)


def test_of_records_the_client_counts_that_loses_most(tmp_path):
    config, run = started(tmp_path, *RECORD)
    account = open_account(config, run, HOLDINGS, secret=False)
    account.local("finetune", 1, "train", 1.0, {0: (0.2, 10), 1: (0.1, 20)})
    account.local("finetune", 2, "train", 1.0, {1: (0.1, 20)})
    ways = [{Event(2.0, rate=0.2): 10}, {Event(2.0, rate=0.1): 40}]
    assert account.spent("finetune") == max(epsilon(events, 1e-4) for events in ways)
    account.local("unlearn", 1, "unlearn", 1.0, {0: (1.0, 5)})
    assert account.spent("unlearn") == epsilon({Event(2.0, rate=0.2): 10, Event(2.0): 5}, 1e-4)
    assert read_account(run)["releases"][0]["of_clients"] == {
        "0": {"rate": 0.2, "steps": 10},
        "1": {"rate": 0.1, "steps": 20},
    }


def test_rates_and_steps():
    assert rate_and_steps(20, 4, 5) == (0.2, 25)
    assert rate_and_steps(21, 4, 5) == (4 / 21, 30)
    assert rate_and_steps(3, 4, 5) == (1.0, 5)
    config = configuration.compose(
        "default",
        [
            "training.batch_size=4",
            "training.gradient_accumulation=2",
            "federation.local_epochs=3",
            "unlearning.epochs=2",
        ],
    )
    assert train_steps(config, 16, 16) == (0.5, 6)
    assert train_steps(config, 16, 17) == (0.5, 9), "as if of 16 and of 17"
    assert unlearn_steps(config, 24, 32) == (1 / 3, 6)
    assert unlearn_steps(config, 24, 10) == (0.8, 6), "the retain records take part more often"
    assert unlearn_steps(config, 24, 0) == (1 / 3, 6)


def test_a_target_for_records_is_kept_by_a_client_that_takes_part_in_every_round(tmp_path):
    config, run = started(
        tmp_path,
        *("privacy=record", "privacy.epsilon=5", "federation.rounds.finetune=3", "federation.rounds.retrain=1"),
        *("federation.rounds.unlearn=1", "unlearning.requests.extra_rounds=0"),
    )
    account = open_account(config, run, HOLDINGS, secret=False)
    assert account.delta == 1 / 600
    steps = {client: train_steps(config, held, held) for client, (held, _) in HOLDINGS.items()}
    for server_round in (1, 2, 3):
        account.local("finetune", server_round, "train", 1.0, steps)
    account.local("unlearn", 1, "unlearn", 1.0, {0: unlearn_steps(config, 2, 18)})
    account.local("unlearn", 1, "train", 1.0, {0: train_steps(config, 18, 20)})
    assert 4.5 < account.spent("unlearn") <= 5.0


@pytest.mark.parametrize("edit", ["removed", "emptied", "another delta"])
def test_what_becomes_of_the_file_for_people_changes_no_total(tmp_path, edit):
    config, run = started(tmp_path, *CLIENT)
    account = open_account(config, run, HOLDINGS, secret=False)
    account.release("finetune", train(1))
    told = read_account(run)
    (run.path / FILE).unlink()
    if edit == "emptied":
        (run.path / FILE).write_text("")
    elif edit == "another delta":
        (run.path / FILE).write_text(json.dumps({**told, "delta": 0.5, "releases": []}))
    assert read_account(run) == told
    again = open_account(config, run, HOLDINGS, secret=False)
    again.release("finetune", train(2))
    account.release("finetune", train(2))
    assert again.spent("finetune") == account.spent("finetune") > told["lineages"]["finetune and unlearn"]["epsilon"]
    assert json.loads((run.path / FILE).read_text())["delta"] == told["delta"], "and the file is written anew"


def test_a_line_of_the_account_that_lacks_something_is_told_of(tmp_path):
    config, run = started(tmp_path, *CLIENT)
    open_account(config, run, HOLDINGS, secret=False)
    run.note("release", release={"stage": "finetune", "round": 1, "kind": "train", "clipping_norm": 1.0})
    with pytest.raises(FileError, match=r"requests\.jsonl: line 2: release: release: .*noise_multiplier"):
        open_account(config, run, HOLDINGS, secret=False)


def test_an_account_that_an_earlier_version_kept_goes_on(tmp_path):
    """In `privacy.json` alone: its releases become part of the ledger, once."""
    config, run = started(tmp_path, *CLIENT)
    account = open_account(config, run, HOLDINGS, secret=False)
    account.release("finetune", train(1))
    (run.path / "requests.jsonl").unlink()
    again = open_account(config, RunDirectory(run.path), HOLDINGS, secret=False)
    assert again.spent("finetune") == account.spent("finetune")
    (run.path / FILE).unlink()
    assert read_account(RunDirectory(run.path))["lineages"]["finetune and unlearn"]["releases"] == 1


def test_a_chain_of_runs_spends_what_one_run_would(tmp_path):
    """finetune | unlearn | unlearn, each begun from the run before, against all of it in one account."""

    def releases(stage):
        return [train(1), train(2)] if stage == "finetune" else [unlearn(1), train(1), unlearn(2)]

    stages = ["finetune", "unlearn", "unlearn"]
    config, whole = started(tmp_path, *CLIENT, name="whole")
    one = open_account(config, whole, HOLDINGS, secret=True)
    before = None
    for number, stage in enumerate(stages):
        config, run = started(tmp_path, *CLIENT, name=f"run-{number}")
        if before is not None:
            reuse(run, before)
        account = open_account(config, run, HOLDINGS, secret=True)
        for release in releases(stage):
            one.release(stage, release)
            account.release(stage, release)
        before = run
    assert account.spent("unlearn") == one.spent("unlearn")
    account.served({"a"}, 2)
    (cost,) = read_account(run)["requests"]
    assert cost["epsilon_after"] == pytest.approx(account.spent("unlearn")), "its own exchange, not its ancestor's"
    account.roll_back("unlearn", 0)
    assert account.spent("unlearn") == one.spent("unlearn"), "secret noise: what was released stays released"


@pytest.mark.parametrize("level", ["client", "record"])
def test_a_stage_run_alone_leaves_of_the_target_what_the_others_need(tmp_path, level):
    """As a suite does it: finetune by itself, then unlearn from it, with the noise of one run of both."""
    target = (f"privacy={level}", "privacy.epsilon=8")
    together = open_account(
        *started(tmp_path, *target, "stages=[finetune,unlearn]", name="both"), HOLDINGS, secret=False
    )
    alone = (*target, "stages=[finetune]", "privacy.stages=[finetune,unlearn]")
    first = open_account(*started(tmp_path, *alone, name="alone"), HOLDINGS, secret=False)
    assert first.noise_multiplier == together.noise_multiplier
    greedy = open_account(*started(tmp_path, *target, "stages=[finetune]", name="greedy"), HOLDINGS, secret=False)
    assert greedy.noise_multiplier < first.noise_multiplier
