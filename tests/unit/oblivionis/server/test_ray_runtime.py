"""A signal while Ray starts or ends is the command's own, though Ray takes the handlers away below Python."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os, signal, sys, threading, time, types

def taken(said):
    # As Ray's core does, past Python: without a repair, the next SIGTERM ends the process.
    ctypes.CDLL(None).signal(signal.SIGTERM, None)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    calls.append((said, threading.current_thread()))
    if said == "init":
        os.write(2, b"*** stack trace ***")

def init(**settings):
    assert settings == {"address": "local"}
    taken("init")
    if "full" in sys.argv:
        raise RuntimeError("full")

sys.modules["ray"] = types.SimpleNamespace(init=init, shutdown=lambda: taken("shutdown"))
from oblivionis.server.ray_runtime import running

calls, heard = [], []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
try:
    with running(address="local"):
        calls.append(("inside", threading.current_thread()))
        assert calls[0][1].is_alive(), "what Ray started would be killed"
        if "fails" in sys.argv:
            raise ValueError("fails")
except (RuntimeError, ValueError) as error:
    print("raised", error)
assert calls[0][1] is calls[-1][1] is not threading.main_thread()
print(*(said for said, _ in calls), *heard)
"""


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("", "init inside shutdown 15 15\n"),
        ("full", "raised full\ninit shutdown 15 15\n"),
        ("fails", "raised fails\ninit inside shutdown 15 15\n"),
    ],
)
def test_signals_are_heard_while_ray_starts_and_ends(case: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, case], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
