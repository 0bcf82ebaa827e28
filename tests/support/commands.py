"""Shared by tests: see `test_cli`."""

import contextlib
import io
import sys
import threading
from types import SimpleNamespace

import pytest
from support.inprocess import InProcessGrid

from oblivionis.cli import main as cli
from oblivionis.client.app import app
from oblivionis.server import simulation
from oblivionis.server.app import serve


def call(*arguments):
    """Exit code, standard output and standard error of `oblivionis ARGUMENTS`."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["oblivionis", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        if simulation.simulate is in_process:  # its clients are no processes
            patch.setattr(cli, "client_fork_server", lambda config: contextlib.nullcontext())
        with pytest.raises(SystemExit) as stop:
            cli.main()
    return SimpleNamespace(code=stop.value.code or 0, out=out.getvalue(), err=err.getvalue())


def in_process(config, run, events, forks=None):
    """Stands in for Flower's simulation: the same server and clients, one after another in this process."""
    serve(config, InProcessGrid(app, config.federation.clients), run, events, threading.Event())
