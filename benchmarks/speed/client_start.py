"""What a client process of a simulation takes until it has all that a client needs: started by itself, and forked.

    python -m benchmarks.speed.client_start

Processor seconds of a process that begins as Ray's workers begin, on Linux; what Ray does in it is not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from oblivionis.server import forked_workers
from oblivionis.server.simulation import OF_CLIENTS

WORKER = f"""
import importlib, json, time
told = {{}}
for what, names in (("Ray's and Flower's modules", ("ray", "flwr.simulation")), ("in all", {OF_CLIENTS!r})):
    for name in names:
        importlib.import_module(name)
    told[what] = time.process_time()
print(json.dumps(told))
"""


def measured(environment: dict[str, str]) -> dict[str, float]:
    """Processor seconds since the start of a worker process in `environment`, when so much was imported."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "worker.py"
        script.write_text(WORKER)
        command = [sys.executable, forked_workers.__file__, str(script), f"{forked_workers.LANGUAGE}PYTHON"]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    plain = measured({**os.environ})
    with forked_workers.forked(1, OF_CLIENTS):
        forked = measured({**os.environ})
    print("| | plain | forked |\n| --- | ---: | ---: |")
    for name in plain:
        print(f"| {name} | {plain[name]:.1f} s | {forked[name]:.1f} s |")


if __name__ == "__main__":
    main()
