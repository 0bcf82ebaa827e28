"""`oblivionis simulate`: Flower's simulation runtime in this process, with clean starts, stops and exit states."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from oblivionis.config import Config
from oblivionis.errors import OblivionisError, RunInterrupted
from oblivionis.progress import Events
from oblivionis.runs import RunDirectory

_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


def simulate(config: Config, run: RunDirectory, events: Events) -> None:
    """Run all stages of `config` on simulated SuperNodes; everything that lasts goes to `run`.

    Raises RunInterrupted after Ctrl-C, OblivionisError for what the user can mend, and whatever else went wrong.
    No Ray or Flower process outlives the call.
    """
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    stop = threading.Event()
    with _flower_log(run), _ctrl_c(stop, events):
        from flwr.simulation import run_simulation

        from oblivionis.client_app import app as client_app
        from oblivionis.server_app import server_app_for

        server = server_app_for(config, run, events, stop)
        try:
            run_simulation(
                server_app=server,
                client_app=client_app,
                num_supernodes=config.federation.clients,
                backend_config=_backend(config),
            )
        except Exception as error:
            if isinstance(error, OblivionisError):
                raise
            if stop.is_set():
                raise RunInterrupted("stopped by Ctrl-C") from None
            raise
        finally:
            import ray

            if ray.is_initialized():
                ray.shutdown()
    if stop.is_set():
        raise RunInterrupted("stopped by Ctrl-C")


def _backend(config: Config) -> dict:
    """As many client processes as cores allow, and no more than clients take part in a round."""
    federation = config.federation
    participants = max(federation.min_clients, math.ceil(federation.clients * federation.fraction_train), 1)
    processes = max(1, min((os.cpu_count() or 1) // federation.client_cpus, participants))
    init_args: dict = {
        "num_cpus": processes * federation.client_cpus,
        "include_dashboard": False,
        "logging_level": logging.ERROR,
        "log_to_driver": False,
        "configure_logging": True,
    }
    return {
        "init_args": init_args,
        "client_resources": {"num_cpus": federation.client_cpus, "num_gpus": federation.client_gpus},
    }


@contextmanager
def _flower_log(run: RunDirectory) -> Iterator[None]:
    """Send Flower's own log lines to a file of the run instead of the terminal."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    logger = logging.getLogger("flwr")
    handlers, propagate = list(logger.handlers), logger.propagate
    handler = logging.FileHandler(run.path / "flower.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.handlers[:] = [handler]
    logger.propagate = False
    try:
        yield
    finally:
        logger.handlers[:] = handlers
        logger.propagate = propagate
        handler.close()


@contextmanager
def _ctrl_c(stop: threading.Event, events: Events) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks the run to stop at the next safe point; the second one is not waited for."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        events.note("stopping after what is in flight; press Ctrl-C again to stop at once")

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
