"""A stop from outside the thread that it is meant for."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.processes import environment

PROGRAM = """
import sys
from oblivionis.server.simulation import Stop, silent_losses

class Ends:
    def __init__(self, error): self.error = error
    def __del__(self): raise self.error

stop = Stop()
with silent_losses(stop):
    if "early" in sys.argv:
        Ends(KeyboardInterrupt("early"))
    stop.set()
    if "stopped" in sys.argv:
        Ends(KeyboardInterrupt("stopped"))
    if "fault" in sys.argv:
        Ends(ValueError("fault"))
if "after" in sys.argv:
    Ends(KeyboardInterrupt("after"))
"""


@pytest.mark.parametrize(("case", "told"), [("early", True), ("stopped", False), ("fault", True), ("after", True)])
def test_only_an_interruption_that_a_stop_lost_is_not_told_of(case: str, told: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, case], env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    assert (case in done.stderr) is told, done.stderr
    assert ("Traceback" in done.stderr) is told
