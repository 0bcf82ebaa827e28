"""One run of a suite by itself, on whichever machine of a batch system it is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks.federated.graph import plan
from benchmarks.federated.settings import Settings
from benchmarks.output.terminal import say
from benchmarks.scheduling import processes
from benchmarks.scheduling.processes import Slot
from oblivionis.errors import RunError, RunFailed
from oblivionis.runs.failed_evaluators import failures

_POLL_S = 0.2


def do(settings: Settings, key: str, store: Path, console: Console) -> None:
    """Do the run `key` of the suite in `store`, unless it is done; what it begins with must be there.

    It has the cores and GPUs of this process. Raises RunError for a run that the suite does not have, RunFailed when it
    breaks off, KeyboardInterrupt after it was stopped.
    """
    graph = plan(settings.cells(), settings.oracles, against_never_saw=settings.against_never_saw)
    node = next((node for node in graph.nodes if node.key == key), None)
    if node is None:
        raise RunError(
            f"the suite has no run {key}: the suite, its data, the base model or the program has changed; write the "
            "scripts anew with --slurm --resume"
        )
    task = node.task(store)
    _wait(lambda: not task.held)
    if task.finished:
        say(console, f"{node.label}: done already")
        return
    if missing := [need.label for need in node.after if not need.finished(store)]:
        raise RunFailed(f"{node.label}: it begins with {' and '.join(missing)}, which is not done")
    task.prepare()
    say(console, f"{node.label}: {task.run.path}")
    job = processes.start(task.run.path, Slot(()), node.config.unlearning.method, command=task.command)
    try:
        with processes.ended_with_us(job):
            _wait(lambda: job.process.poll() is not None)
    except BaseException:
        processes.stop([job])
        raise
    if not task.finished:
        raise RunFailed(f"{node.label}: {job.failure()}; see {job.log}")
    # Those that begin with it can be done, and `bench collect` ends with exit code 1.
    for failure in failures(task.run):
        say(console, f"not measured: {failure.as_text()}")


def _wait(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(_POLL_S)
