"""A stop from outside the thread that it is meant for."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.processes import environment

PROGRAM = """# warm
import sys
from oblivionis.server.simulation import Stop, silent_losses

class Ends:
    def __init__(self, error):
        print(f"== {error}", file=sys.stderr)
        self.error = error

    def __del__(self):
        raise self.error

stop = Stop()
with silent_losses(stop):
    Ends(KeyboardInterrupt("early"))
    stop.set()
    Ends(KeyboardInterrupt("stopped"))
    Ends(ValueError("fault"))
Ends(KeyboardInterrupt("after"))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """What is told of the errors of destructors, by error."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    return dict(part.split("\n", 1) for part in done.stderr.split("== ")[1:])


@pytest.mark.parametrize(("case", "traced"), [("early", True), ("stopped", False), ("fault", True), ("after", True)])
def test_only_an_interruption_that_a_stop_lost_is_not_told_of(told: dict[str, str], case: str, traced: bool) -> None:
    assert (case in told[case]) is traced, told
    assert ("Traceback" in told[case]) is traced
