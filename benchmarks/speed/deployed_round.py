"""What a round of a deployment costs compared with Flower's floor: an app that does nothing, with as many SuperNodes.

    python -m benchmarks.speed.deployed_round DIR [--rounds 4]

DIR is a deployment made by `oblivionis deploy init` that is running, its SuperNodes online and with records in `data/`,
as in docs/guides/deployment.md. Three runs, one after the other: Flower's own exchange of one number; of one array as
long as our adapter; and the stage finetune of `data=node` on the embedded model, one local epoch. The first round of
each run, in which SuperNodes fetch the app, does not count; of the others the median does. Every message starts a
process on each client: its imports and the loading of the base model are timed apart, in a fresh process here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
POLL_S, RUN_S = 3.0, 900.0
FLOATS = 312_320
"""Length of the adapter of the embedded model at rank 32."""

_APP = {
    "pyproject.toml": """
        [project]
        name = "floor"
        version = "1.0.0"
        license = "Apache-2.0"
        dependencies = []

        [tool.flwr.app]
        publisher = "floor"

        [tool.flwr.app.components]
        serverapp = "floor:server"
        clientapp = "floor:client"

        [tool.flwr.app.config]
        rounds = 1
        floats = 1
        out = ""
    """,
    "floor.py": """
        import json
        import time
        from pathlib import Path

        import numpy as np
        from flwr.app import Array, ArrayRecord, Message, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.serverapp import ServerApp

        server = ServerApp()
        client = ClientApp()


        @client.train()
        def train(message, context):
            return Message(message.content, reply_to=message)


        @server.main()
        def main(grid, context):
            settings, seconds = context.run_config, []
            vector = np.random.default_rng(0).standard_normal(int(settings["floats"])).astype(np.float32)
            content = RecordDict({"arrays": ArrayRecord({"vector": Array(vector)})})
            nodes = list(grid.get_node_ids())
            for _ in range(int(settings["rounds"])):
                began = time.perf_counter()
                messages = [Message(content, dst_node_id=node, message_type="train") for node in nodes]
                replies = list(grid.send_and_receive(messages))
                assert len(replies) == len(nodes) and not any(r.has_error() for r in replies)
                seconds.append(time.perf_counter() - began)
            Path(settings["out"]).write_text(json.dumps({"nodes": len(nodes), "seconds": seconds}))
    """,
}


class Deployment:
    """The commands of a running deployment's server."""

    def __init__(self, folder: Path) -> None:
        self.server = folder.expanduser().resolve() / "server"
        self.environment = {**os.environ, "FLWR_HOME": str(self.server / "flwr-home"), "FLWR_TELEMETRY_ENABLED": "0"}

    def run(self, app: Path, run_config: str) -> None:
        """Run `app` to its end; RuntimeError unless Flower calls it completed."""
        run = self._flwr("run", str(app), "lab", "--run-config", run_config)["run-id"]
        deadline = time.monotonic() + RUN_S
        while not (status := self._status(run)).startswith("finished"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the run {run} goes on after {RUN_S:.0f} s; see `flwr log {run} lab`")
            time.sleep(POLL_S)
        if status != "finished:completed":
            raise RuntimeError(f"the run {run} is {status}; see `flwr log {run} lab`")

    def _status(self, run: object) -> str:
        return self._flwr("list", "lab", "--run-id", str(run))["runs"][0]["status"]

    def _flwr(self, *arguments: str) -> dict:
        command = ["flwr", *arguments, "--format", "json"]
        done = subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout[done.stdout.index("{") :])


def floor(deployment: Deployment, floats: int, rounds: int) -> tuple[int, list[float]]:
    """How many SuperNodes answered, and the seconds of each round of an app that sends `floats` numbers back."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in _APP.items():
            (Path(folder) / name).write_text(textwrap.dedent(text), encoding="utf-8")
        out = deployment.server / f"floor-{time.time_ns()}.json"
        try:
            deployment.run(Path(folder), f'rounds={rounds} floats={floats} out="{out}"')
            result = json.loads(out.read_text(encoding="utf-8"))
        finally:
            out.unlink(missing_ok=True)
    return result["nodes"], result["seconds"]


def ours(deployment: Deployment, nodes: int, rounds: int) -> tuple[list[float], list[float]]:
    """The seconds of each round of the stage finetune, and of training alone (mean over the clients)."""
    name = f"deployed-round-{time.time_ns()}"
    settings = (
        f"data=node stages=[finetune] name={name} federation.clients={nodes} federation.fraction_train=1.0 "
        f"federation.rounds.finetune={rounds} federation.local_epochs=1 evaluation.every=0 evaluation.at_start=false"
    )
    deployment.run(PROJECT, f'config="default" overrides="{settings}"')
    lines = (deployment.server / "runs" / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [row["metrics"] for row in map(json.loads, lines) if row["evaluator"] == "federation"]
    return [m["seconds"] for m in metrics], [m["train-seconds"] for m in metrics]


def client_start() -> dict[str, float]:
    """Seconds of what a message costs in a fresh client process before it trains: imports, then the base model."""
    program = """
        import time
        began = time.perf_counter()
        from oblivionis import client_app
        from oblivionis import config
        imported = time.perf_counter()
        from oblivionis import worker
        training = time.perf_counter()
        from oblivionis import seeds
        from oblivionis.models.assembly import assemble
        assemble(config.compose("default").model, 0)
        print(imported - began, training - imported, time.perf_counter() - training)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    seconds = [
        list(map(float, subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()))
        for _ in range(3)
    ]
    names = ("import the ClientApp", "import what trains", "load the base model")
    return dict(zip(names, map(min, zip(*seconds, strict=True)), strict=True))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each run, the first of which does not count")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("--rounds must be at least 2")
    deployment = Deployment(arguments.folder)
    for name, seconds in client_start().items():
        print(f"{name}: {seconds:.1f} s", flush=True)
    nodes = 0
    for floats in (1, FLOATS):
        nodes, seconds = floor(deployment, floats, arguments.rounds)
        print(f"Flower, {nodes} SuperNodes, {floats} float32: {statistics.median(seconds[1:]):.1f} s/round", flush=True)
    seconds, training = ours(deployment, nodes, arguments.rounds)
    print(
        f"finetune, {nodes} SuperNodes: {statistics.median(seconds[1:]):.1f} s/round, of which training "
        f"{statistics.median(training[1:]):.1f} s"
    )


if __name__ == "__main__":
    main()
