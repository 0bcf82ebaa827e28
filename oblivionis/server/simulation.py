"""`oblivionis simulate`: the server's stages and simulated clients, with clean starts, stops and exit states."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from oblivionis.config.schema import Config
from oblivionis.errors import RunFailed, RunInterrupted
from oblivionis.models.hardware import Machine, client_processes, participants
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events
from oblivionis.runtime import processes
from oblivionis.runtime.fork_server import ForkServer
from oblivionis.runtime.simulation_grid import ClientProcess, simulation_grid
from oblivionis.server.app import Work, serve
from oblivionis.server.client_fork_server import VARIABLES, client_fork_server
from oblivionis.server.parallel_evaluator import second_evaluator
from oblivionis.server.ray_cluster import cluster
from oblivionis.server.stages import run_stages
from strategies.errors import FederationError
from strategies.flower_internals import AggregationError

CLIENT_APP = "oblivionis.client.app:app"
_STOPPED = "stopped by Ctrl-C"
_AGAIN_S = 2.0


class Stop(threading.Event):
    """Set by the first Ctrl-C or SIGTERM, which also breaks off what the main thread computes inside `broken_off`: an
    evaluation takes minutes."""

    def __init__(self) -> None:
        super().__init__()
        self._inside = False

    @contextmanager
    def broken_off(self) -> Iterator[None]:
        """Raises RunInterrupted once the event is set."""
        try:
            self._inside = True
            if self.is_set():
                raise RunInterrupted(_STOPPED)
            yield
        except KeyboardInterrupt:
            raise RunInterrupted(_STOPPED) from None
        finally:
            self._inside = False

    def handle(self, number: int, frame: object) -> None:
        """What a signal does: what it raises may be lost, in a destructor say, so it is raised until it is heard."""
        second = number != signal.SIGALRM and self.is_set()
        self.set()
        if self._inside:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        if self._inside or second:
            raise KeyboardInterrupt


def simulate(
    config: Config, run: RunDirectory, events: Events, forks: ForkServer | None = None, work: Work = run_stages
) -> None:
    """Run all stages of `config` on simulated clients, or do other `work`; everything that lasts goes to `run`.

    forks: a fork server that loads the libraries of clients already; without, one begins now.

    Raises RunInterrupted after Ctrl-C, RunFailed when the federation broke down, other OblivionisErrors for what the
    user can mend, and whatever else went wrong. No process outlives the call.
    """
    for key, value in VARIABLES.items():
        os.environ.setdefault(key, value)
    stop = Stop()
    with flower_log(run), silent_losses(stop), ctrl_c(stop, events), ExitStack() as inside, stop.broken_off():
        try:
            if forks is None:
                forks = inside.enter_context(client_fork_server(config))
            clients, cores = _clients(config, run, events, forks, inside)
            grid = inside.enter_context(simulation_grid(clients, config.federation.clients, cores))
        except OSError as error:
            raise RunFailed(f"the client processes did not start: {error}") from error
        remote_evaluator = inside.enter_context(second_evaluator(config, forks, events))
        try:
            serve(config, grid, run, events, stop, remote_evaluator, work)
        except (FederationError, AggregationError) as error:
            raise RunFailed(str(error)) from error
        except Exception as error:
            logging.getLogger("flwr").error("the run broke off", exc_info=error)
            raise


def _clients(
    config: Config, run: RunDirectory, events: Events, forks: ForkServer, inside: ExitStack
) -> tuple[Sequence[ClientProcess], int | None]:
    """As many client processes as cores and GPUs allow, and no more than clients take part in a round.

    And how many of them may unlearn at once, where that is fewer. OSError where they cannot start.
    """
    federation, machine = config.federation, Machine.here()
    if federation.ray_address is None:
        count = max(1, client_processes(config, machine))
        by_cores = max(1, machine.cpus // federation.client_cpus) if federation.client_gpus == 0 else None
        share = {"gpus": machine.gpus, "share": federation.client_gpus}
        return inside.enter_context(processes.client_processes(forks, CLIENT_APP, count, **share)), by_cores
    from oblivionis.runtime import ray_actors

    cpus, gpus = federation.client_cpus, federation.client_gpus
    inside.enter_context(cluster(federation.ray_address, run.path))
    count = max(1, min(ray_actors.room(cpus, gpus), participants(config)))
    waiting = {"wait_s": federation.wait_for_clients, "tell": events.note}
    return inside.enter_context(ray_actors.client_actors(CLIENT_APP, count, cpus=cpus, gpus=gpus, **waiting)), None


@contextmanager
def flower_log(run: RunDirectory) -> Iterator[None]:
    """Send Flower's own log lines to a file of the run instead of the terminal."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    logger = logging.getLogger("flwr")
    handlers, propagate = list(logger.handlers), logger.propagate
    handler = logging.FileHandler(run.path / "flower.log", encoding="utf-8")
    handler.handleError = lambda record: None  # a full disk is reported where something is lost
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
def silent_losses(stop: Stop) -> Iterator[None]:
    """After a stop, an interruption that is lost prints no stack trace.

    It is lost in a destructor, and in a thread that is just being started: until it runs, Python takes it for the
    thread that starts it.
    """
    before = sys.unraisablehook

    def tell(unraisable: sys.UnraisableHookArgs) -> None:
        if not (stop.is_set() and issubclass(unraisable.exc_type, KeyboardInterrupt)):
            before(unraisable)

    sys.unraisablehook = tell
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def ctrl_c(stop: Stop, events: Events) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM breaks the run off in an orderly way; the second one is not waited for.

    In another thread than the main one, which alone hears signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        if not stop.is_set():
            events.note("stopping; press Ctrl-C again if this takes too long")
        stop.handle(number, frame)

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, stop.handle)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, previous in before.items():
            signal.signal(number, previous)
