"""Runs a suite of the kind `metrics_meta`: federation by federation, a file per model and per measurement."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.meta import report, results
from benchmarks.meta.metrics import JUDGES
from benchmarks.meta.models import JUDGED, KNOWS, LABELS, MODELS, ORACLE, STATES, training_records
from benchmarks.meta.settings import Settings
from evaluation.hook import EvaluationError
from oblivionis.errors import RunFailed
from oblivionis.files import remove_torn
from oblivionis.models.fork_safe_imports import libraries

_LOOK_S, _GRACE_S = 0.5, 2.0


def plan(settings: Settings, jobs: int) -> list[str]:
    """What `run` would do."""
    count, config = len(settings.seeds), settings.configuration(settings.seeds[0])
    kinds = ", ".join(LABELS[model] for model in MODELS)
    (quantiser,), (updates,) = config.attack.quantisers, config.attack.relearn.steps
    return [
        f"federations: {count}, {jobs} at once; seeds {', '.join(map(str, settings.seeds))}",
        f"models: {count * len(MODELS)} ({kinds}), {config.federation.rounds.finetune} rounds each",
        f"states: plain, quantised ({quantiser}), relearned ({updates} updates)",
        f"measurements: {count * len(JUDGED) * len(STATES)}, by {len(JUDGES)} metrics",
    ]


def run(settings: Settings, folder: Path, console: Console, jobs: int) -> None:
    """Make and measure the models missing in `folder`, `jobs` federations at once, then write and print the report.

    Raises OblivionisError for what `federation` raises, RunFailed for a process that ended early.
    """
    remove_torn(folder)
    work = [seed for seed in settings.seeds if results.pending(folder, seed)]
    if work:
        columns = (TextColumn("models measured"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            total = len(settings.seeds) * len(JUDGED) * len(STATES)
            task = progress.add_task("", total=total)

            def look() -> None:
                missing = sum(len(results.pending(folder, seed)) for seed in settings.seeds)
                progress.update(task, completed=total - missing)

            look()
            if jobs == 1:
                for seed in work:
                    federation(settings, folder, seed, look)
            else:
                _in_processes(settings, folder, work, jobs, look)
    report.write(settings, results.collect(folder, settings.seeds), folder, console)


def federation(settings: Settings, folder: Path, seed: int, done: Callable[[], None] = lambda: None) -> None:
    """Make and measure what is missing of a federation; `done` is called after each file. Raises OblivionisError."""
    from benchmarks.meta.federation import fedavg
    from benchmarks.meta.measuring import Measurer
    from oblivionis.client.worker import Worker

    worker = Worker(settings.configuration(seed))
    base = worker.flat.numpy()
    vectors = {}
    try:
        for model in MODELS:
            file = results.model_file(folder, seed, model)
            vector = results.read_model(file, base.size)
            if vector is None:
                sampling = ORACLE if model == ORACLE else "judged"
                vector = fedavg(worker, base, training_records(worker.corpus, model), sampling)
                results.write_model(file, vector)
                done()
            vectors[model] = vector
        measurer = Measurer(worker, vectors[KNOWS], vectors[ORACLE])
        for model, state in results.pending(folder, seed):
            file = results.measurement_file(folder, seed, model, state)
            results.write_measurement(file, measurer.measure(vectors[model], state))
            done()
    except (EvaluationError, ValueError) as error:
        raise RunFailed(f"federation {seed}: {error}") from error


def _in_processes(settings: Settings, folder: Path, seeds: Sequence[int], jobs: int, look: Callable[[], None]) -> None:
    """Federations in `jobs` processes, which end when this one does."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*libraries(metadata.version("torch"))])
    with ProcessPoolExecutor(jobs, context, _end_with_parent) as pool:
        try:
            waiting = {pool.submit(federation, settings, folder, seed) for seed in seeds}
            while waiting:
                done, waiting = wait(waiting, _LOOK_S, FIRST_COMPLETED)
                for each in done:
                    each.result()
                look()
        except BrokenProcessPool:
            raise RunFailed("a process ended early; go on with --resume") from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            under_way, deadline = multiprocessing.active_children(), time.monotonic() + _GRACE_S
            for process in under_way:
                process.terminate()
            for process in under_way:
                process.join(max(0.0, deadline - time.monotonic()))
                process.kill()
            pool.shutdown(wait=True)
            raise


def _end_with_parent() -> None:
    """In a process of the pool: Ctrl-C is its parent's to handle, the parent's end is its own, and it tidies up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
