"""The Flower ServerApp: the same under `oblivionis simulate`, `flwr run` and in a deployment."""

from __future__ import annotations

import io
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from oblivionis.config import compose as configuration
from oblivionis.config.allowed_code import allow_code, permit_named, resuming
from oblivionis.config.extension_traits import own_loss
from oblivionis.config.schema import Config
from oblivionis.errors import OblivionisError, RunError, RunFailed, to_mend
from oblivionis.flower.grids import deployed, of_flowers_simulation
from oblivionis.measures.assessor import RemoteEvaluator
from oblivionis.reports import run_summary as report
from oblivionis.reports.warnings import check_done
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory, check_output
from oblivionis.runs.progress import Events, LogEvents
from oblivionis.runs.tracking import check_tracking
from oblivionis.runtime.simulation_grid import SimulationGrid
from oblivionis.server.grids import wrapped
from oblivionis.server.measuring_again import measure_again
from oblivionis.server.run_context import Server
from oblivionis.server.stages import run_stages

app = ServerApp()
log = logging.getLogger("flwr")

SETTLED_SECONDS = 4.0
Work = Callable[[Server], None]
"""What is done over a grid with the clients of a run."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Entry point of `flwr run`: the configuration comes from the run config's `config` and `overrides`.

    With `resume`, the directory of a run that broke off, that run goes on from its last complete round, by its own
    configuration: Flower itself cannot continue a run whose SuperLink or ServerApp ended. `allow-code` is the file of
    a loss that only the run's, or the experiment's, own file names. With `audit`, the directory of a finished run, its
    served requests are measured again, with `samples` answers to a question, and no stage runs.

    A relative `output` lies under `$OBLIVIONIS_HOME`, or the working directory of Flower's daemon. Other relative
    paths, such as `data.path`, start at the working directory of each process, in a simulation the daemon's: better
    give absolute ones. Errors are raised, after the log has what a user should read of them: Flower then prints a
    traceback and marks the run as failed.
    """
    try:
        _main(grid, context)
    except configuration.ConfigError as error:
        log.error("%s", configuration.render_problems(error))
        raise
    except OblivionisError as error:
        log.error("%s", error)
        raise


def _main(grid: Grid, context: Context) -> None:
    run_config = context.run_config
    experiment, overrides = str(run_config.get("config") or "default"), str(run_config.get("overrides") or "")
    given = str(run_config.get("allow-code") or "")
    code = Path(given) if given else None
    resume, home = str(run_config.get("resume") or ""), Path(os.environ.get("OBLIVIONIS_HOME", Path.cwd()))
    if audited := str(run_config.get("audit") or ""):
        return _measure_again(grid, home / audited, run_config, code)
    run = None
    if resume:
        run = _earlier(home / resume, overrides)
        config = configuration.from_yaml(run.read_config(), run.config_place)
        allow_code(config, code)
    else:
        config = configuration.compose(experiment, overrides)
        permit_named(config, overrides, code)
        check_output(home / config.output, config.name)
    if config.federation.churn and not of_flowers_simulation(grid):
        raise RunError(
            f"federation.churn={config.federation.churn} makes simulated clients vanish; these are real machines: set "
            "it to 0"
        )
    if config.federation.simulated_seconds.distribution != "none" and not of_flowers_simulation(grid):
        raise RunError(
            "federation.simulated_seconds is a clock for simulated clients; these are real machines: set its "
            "distribution to none"
        )
    check_tracking(config.tracking)
    if run is None:
        _check_nodes(grid, config.federation.clients)
        run = RunDirectory.create(home / config.output, config.name)
        run.write_config(configuration.to_yaml(config))
    events = LogEvents()
    events.note(f"run directory: {run.path}")
    with run.lock():
        try:
            serve(config, grid, run, events, threading.Event())
        except Exception as error:
            if to_mend(error) and not resume and not run.begun:
                run.remove()
            else:
                mend = "the run broke off; if what follows can be mended, " if to_mend(error) else "the run failed; "
                log.error("%scontinue with: %s", mend, _continuation(grid, run, config))
            raise
        from oblivionis.reports.html import run_page  # matplotlib takes time to import

        run_page.write_html(run, config)
    buffer = io.StringIO()
    report.print_summary(run, config, Console(file=buffer, width=120), full=True, answers=True)
    for line in buffer.getvalue().splitlines():
        log.info("%s", line)
    try:
        check_done(run)
    except RunFailed as error:  # the run came to its end: the exit code is Flower's
        log.error("%s", error)


def _measure_again(grid: Grid, path: Path, run_config: Mapping[str, Any], code: Path | None) -> None:
    """Measure the served requests of a finished run again. OblivionisError for what else is asked, and as
    `measure_again`."""
    if run_config.get("overrides") or run_config.get("resume"):
        raise RunError("audit goes by the run's own configuration, with samples=N alone; leave the others out")
    samples = run_config.get("samples")
    if not isinstance(samples, int) or samples < 1:
        raise RunError(f"samples={samples}: expected how many answers are sampled to a question, 1 or more")
    run = artifact_binding.opened(path)
    config = configuration.from_yaml(run.read_config(), run.config_place)
    allow_code(config, code)
    with run.lock():
        serve(config, grid, run, LogEvents(), threading.Event(), work=partial(measure_again, samples=samples))


def _earlier(path: Path, overrides: str) -> RunDirectory:
    """The run to resume. Raises RunError."""
    if overrides:
        raise RunError("resume takes the run's own configuration; leave overrides out")
    return artifact_binding.opened(path)


def _continuation(grid: Grid, run: RunDirectory, config: Config) -> str:
    if of_flowers_simulation(grid):
        return resuming(run.path, config)
    file = own_loss(config.unlearning.method)
    code = "" if file is None else f' allow-code="{file}"'
    return f"flwr run . CONNECTION --run-config 'resume=\"{run.path}\"{code}'"


def serve(
    config: Config,
    grid: Grid,
    run: RunDirectory,
    events: Events,
    stop: threading.Event,
    remote_evaluator: RemoteEvaluator | None = None,
    work: Work = run_stages,
) -> None:
    """Run all stages over `grid`, or do other `work`; `remote_evaluator` measures in another process.

    Raises RunError for a run that broke off and is not as its ledger says (`oblivionis.runs.artifact_binding`).
    """
    artifact_binding.require_intact(run)
    registered = registrations() if deployed(grid) else None
    simulated, roster = _simulated(grid), grid.partitions if isinstance(grid, SimulationGrid) else None
    server = Server(
        *(config, wrapped(grid, config, stop, events.arrived), run, events, stop, registered),
        simulated=simulated,
        roster=roster,
        remote_evaluator=remote_evaluator,
    )
    work(server)


def _simulated(grid: Grid) -> bool:
    """Whether the clients are simulated ones, by this program or by Flower's own engine."""
    return isinstance(grid, SimulationGrid) or of_flowers_simulation(grid)


def registrations() -> list[Path]:
    """The public keys of a deployment's nodes, `$OBLIVIONIS_HOME/nodes/node<client>.pub`; `deploy init` writes them."""
    home = os.environ.get("OBLIVIONIS_HOME")
    return sorted(Path(home, "nodes").glob("node*.pub")) if home else []


def _check_nodes(grid: Grid, clients: int) -> None:
    """RunError when another number of SuperNodes is connected than the configuration has clients.

    In a simulation all register within moments, and those beyond the clients have nothing to do; in a deployment too
    few may still become enough.
    """
    simulated = of_flowers_simulation(grid)
    connected, since = -1, time.monotonic()
    while True:
        count = len(list(grid.get_node_ids()))
        if count < clients and not simulated:
            return
        settled = time.monotonic() - since
        if count != connected:
            connected, since = count, time.monotonic()
        elif (count == clients or (simulated and count > clients)) and settled > SETTLED_SECONDS / 10:
            if count > clients:
                log.warning("%d of %d SuperNodes are left out: federation.clients=%d", count - clients, count, clients)
            return
        elif settled > SETTLED_SECONDS:
            break
        time.sleep(0.1)
    right = f'--federation-config "num-supernodes={clients}"' if simulated else f"{clients} SuperNodes"
    raise RunError(
        f"{connected} SuperNodes are connected, but the configuration has federation.clients={clients}: run it with "
        f"{right}, or set federation.clients={connected} (flwr run: --run-config 'overrides=\"federation.clients="
        f"{connected}\"')"
    )
