"""`oblivionis simulate`: Flower's simulation runtime in this process, with clean starts, stops and exit states."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import psutil

from oblivionis.config.schema import Config
from oblivionis.errors import RunFailed, RunInterrupted
from oblivionis.flower.names import ACTOR, ENVIRONMENT
from oblivionis.models.hardware import Machine, client_processes
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events
from oblivionis.server import ray_runtime
from oblivionis.server.forked_workers import fork_server, forked, libraries_of_clients
from oblivionis.server.ray_cluster import cluster

if TYPE_CHECKING:
    from oblivionis.server.parallel_evaluator import SecondEvaluator

_ENVIRONMENT = {
    **ENVIRONMENT,
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^A worker died or was killed",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_worker_niceness": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
_STOPPED = "stopped by Ctrl-C"
_AGAIN_S, _TIMES = 2.0, 3


class Stop(threading.Event):
    """Setting it breaks off the thread inside `broken_off`, whatever that computes: an evaluation takes minutes."""

    def __init__(self) -> None:
        super().__init__()
        self._thread: int | None = None

    def set(self) -> None:
        first = not self.is_set()
        super().set()
        if first:
            self._break_off()
            threading.Thread(target=self._again, name="oblivionis-stop-thread", daemon=True).start()

    def _break_off(self) -> bool:
        """Raise in the thread, if it is still inside."""
        if (thread := self._thread) is None:
            return False
        raised = ctypes.py_object(KeyboardInterrupt)
        return ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised) > 0

    def _again(self) -> None:
        """An exception from outside is lost where it meets a destructor, say: it is raised until it is heard."""
        for _ in range(_TIMES):
            time.sleep(_AGAIN_S)
            if not self._break_off():
                return

    @contextmanager
    def broken_off(self) -> Iterator[None]:
        """Raises RunInterrupted in this thread once the event is set; client processes at work are ended then."""
        self._thread = threading.get_ident()
        try:
            if self.is_set():
                raise RunInterrupted(_STOPPED)
            yield
        except KeyboardInterrupt:
            raise RunInterrupted(_STOPPED) from None
        finally:
            self._thread = None


def simulate(config: Config, run: RunDirectory, events: Events, forks: str | None = None) -> None:
    """Run all stages of `config` on simulated SuperNodes; everything that lasts goes to `run`.

    forks: the address of a fork server that loads the libraries of clients already; without, it begins now.

    Raises RunInterrupted after Ctrl-C, RunFailed when the federation broke down, other OblivionisErrors for what the
    user can mend, and whatever else went wrong. No Ray or Flower process outlives the call.
    """
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    if config.federation.ray_address is None and not ray_runtime.keep_to_this_machine():
        events.warning(
            "Ray was imported before this run: other machines may reach it and run code; set "
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 and RAY_AUTH_MODE=token before the program starts"
        )
    stop = Stop()
    from oblivionis.server.parallel_evaluator import second_evaluator

    with flower_log(run), silent_losses(stop), ctrl_c(stop, events), _ray(config, run, forks) as forks:
        if stop.is_set():
            raise RunInterrupted(_STOPPED)
        with second_evaluator(config, forks, events) as elsewhere:
            _run_flower(config, run, events, stop, elsewhere)
    if stop.is_set():
        raise RunInterrupted(_STOPPED)


def _run_flower(
    config: Config, run: RunDirectory, events: Events, stop: Stop, elsewhere: SecondEvaluator | None
) -> None:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from oblivionis.client.app import app as client_app
    from oblivionis.flower.fair_scheduling import unlearning_in_turns
    from oblivionis.server.app import serve
    from oblivionis.server.worker_crashes import ActorDied
    from strategies.errors import FederationError
    from strategies.flower_internals import AggregationError

    server = ServerApp()
    failure: BaseException | None = None

    @server.main()
    def run_stages(grid: Grid, context: Context) -> None:
        nonlocal failure
        try:
            with stop.broken_off():
                serve(config, grid, run, events, stop, elsewhere)
        except BaseException as error:
            # Returned to us below: Flower would wait some seconds for a ServerApp that raises.
            logging.getLogger("flwr").error("the run broke off", exc_info=error)
            failure = error
            _end_clients()

    federation = config.federation
    resources = {"num_cpus": federation.client_cpus, "num_gpus": federation.client_gpus}
    cores = max(1, Machine.here().cpus // federation.client_cpus)
    by_cores = federation.ray_address is None and federation.client_gpus == 0
    try:
        with unlearning_in_turns(cores) if by_cores else nullcontext():
            run_simulation(
                server_app=server,
                client_app=client_app,
                num_supernodes=federation.clients,
                backend_config={"client_resources": {**resources}},
            )
    except Exception:
        if failure is None and not stop.is_set():
            raise
    if isinstance(failure, ActorDied):
        raise RunFailed(failure.as_text()) from failure
    if isinstance(failure, FederationError | AggregationError):
        raise RunFailed(str(failure)) from failure
    if failure is not None:
        raise failure


def _end_clients() -> None:
    """End the client processes: Flower would wait until each has finished what it is doing."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(part.startswith(f"ray::{ACTOR}") for part in process.cmdline()[:1]):
                process.kill()


@contextmanager
def _ray(config: Config, run: RunDirectory, forks: str | None) -> Iterator[str | None]:
    """A Ray of our own, or the cluster that the configuration names, which Flower finds running and uses.

    Yields the address of the fork server, None where there is none.
    Our own gets as many client processes as cores and GPUs allow, and no more than clients take part in a round.
    """
    if config.federation.ray_address is not None:
        with cluster(config.federation.ray_address, run.path):
            yield None
        return
    machine = Machine.here()
    processes = max(1, client_processes(config, machine))
    settings: dict[str, Any] = {
        "address": "local",
        "num_cpus": processes * config.federation.client_cpus,
        "num_gpus": machine.gpus if config.federation.client_gpus > 0 else None,
        "include_dashboard": False,
        "logging_level": logging.ERROR,
        "log_to_driver": False,
    }
    with ExitStack() as ray:
        try:
            if forks is None:
                forks = ray.enter_context(fork_server(config.federation.client_cpus, libraries_of_clients()))
            ray.enter_context(forked(forks))
            ray.enter_context(ray_runtime.running(**settings))
        except Exception as error:  # Ray raises plain ones
            reason = str(error).strip().partition(". ")[0] or type(error).__name__
            raise RunFailed(f"Ray did not start ({reason}): is the machine, its memory or its /tmp full?") from error
        yield forks


@contextmanager
def flower_log(run: RunDirectory) -> Iterator[None]:
    """Send Flower's own log lines to a file of the run instead of the terminal."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    logger = logging.getLogger("flwr")
    handlers, propagate = list(logger.handlers), logger.propagate
    handler = logging.FileHandler(run.path / "flower.log", encoding="utf-8")
    handler.handleError = lambda record: None  # a full disk is told of where something is lost
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
    """The first Ctrl-C or SIGTERM breaks the run off in an orderly way; the second one is not waited for."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        events.note("stopping; press Ctrl-C again if this takes too long")
        stop.set()

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
