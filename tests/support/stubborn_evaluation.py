"""Runs first in commands that a test starts (`OBLIVIONIS_TEST_PATCH`): their first evaluation does not end by itself.

`OBLIVIONIS_TEST_EVALUATION=plain`: it computes for minutes; `stubborn`: so do threads and a process that it started,
and what interrupts it is swallowed. The file `OBLIVIONIS_TEST_EVALUATING` says that it has begun.
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

SECONDS = 120


def _compute():
    import torch

    until, numbers = time.monotonic() + SECONDS, torch.ones(400, 400)
    while time.monotonic() < until:
        numbers @ numbers


def _stubborn():
    for _ in range(2):
        threading.Thread(target=_compute).start()
    subprocess.Popen([sys.executable, "-S", "-c", f"import time; time.sleep({SECONDS})"])
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        try:
            time.sleep(0.1)
        except KeyboardInterrupt:
            continue


if kind := os.environ.get("OBLIVIONIS_TEST_EVALUATION"):
    from oblivionis.measures import assessor

    def measure(self, *arguments, **settings):
        Path(os.environ["OBLIVIONIS_TEST_EVALUATING"]).touch()
        {"plain": _compute, "stubborn": _stubborn}[kind]()

    assessor.Assessor.measure = measure
