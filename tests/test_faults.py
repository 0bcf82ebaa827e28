"""Machines of a deployment fail, with real processes: what docs/reliability.md promises. In two runs, for the time."""

import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from deployed import Deployed
from inprocess import InProcessGrid
from processes import PROJECT, until
from test_stages import Recorded

from oblivionis import config as configuration
from oblivionis.client_app import app
from oblivionis.node import NodeFolder
from oblivionis.requests import PENDING, Ledger
from oblivionis.runs import RunDirectory
from oblivionis.server_app import serve

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")]

EXAMPLE = PROJECT / "docs" / "examples" / "three-hospitals"
HOSPITALS = EXAMPLE / "hospitals.yaml"
QUICK = "federation.local_epochs=1 evaluation.every=0"
ROUND_S = 240
NANS = """\
import numpy
import flwr.app
honest = flwr.app.Array
flwr.app.Array = lambda values: honest(numpy.full_like(values, numpy.nan))
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with Deployed(tmp_path_factory.mktemp("faults") / "lab") as lab:
        for partition, hospital in enumerate(("harbour", "hill", "meadow")):
            shutil.copy(EXAMPLE / hospital / "patients.jsonl", lab.node(partition) / "data")
        lab.up()
        yield lab


def run_of(lab, name):
    return RunDirectory(lab.server / "runs" / name)


def rounds(run, stage):
    """Who did what in each complete round of a stage."""
    found = [r for r in run.metrics() if r["stage"] == stage and r["evaluator"] == "federation"]
    return {r["round"]: r["clients"] for r in found}


def reached(lab, name, stage, round):
    """Wait for the end of a round."""
    run = run_of(lab, name)
    assert until(lambda: round in rounds(run, stage), ROUND_S, every=0.2), lab.everything_said()


def kill_server_app(lab):
    (process,) = [p for p in lab._family("superlink") if "flwr-serverapp" in " ".join(p.cmdline())]
    process.kill()


def resumed(lab, name):
    told = lab.flwr("run", PROJECT, "lab", "--run-config", f'resume="runs/{name}"', "--format", "json")
    return json.loads(told[told.index("{") :])["run-id"]


def test_the_server_fails_and_the_run_goes_on_to_the_same_model(lab, tmp_path):
    settings = f"{QUICK} stages=[finetune] federation.rounds.finetune=3"
    first = lab.submit(HOSPITALS, f"name=cut {settings}")
    reached(lab, "cut", "finetune", 1)
    kill_server_app(lab)
    assert lab.finish(first) == "finished:failed"
    second = resumed(lab, "cut")
    reached(lab, "cut", "finetune", 2)
    lab.kill("superlink")
    lab.restart("superlink")
    lab.wait_online(3)
    assert lab.finish(second) == "finished:failed", "Flower gives up what ran"
    assert lab.finish(resumed(lab, "cut")) == "finished:completed", lab.everything_said()
    assert sorted(rounds(run_of(lab, "cut"), "finetune")) == [1, 2, 3], "no round is lost, none counts twice"

    overrides = [*settings.split(), f"data.nodes={lab.folder}", f"output={tmp_path}", "name=whole"]
    config = configuration.compose(str(HOSPITALS), overrides)
    whole = RunDirectory.create(Path(config.output), config.name)
    whole.write_config(configuration.to_yaml(config))
    serve(config, InProcessGrid(app, 3), whole, Recorded(), threading.Event())
    models = [run.load_checkpoint("finetune").vector for run in (run_of(lab, "cut"), whole)]
    np.testing.assert_allclose(*models, rtol=0, atol=1e-6)


def submit_request(lab, partition, *what):
    lab.oblivionis("request", "submit", "--node-dir", lab.node(partition), "--reason", "test", *what)


def working(lab, name):
    """The process in which a node works on a message, if it does."""
    return next((p for p in lab._family(name) if "flwr-clientapp" in " ".join(p.cmdline())), None)


def pause(lab, name):
    """Make a node's work stand still; its SuperNode lives. Returns the process."""

    def paused():
        try:
            process = working(lab, name)
            if process is not None:
                process.suspend()
            return process
        except psutil.NoSuchProcess:
            return None

    process = until(paused, ROUND_S, every=0.02)
    assert process, lab.everything_said()
    return process


@pytest.fixture(scope="module")
def faulty(lab, tmp_path_factory):
    """A run in which the clients fail, one after another; its directory."""
    patch = tmp_path_factory.mktemp("patch")
    (patch / "sitecustomize.py").write_text(NANS)
    lab.kill("node0")
    lab.wait_online(2)
    lab.start_supernode(0, PYTHONPATH=os.pathsep.join([str(patch), str(PROJECT)]), RESTART="always")
    lab.wait_online(3)
    settings = "federation.rounds.finetune=5 federation.rounds.unlearn=3 unlearning.requests.extra_rounds=5"
    run = lab.submit(HOSPITALS, f"name=faulty {QUICK} {settings} federation.timeout=60 evaluation.audit.profile=light")
    reached(lab, "faulty", "finetune", 1)
    lab.kill("node0")
    lab.start_supernode(0, RESTART="always")
    slow = pause(lab, "node2")
    reached(lab, "faulty", "finetune", 2)
    slow.resume()
    submit_request(lab, 1, "--ids", "t-wrenn-complaint", "--id", "one")
    submit_request(lab, 2, "--all", "--id", "leave")
    buried = NodeFolder(lab.node(1)).tombstones_path
    assert until(buried.exists, 4 * ROUND_S, every=0.05), lab.everything_said()
    lab.kill("node1")
    lab.kill("node2")
    lab.start_supernode(1, RESTART="always")
    assert lab.finish(run, 1500) == "finished:completed", lab.everything_said()
    return run_of(lab, "faulty")


def test_a_client_that_sends_nan_is_left_out_and_taken_back(faulty, lab):
    done = rounds(faulty, "finetune")
    assert 0 in done[1]["failed"] and sorted(done[1]["train"]) == [1, 2]
    assert "not finite" in lab.log("superlink")
    assert 0 in done[5]["train"]
    assert np.isfinite(faulty.load_checkpoint("finetune").vector).all()


def test_a_slow_client_misses_its_round_and_takes_part_in_a_later_one(faulty, lab):
    done = rounds(faulty, "finetune")
    assert 2 in done[2]["failed"] and 2 not in done[2].get("train", [])
    assert "no reply within 60 s" in lab.log("superlink")
    assert any(2 in done[n].get("train", []) for n in (3, 4, 5))


def test_a_node_killed_while_it_forgets_is_asked_again(faulty, lab):
    events = [json.loads(line) for line in faulty.ledger_path.read_text().splitlines()]
    mine = [e["event"] for e in events if e.get("id") == "one"]
    assert mine[0] == "submitted" and "failed" in mine and mine.count("served") == 1
    assert mine.index("failed") < mine.index("served")
    request = Ledger(faulty.ledger_path).get("one")
    assert request.client == 1 and request.state != PENDING
    assert NodeFolder(lab.node(1)).tombstones() == {"t-wrenn-complaint"}


def test_a_client_that_leaves_for_good_keeps_its_request_pending(faulty, lab):
    request = Ledger(faulty.ledger_path).get("leave")
    assert request.client == 2 and request.attempts >= 1
    assert request.state == PENDING, "it was never answered"
    assert "not connected" in request.failure or "unavailable" in request.failure.lower(), request.failure
    assert "still pending" in lab.log("superlink")
    assert not any(2 in clients.get("train", []) for clients in rounds(faulty, "unlearn").values())


def test_both_ledgers_still_agree(faulty, lab):
    told = lab.oblivionis("request", "verify", faulty.path, "--node-dir", lab.node(1))
    assert "broken" not in told
