"""Machines of a deployment fail, with real processes: what docs/concepts/reliability.md promises. In two runs."""

import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from support.deployed import BRISK, UNMEASURED, Deployed
from support.inprocess import InProcessGrid
from support.processes import PROJECT, until
from support.stages import Recorded

from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.request import PENDING
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.known_nodes import key_hash
from oblivionis.server.app import serve

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")]

EXAMPLE = PROJECT / "docs" / "guides" / "examples" / "three-hospitals"
HOSPITALS = EXAMPLE / "hospitals.yaml"
QUICK = f"federation.local_epochs=1 {UNMEASURED}"
ROUND_S, DEADLINE_S = 300, 40
FAULTY = """\
import os, sys, time
import numpy
import flwr.app

if os.path.basename([*sys.orig_argv, "", ""][1]) == "flower-supernode":
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection
    for module in (heartbeat, fleet_http_connection):
        module.HEARTBEAT_DEFAULT_INTERVAL = 10

honest, name = flwr.app.Array, os.environ.get("OBLIVIONIS_TEST_NAME", "")

def marked(fault):
    return os.path.exists(os.path.join(os.path.dirname(__file__), name + "." + fault))

def array(values):
    while marked("slow"):
        time.sleep(0.1)
    return honest(numpy.full_like(values, numpy.nan) if marked("nan") else values)

flwr.app.Array = array
"""
"""Runs first in the clients: what one sends is slow, or not a number, while a file beside it says so. A SuperNode that
vanished is missed after 20 s instead of a minute; until then Flower lets none take its place."""


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """The folder in which a file `node0.nan` or `node2.slow` makes a client so."""
    folder = tmp_path_factory.mktemp("patch")
    (folder / "patch.py").write_text(FAULTY)
    return folder


def start(lab, faults, partition):
    """A SuperNode that is started again when it ends, as a service is."""
    patches = os.pathsep.join(map(str, (BRISK, faults / "patch.py")))
    lab.start_supernode(partition, OBLIVIONIS_TEST_PATCH=patches, RESTART="always")


@pytest.fixture(scope="module")
def lab(tmp_path_factory, faults):
    with Deployed(tmp_path_factory.mktemp("faults") / "lab") as lab:
        for partition, hospital in enumerate(("harbour", "hill", "meadow")):
            shutil.copy(EXAMPLE / hospital / "patients.jsonl", lab.node(partition) / "data")
        lab.start_superlink()
        lab.start_nginx()
        lab.register()
        for partition in range(3):
            start(lab, faults, partition)
        lab.wait_online(3)
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
    (process,) = lab.server_apps()
    process.kill()


def resumed(lab, name):
    told = lab.flwr("run", lab.app, "lab", "--run-config", f'resume="runs/{name}"', "--format", "json")
    return json.loads(told[told.index("{") :])["run-id"]


def test_the_server_fails_and_the_run_goes_on_to_the_same_model(lab, faults, tmp_path):
    settings = f"{QUICK} stages=[finetune] federation.rounds.finetune=3"
    first = lab.submit(HOSPITALS, f"name=cut {settings}")
    reached(lab, "cut", "finetune", 1)
    kill_server_app(lab)
    assert lab.finish(first) == "finished:failed"
    second = resumed(lab, "cut")
    reached(lab, "cut", "finetune", 2)
    lab.kill("superlink")
    lab.restart("superlink")
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


@pytest.fixture(scope="module")
def faulty(lab, faults):
    """A run in which the clients fail, one after another: its directory, and what its ServerApp said."""
    (faults / "node0.nan").touch()
    settings = "federation.rounds.finetune=5 federation.rounds.unlearn=2 unlearning.requests.extra_rounds=2"
    run = lab.submit(HOSPITALS, f"name=faulty {QUICK} {settings} federation.timeout={DEADLINE_S}")
    reached(lab, "faulty", "finetune", 1)
    (faults / "node0.nan").unlink()
    (faults / "node2.slow").touch()
    assert until(lambda: lab.client_apps(1), ROUND_S, every=0.2), lab.everything_said()
    lab.kill("node1")
    start(lab, faults, 1)
    reached(lab, "faulty", "finetune", 2)
    (faults / "node2.slow").unlink()
    submit_request(lab, 1, "--ids", "hill-001-a", "--id", "one")
    reached(lab, "faulty", "finetune", 4)
    submit_request(lab, 2, "--all", "--id", "leave")
    assert until(lambda: run_of(lab, "faulty").stage_summary("finetune"), 4 * ROUND_S, every=0.2), lab.everything_said()
    (faults / "node2.slow").touch()
    buried = NodeFolder(lab.node(1)).tombstones_path
    assert until(buried.exists, ROUND_S, every=0.05), lab.everything_said()
    lab.kill("node1")
    lab.kill("node2")
    start(lab, faults, 1)
    assert lab.finish(run, 1500) == "finished:completed", lab.everything_said()
    return run_of(lab, "faulty"), lab.flwr("log", run, "lab", "--show")


def test_a_client_that_sends_nan_is_left_out_and_taken_back(faulty):
    run, said = faulty
    done = rounds(run, "finetune")
    assert done[1]["failed"] == [0] and done[1]["train"] == [1, 2] and 0 in done[2]["train"]
    assert "client 0 left out of the train exchange" in said and "finite" in said
    assert np.isfinite(run.load_checkpoint("finetune").vector).all()


def test_a_slow_client_misses_its_round_and_takes_part_in_a_later_one(faulty):
    run, said = faulty
    done = rounds(run, "finetune")
    late = f"client 2 left out of the train exchange: no reply within {DEADLINE_S} s"
    assert 2 in done[2]["failed"] and late in said
    assert 2 in done[3]["train"] or 2 in done[4]["train"]


def test_a_node_killed_while_it_learns_comes_back(faulty):
    done = rounds(faulty[0], "finetune")
    assert 1 in done[2]["failed"] and 1 in done[5]["train"]


def test_a_node_killed_while_it_forgets_is_asked_again(faulty, lab):
    run, _ = faulty
    events = [json.loads(line) for line in run.ledger_path.read_text().splitlines()]
    mine = [e["event"] for e in events if e.get("id") == "one"]
    assert mine[:2] == ["submitted", "failed"] and mine.count("served") == 1
    request = Ledger(run.ledger_path).get("one")
    assert request.client == 1 and request.state != PENDING
    assert NodeFolder(lab.node(1)).tombstones() == {"hill-001-a"}


def test_a_client_that_leaves_for_good_keeps_its_request_pending(faulty):
    run, said = faulty
    request = Ledger(run.ledger_path).get("leave")
    assert request.client == 2 and request.state == PENDING
    assert request.attempts > 1 and request.failure == "not connected"
    assert "1 deletion requests are still pending: leave (not connected)" in said
    assert not any(2 in clients.get("train", []) for clients in rounds(run, "unlearn").values())


def test_both_ledgers_still_agree(faulty, lab):
    told = lab.oblivionis("request", "verify", faulty[0].path, "--node-dir", lab.node(1))
    assert told.count("unbroken") == 2


def test_a_client_is_whose_key_is_registered(faulty, lab, faults):
    """Who claims to be another client, with a key of its own, is set aside and gets nothing of the other's requests."""
    run, _ = faulty
    known = json.loads((run.path / "known-nodes.json").read_text())
    registered = {p.stem.removeprefix("node"): key_hash(p.read_bytes()) for p in (lab.server / "nodes").glob("*.pub")}
    assert len(registered) == 3 and {client: node["key"] for client, node in known.items()} == registered

    script = lab.node(2) / "start-supernode.sh"
    script.write_text(script.read_text().replace("partition-id=2 ", "partition-id=1 "))
    (faults / "node2.slow").unlink()
    buried = NodeFolder(lab.node(2)).tombstones()
    start(lab, faults, 2)
    lab.wait_online(3)
    submit_request(lab, 1, "--ids", "hill-002-a", "--id", "mine")
    settings = f"{QUICK} federation.rounds.finetune=1 federation.rounds.unlearn=1 stages=[finetune,unlearn]"
    settings += " federation.wait_for_clients=5"
    second = lab.submit(HOSPITALS, f"name=claimed {settings}")
    assert lab.finish(second) == "finished:completed", lab.everything_said()
    assert "says that it is client 1, and is set aside" in lab.flwr("log", second, "lab", "--show")
    assert Ledger(run_of(lab, "claimed").ledger_path).get("mine").state != PENDING
    assert NodeFolder(lab.node(1)).tombstones() == {"hill-001-a", "hill-002-a"}
    assert NodeFolder(lab.node(2)).tombstones() == buried, "at most its own, from before it was killed"
    assert set(json.loads((run_of(lab, "claimed").path / "known-nodes.json").read_text())) == {"0", "1"}
