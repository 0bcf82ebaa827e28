"""What a client process of a simulation takes until it has all that a client needs: started by itself, and forked.

    python -m benchmarks.speed.client_start

Seconds, by the processor and by the clock, of a process that begins as Ray's workers begin, on Linux; what Ray does in
it is not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from oblivionis.server import forked_workers
from oblivionis.server.forked_workers import OF_CLIENTS

BEGAN = "OBLIVIONIS_CLIENT_START"
"""A variable of the environment: when the process was asked for."""
WORKER = f"""
import importlib, json, os, time
told = {{}}
for what, names in (("Ray's and Flower's modules", ("ray", "flwr.simulation")), ("in all", {OF_CLIENTS!r})):
    for name in names:
        importlib.import_module(name)
    told[what] = time.process_time(), time.monotonic() - float(os.environ["{BEGAN}"])
print(json.dumps(told))
"""


def measured(environment: dict[str, str]) -> dict[str, tuple[float, float]]:
    """Processor seconds, and seconds since it was asked for, of a worker process when so much was imported."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "worker.py"
        script.write_text(WORKER)
        command = [sys.executable, forked_workers.__file__, str(script), f"{forked_workers.LANGUAGE}PYTHON"]
        environment = {**environment, BEGAN: str(time.monotonic())}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    plain = measured({**os.environ})
    with forked_workers.fork_server(1, OF_CLIENTS) as address, forked_workers.forked(address):
        measured({**os.environ})  # waits until the process that is forked has all
        forked = measured({**os.environ})
    print("| processor, clock | plain | forked |\n| --- | ---: | ---: |")
    for name in plain:
        cells = (f"{processor:.1f} s, {clock:.1f} s" for processor, clock in (plain[name], forked[name]))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
