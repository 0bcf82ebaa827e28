"""The GPU share of a client reaches the client processes: with a GPU that only the program believes in."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
from pathlib import Path
from oblivionis.config import compose as configuration
from oblivionis.models import hardware as machine
from oblivionis.models.hardware import Machine
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events
from oblivionis.runtime.fork_server import ForkServer
from oblivionis.runtime.processes import NAME
from oblivionis.server import simulation

Machine.here = classmethod(lambda cls: Machine(cpus=4, gpus=1, free_ram=10**11, free_gpu=10**11))
fork, devices = ForkServer.fork, []

def noted(self, function, name, environment=None):
    if name == NAME:
        devices.append((environment or {}).get("CUDA_VISIBLE_DEVICES"))
    return fork(self, function, name, environment)

ForkServer.fork = noted
shares, folder = json.loads(sys.argv[1]), sys.argv[2]
for share in shares:
    devices.clear()
    overrides = [f"federation.client_gpus={share}", "federation.clients=4", "data.authors=12", "stages=[finetune]",
        "federation.rounds.finetune=1", "evaluation.every=0", "evaluation.at_start=false", "strict=true",
        "evaluation.leakage.full_samples=0", f"output={folder}", f"name=gpus-{share}"]
    config = configuration.compose("smoke", overrides)
    run = RunDirectory.create(Path(config.output), config.name)
    run.write_config(configuration.to_yaml(config))
    simulation.simulate(config, run, Events())
    processes = machine.client_processes(config, Machine.here())
    replies = [r["metrics"]["replies"] for r in run.metrics() if r["evaluator"] == "federation"]
    print(json.dumps({"devices": devices, "processes": processes, "replies": replies}))
"""
PROCESSES = {0.5: 2, 1.0: 1}
"""Client processes by a client's share of the one GPU."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[float, dict]:
    """What a run of each share was given, from one process."""
    folder = tmp_path_factory.mktemp("gpus")
    asked = json.dumps([*PROCESSES])
    done = subprocess.run([sys.executable, "-c", SCRIPT, asked, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    runs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"devices"')]
    return dict(zip(PROCESSES, runs, strict=True))


@pytest.mark.parametrize(("share", "processes"), [*PROCESSES.items()])
def test_client_gpus_bound_the_client_processes(share: float, processes: int, seen: dict[float, dict]) -> None:
    run = seen[share]
    assert run["devices"] == ["0"] * processes and run["processes"] == processes
    assert run["replies"] == [4]
