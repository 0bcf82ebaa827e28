"""A run at a glance says what the run's own files say, and why it cannot."""

import json
import os
import socket

import numpy as np
import psutil
import pytest
from support.reports import make_run

from oblivionis.config import compose as configuration
from oblivionis.reports import run_summary
from oblivionis.runs.directory import Checkpoint
from oblivionis.runs.run_status import DAMAGED, FINISHED, RUNNING, STOPPED, glance


def test_it_says_what_the_composed_configuration_says(tmp_path):
    entropy = ["unlearning.entropy.forget=0.25", "unlearning.entropy.retain=-1"]
    run, config = make_run(tmp_path, overrides=["strategy=fedadam", "unlearning=simnpo", "seed=7", *entropy])
    found = glance(run.path)
    choices = (config.model.name, config.data.name, config.strategy.name, run_summary.method(config), config.seed)
    assert (found.model, found.data, found.strategy, found.method, found.seed) == choices
    assert "entropy(0.25, -1)" in found.method
    assert found.state == FINISHED and found.current is None
    for stage, metrics in found.metrics.items():
        assert metrics == run.stage_summary(stage)["metrics"]
    assert found.value("unlearn", "forget_quality") == 0.125 and found.value("local", "forget_quality") is None
    newest = max(p.stat().st_mtime for p in run.path.rglob("*") if p.is_file())
    assert found.changed == pytest.approx(newest, abs=1)


@pytest.mark.parametrize(
    ("more", "clients", "total"), [([], 2, 2), (["federation.clients=5", "federation.local_clients=3"], 5, 3)]
)
def test_how_far_it_came(tmp_path, more, clients, total):
    stages = "stages=[finetune,retrain,unlearn,local]"
    run, config = make_run(tmp_path, ["finetune"], overrides=[stages, "federation.rounds.retrain=4", *more])
    run.save_checkpoint(Checkpoint("retrain", 3, np.zeros(2, np.float32), {}, {}), keep=1)
    row = {"stage": "local", "moment": "end", "evaluator": "tofu", "metrics": {}}
    run.append_metrics([{**row, "round": 1}, {**row, "round": 1}, {**row, "round": 2}])
    found = glance(run.path)
    assert config.federation.clients == clients
    words = ["finetune ✓", "retrain 3/4", "unlearn 0/2", f"local 2/{total}"]
    assert [stage.as_text() for stage in found.stages] == words
    assert found.state == STOPPED and found.current.stage == "retrain"


def holder(run, pid, host=None, started=None):
    started = psutil.Process(pid).create_time() if started is None else started
    facts = {"pid": pid, "host": host or socket.gethostname(), "started": started}
    (run.path / "running.json").write_text(json.dumps(facts))


def test_who_runs_it(tmp_path):
    run, _ = make_run(tmp_path, ["finetune"])
    holder(run, os.getppid())
    assert (glance(run.path).state, glance(run.path).note) == (RUNNING, f"process {os.getppid()}")
    holder(run, os.getppid(), started=1.0)
    assert glance(run.path).state == STOPPED, "another process has got that number since"
    holder(run, 1, host="elsewhere")
    assert glance(run.path).state == RUNNING and "elsewhere" in glance(run.path).note


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.yaml", "stages: [finetune\n", "config.yaml"),
        ("config.yaml", "stages: [../../secret]\n", "unknown stage '../../secret'"),
        ("config.yaml", "seed: high\n", "seed: expected `int`"),
        ("config.yaml", "- 1\n", "it names no stages"),
        ("config.yaml", "model: " + "[" * 5000 + "\n", "config.yaml"),
        ("config.yaml", "#" * 1_100_000, "larger than a configuration"),
        ("stages/finetune.json", "{}", "metrics"),
    ],
)
def test_a_damaged_run_says_what_is_damaged(tmp_path, file, content, said):
    run, _ = make_run(tmp_path, ["finetune"])
    (run.path / file).write_text(content)
    found = glance(run.path)
    assert found.state == DAMAGED and said in found.note, found.note


def test_a_configuration_without_most_keys_will_do(tmp_path):
    (tmp_path / "config.yaml").write_text("stages: [finetune]\nmodel: {name: '2024'}\n")
    found = glance(tmp_path)
    assert (found.state, found.model, found.data, found.method, found.seed) == (STOPPED, "2024", "", "", None)
    assert [stage.as_text() for stage in found.stages] == ["finetune 0/0"]


def test_every_configuration_that_is_written_can_be_read(tmp_path):
    for number, experiment in enumerate(configuration.list_experiments()):
        config = configuration.compose(experiment)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.yaml").write_text(configuration.to_yaml(config))
        found = glance(folder)
        assert (found.state, found.model, found.data) == (STOPPED, config.model.name, config.data.name)
