"""Runs first in commands that a test starts: their simulations compute on the in-process grid instead of Ray's.

    environment(OBLIVIONIS_TEST_PATCH=without_ray.__file__)

Ctrl-C, SIGTERM and exit codes stay as they are.
"""

import sys
from pathlib import Path

if __name__ != "support.without_ray":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    from support.inprocess import InProcessGrid

    from oblivionis.client.app import app
    from oblivionis.server import simulation
    from oblivionis.server.app import serve

    def simulate(config, run, events, forks=None):
        stop = simulation.Stop()
        quiet, heard = simulation.silent_losses(stop), simulation.ctrl_c(stop, events)
        with simulation.flower_log(run), quiet, heard, stop.broken_off():
            serve(config, InProcessGrid(app, config.federation.clients), run, events, stop)

    simulation.simulate = simulate
    sys.path.pop(0)
