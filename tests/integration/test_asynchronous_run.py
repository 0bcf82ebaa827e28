"""Whole runs with late clients on a simulated clock: the real clients, ledger, checkpoints and resume."""

import json
import threading

import numpy as np
import pytest
from support.churn import QUIET
from support.stages import Recorded, execute, new_run

from oblivionis.chain import check_chain
from oblivionis.config import compose as configuration
from oblivionis.errors import RunInterrupted
from oblivionis.runs.directory import RunDirectory

SHORT = ["stages=[finetune,unlearn]", "federation.rounds.unlearn=4", *QUIET]
CLOCK = ["federation.simulated_seconds.distribution=pareto", "federation.simulated_seconds.persistence=0.2"]
BUFFER = ["federation.buffer.size=1", "federation.buffer.concurrency=3"]
ALL = ["federation.fraction_train=1"]


def run_of(folder, name, *overrides, stop_in=None):
    config, run = new_run(folder, name, *SHORT, *overrides)
    if stop_in is not None:
        stop = threading.Event()
        with pytest.raises(RunInterrupted):
            execute(config, run, events=Recorded(stop, stop_in))
        run = RunDirectory.open(run.path)
        config = configuration.from_yaml(run.read_config())
    execute(config, run)
    return run


def rounds(run):
    return [row for row in run.metrics() if row["evaluator"] == "federation"]


def final(run):
    return run.load_checkpoint("unlearn").vector


@pytest.fixture(scope="module")
def asynchronous(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("runs"), "whole", *CLOCK, *BUFFER)


def test_the_ledger_says_where_the_barrier_stood(asynchronous):
    """A line for each exchange: the version, which requests made it, and how many were at work then."""
    entries = check_chain(asynchronous.ledger_path).entries
    barriers = [e for e in entries if e["event"] == "barrier"]
    served = {e["id"]: e["round"] for e in entries if e["event"] == "served"}
    assert {i: e["round"] for e in barriers for i in e["requests"]} == served and served
    assert sum(e["discarded"] for e in barriers) > 0
    steps = {e["round"]: e["version"] - number for number, e in enumerate(barriers, 1)}
    assert all(version == server_round - 1 for server_round, version in steps.items()), "a step each round before it"
    clock = [row["metrics"]["clock_seconds"] for row in rounds(asynchronous) if row["stage"] == "unlearn"]
    assert clock == sorted(clock) and clock[0] > 0


@pytest.mark.parametrize("stop_in", [("finetune", 2), ("unlearn", 3)])
def test_resumed_is_not_stopped(asynchronous, tmp_path, stop_in):
    run = run_of(tmp_path, "stopped", *CLOCK, *BUFFER, stop_in=stop_in)
    assert np.array_equal(final(run), final(asynchronous))
    keys = ("clock_seconds", "discarded", "train-loss")
    numbers = [[[row["metrics"].get(key) for key in keys] for row in rounds(r)] for r in (run, asynchronous)]
    assert numbers[0] == numbers[1]


def test_without_staleness_it_is_the_synchronous_run(tmp_path):
    """The buffer holds all clients, and all take equally long: the same models, requests included."""
    plain = run_of(tmp_path, "plain", *ALL)
    equal = ["federation.simulated_seconds.distribution=lognormal", "federation.simulated_seconds.spread=0"]
    other = run_of(tmp_path, "other", *ALL, *equal, "federation.buffer.size=4")
    assert np.array_equal(final(plain), final(other))
    metrics = [[run.stage_summary(stage)["metrics"] for stage in ("finetune", "unlearn")] for run in (plain, other)]
    assert metrics[0] == metrics[1]
    assert not any("clock_seconds" in row["metrics"] for row in rounds(plain)), "rows as ever without the keys"


def test_a_deadline_leaves_lines_of_who_was_late(tmp_path):
    run = run_of(tmp_path, "deadline", *CLOCK, "federation.deadline=60", "federation.oversample=1.5")
    late = [row for row in rounds(run) if row["metrics"].get("late")]
    assert late and all(len(row["clients"]["late"]) == row["metrics"]["late"] for row in late)
    assert all(row["metrics"]["failures"] == 0 for row in rounds(run)), "to be late is no failure"
    served = [e for e in map(json.loads, run.ledger_path.open()) if e["event"] == "served"]
    assert served, "a FedTU exchange has no deadline"
