"""The GPU share of a client reaches Flower's backend: with GPUs that only Ray believes in, on a machine without any."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
from pathlib import Path
import ray
from oblivionis.config import compose as configuration
from oblivionis.models import hardware as machine
from oblivionis.server import simulation
from oblivionis.runs.progress import Events
from oblivionis.models.hardware import Machine
from oblivionis.runs.directory import RunDirectory
from flwr.simulation.ray_transport import ray_actor

Machine.here = classmethod(lambda cls: Machine(cpus=4, gpus=1, free_ram=10**11, free_gpu=10**11))
seen = {}  # of the run that goes on
pool = ray_actor.pool_size_from_resources

def counted(client_resources):
    seen["resources"], seen["cluster"] = dict(client_resources), ray.cluster_resources().get("GPU")
    seen["actors"] = pool(client_resources)
    return seen["actors"]

ray_actor.pool_size_from_resources = counted
shares, folder = json.loads(sys.argv[1]), sys.argv[2]
for share in shares:
    seen.clear()
    overrides = [f"federation.client_gpus={share}", "federation.clients=4", "data.authors=12", "stages=[finetune]",
        "federation.rounds.finetune=1", "evaluation.every=0", "evaluation.at_start=false", "strict=true",
        "evaluation.leakage.full_samples=0", f"output={folder}", f"name=gpus-{share}"]
    config = configuration.compose("smoke", overrides)
    run = RunDirectory.create(Path(config.output), config.name)
    run.write_config(configuration.to_yaml(config))
    simulation.simulate(config, run, Events())
    seen["processes"] = machine.client_processes(config, Machine.here())
    seen["replies"] = [r["metrics"]["replies"] for r in run.metrics() if r["evaluator"] == "federation"]
    print(json.dumps(seen))
"""
ACTORS = {0.5: 2, 1.0: 1}
"""Client processes by a client's share of the one GPU."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[float, dict]:
    """What a run of each share was given, from one process."""
    folder = tmp_path_factory.mktemp("gpus")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([*ACTORS]), str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"resources"')]
    return dict(zip(ACTORS, told, strict=True))


@pytest.mark.parametrize(("share", "actors"), [*ACTORS.items()])
def test_client_gpus_bound_the_client_processes(share: float, actors: int, seen: dict[float, dict]) -> None:
    told = seen[share]
    assert told["resources"] == {"num_cpus": 1, "num_gpus": share} and told["cluster"] == 1
    assert told["actors"] == told["processes"] == actors
    assert told["replies"] == [4]
