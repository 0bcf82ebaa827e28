"""Whole runs with differential privacy: real server and clients on an in-memory grid, tiny data."""

from __future__ import annotations

import io
import json
import math
import threading

import numpy as np
import pytest
from rich.console import Console
from support.churn import QUIET
from support.stages import Recorded, execute, new_run

from oblivionis.erasure.ledger import Ledger
from oblivionis.errors import RunError, RunInterrupted
from oblivionis.reports.run_summary import print_summary
from oblivionis.runs.epsilon import Event, epsilon
from oblivionis.runs.privacy import read_account

FEW = (
    *QUIET,
    "federation.rounds.finetune=1",
    "federation.rounds.retrain=1",
    "federation.rounds.unlearn=2",
    "unlearning.epochs=1",
)


def private(tmp_path, name, *overrides):
    delta = ["privacy.delta=1e-3"] if any(o.startswith("privacy=") for o in overrides) else []
    return new_run(tmp_path, name, *delta, *FEW, *overrides)


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fedadam"])
def test_every_exchange_is_one_release(tmp_path, strategy):
    config, run = private(
        tmp_path, strategy, "privacy=client", f"strategy={strategy}", "unlearning.requests.policy=all_at_round"
    )
    events, _ = execute(config, run)
    assert not events.left_out
    told = read_account(run)
    held = [(s, "unlearn", len(c)) for s, c in events.unlearned] + [(s, "train", len(c)) for s, c in events.trained]
    assert sorted((r["stage"], r["kind"], r["clients"]) for r in told["releases"]) == sorted(held)
    z, asked = told["noise_multiplier"], len(events.unlearned)
    expected = epsilon({Event.of_clients(z, 2, 4): 3, Event.of_clients(z): asked}, 1e-3)
    assert told["lineages"]["finetune and unlearn"]["epsilon"] == pytest.approx(expected) and expected <= 8
    assert {r["id"] for r in told["requests"]} == {r.id for r in Ledger(run.ledger_path) if r.served_round}
    rounds = [row for row in run.metrics() if row["evaluator"] == "federation"]
    assert rounds and all("train-loss" not in row["metrics"] for row in rounds)
    shown = io.StringIO()
    print_summary(run, config, Console(file=shown, width=200))
    assert (
        f"Differential privacy: client level, ε = {expected:.4g} at δ = 0.001, 4 releases, of which" in shown.getvalue()
    )


def test_the_noise_is_in_the_model(tmp_path):
    """With a norm next to nothing but for a round's noise the model does not move; with a loud one by that noise."""
    moved = {}
    for norm in ("1e-9", "1e-2"):
        noise = ("privacy.epsilon=null", "privacy.noise_multiplier=5", f"privacy.clipping_norm={norm}")
        config, run = private(tmp_path, f"norm-{norm}", "privacy=client", *noise, "stages=[finetune]")
        execute(config, run)
        moved[norm] = run.load_checkpoint("finetune").vector
    difference = moved["1e-2"].astype(np.float64) - moved["1e-9"]
    assert np.std(difference) == pytest.approx(5 * 1e-2 / 2, rel=0.02), "z·C/m of the 2 drawn clients"


def test_records_are_hidden_on_the_clients(tmp_path):
    config, run = private(tmp_path, "records", "privacy=record")
    events, _ = execute(config, run)
    assert not events.left_out
    told = read_account(run)
    assert told["level"] == "record" and 0 < told["lineages"]["finetune and unlearn"]["epsilon"] <= 8
    addressed = [sorted(map(str, clients)) for _, clients in [*events.unlearned, *events.trained]]
    assert sorted(sorted(r["of_clients"]) for r in told["releases"]) == sorted(addressed)
    steps = [part["steps"] for r in told["releases"] for part in r["of_clients"].values()]
    assert all(step >= 1 for step in steps)
    for row in run.metrics():
        if row["evaluator"] == "federation":
            assert not {"train-loss"} & set(row["metrics"])
    entries = map(json.loads, run.ledger_path.read_text().splitlines())
    told = [set(entry["told"]) for entry in entries if entry.get("event") == "served"]
    assert told and all(told) and not any(name.startswith(("forget-", "unlearn-loss")) for of in told for name in of)


def test_a_norm_that_follows_the_updates_goes_on_where_a_run_broke_off(tmp_path):
    config, run = private(
        tmp_path,
        "adaptive",
        *("privacy=client", "privacy.clipping=adaptive", "privacy.epsilon=null", "privacy.noise_multiplier=2"),
        *("stages=[finetune]", "federation.rounds.finetune=3"),
    )
    stop = threading.Event()
    with pytest.raises(RunInterrupted):
        execute(config, run, events=Recorded(stop, ("finetune", 3)))
    norm = run.load_checkpoint("finetune").info["clipping_norm"]
    assert norm != config.privacy.clipping_norm and math.isfinite(norm)
    execute(config, run)
    releases = read_account(run)["releases"]
    assert [r["round"] for r in releases] == [1, 2, 3]
    assert releases[2]["clipping_norm"] == norm


def test_a_source_that_spent_too_much_is_refused(tmp_path):
    rounds = ("stages=[finetune]", "federation.rounds.finetune=2")
    config, run = private(tmp_path, "source", "privacy=client", *rounds)
    execute(config, run)
    given = (*rounds, f"start_from={run.path}", "stages=[finetune,unlearn]")
    config, second = private(tmp_path, "second", "privacy=client", "privacy.epsilon=2", *given)
    with pytest.raises(RunError, match="what was spent before is too much"):
        execute(config, second)
    config, third = private(tmp_path, "third", *given)
    with pytest.raises(RunError, match=r"other settings: privacy\.level"):
        execute(config, third)
