"""The Flower ServerApp: the same under `oblivionis simulate`, `flwr run` and in a deployment."""

from __future__ import annotations

import io
import logging
import os
import threading
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from oblivionis import config as configuration
from oblivionis import html_report, report
from oblivionis.config import Config
from oblivionis.grid import StoppableGrid
from oblivionis.progress import Events, LogEvents
from oblivionis.runs import RunDirectory
from oblivionis.stages import Server

app = ServerApp()
log = logging.getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Entry point of `flwr run`: the configuration comes from the run config's `config` and `overrides`.

    A relative `output` lies under `$OBLIVIONIS_HOME`, or the working directory of Flower's daemon. Errors are raised:
    Flower then marks the run as failed.
    """
    run_config = context.run_config
    experiment, overrides = str(run_config.get("config") or "default"), str(run_config.get("overrides") or "")
    try:
        config = configuration.compose(experiment, overrides)
    except configuration.ConfigError as error:
        log.error("%s", configuration.render_problems(error))
        raise
    output = Path(os.environ.get("OBLIVIONIS_HOME", Path.cwd())) / config.output
    run = RunDirectory.create(output, config.name)
    run.write_config(configuration.to_yaml(config))
    events = LogEvents()
    events.note(f"run directory: {run.path}")
    with run.lock():
        serve(config, grid, run, events, threading.Event())
        html_report.write_html(run, config)
    buffer = io.StringIO()
    report.print_summary(run, config, Console(file=buffer, width=120))
    for line in buffer.getvalue().splitlines():
        log.info("%s", line)


def server_app_for(config: Config, run: RunDirectory, events: Events, stop: threading.Event) -> ServerApp:
    """A ServerApp that runs `config` and writes to `run`."""
    server = ServerApp()

    @server.main()
    def run_stages(grid: Grid, context: Context) -> None:
        serve(config, grid, run, events, stop)

    return server


def serve(config: Config, grid: Grid, run: RunDirectory, events: Events, stop: threading.Event) -> None:
    """Run all stages over `grid`."""
    Server(config, StoppableGrid(grid, stop, events.arrived), run, events, stop).execute()
