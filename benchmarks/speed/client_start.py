"""What a client process of a simulation takes until it has all that a client needs: started by itself, and forked.

    python -m benchmarks.speed.client_start

Seconds by the processor and by the clock, on Linux.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import time

from oblivionis.runtime.fork_server import ForkServer, fork_server
from oblivionis.runtime.processes import NAME
from oblivionis.runtime.transfer import Channel
from oblivionis.server.client_fork_server import OF_CLIENTS, VARIABLES

HERE = "benchmarks.speed.client_start"
PLAIN = f"from {HERE} import load, spent; load(); print(spent())"


def load() -> None:
    """Import what a client needs."""
    for name in OF_CLIENTS:
        importlib.import_module(name)


def spent() -> float:
    """Processor seconds of this process."""
    return time.process_time()


def answer(channel: Channel) -> None:
    """What a forked process does: say how long it has computed."""
    load()
    channel.send(spent())


def forked(forks: ForkServer) -> tuple[float, float]:
    """Processor seconds, and seconds since it was asked for, of a forked process that has what a client needs."""
    began = time.monotonic()
    process = forks.fork(f"{HERE}:answer", NAME)
    return process.channel.receive(), time.monotonic() - began


def plain() -> tuple[float, float]:
    """The same of a Python process that was started for it."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", PLAIN], check=True, capture_output=True, text=True)
    return float(done.stdout), time.monotonic() - began


def main() -> None:
    with fork_server(OF_CLIENTS, VARIABLES) as forks:
        forked(forks)  # waits until the process that is forked has all
        rows = {"plain": plain(), "forked": forked(forks)}
    print("| process | processor | clock |\n| --- | ---: | ---: |")
    for name, (processor, clock) in rows.items():
        print(f"| {name} | {processor:.2f} s | {clock:.2f} s |")


if __name__ == "__main__":
    main()
