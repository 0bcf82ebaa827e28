"""Runs first in commands that a test starts: their simulations begin no client processes.

    environment(OBLIVIONIS_TEST_PATCH=in_one_process.__file__)

Ctrl-C, SIGTERM and exit codes stay as they are.
"""

import sys
from contextlib import nullcontext
from pathlib import Path

if __name__ != "support.in_one_process":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    from support.inprocess import InProcessGrid

    from oblivionis.client.app import app
    from oblivionis.server import client_fork_server, simulation
    from oblivionis.server.app import serve

    def simulate(config, run, events, forks=None):
        stop = simulation.Stop()
        quiet, heard = simulation.silent_losses(stop), simulation.ctrl_c(stop, events)
        with simulation.flower_log(run), quiet, heard, stop.broken_off():
            serve(config, InProcessGrid(app, config.federation.clients), run, events, stop)

    simulation.simulate = simulate
    client_fork_server.client_fork_server = lambda config: nullcontext()
    sys.path.pop(0)
