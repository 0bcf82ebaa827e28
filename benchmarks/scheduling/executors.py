"""Where runs are done: an executor takes prepared runs and tells which have ended.

`Scheduler` knows no more of an executor than this: whether there is room for a run, `submit`, `ended` and `stop`.
`LocalExecutor` has processes of this machine, `benchmarks.federated.executors.ray_tasks` tasks of a Ray cluster. What
must outlive this command is no executor: `benchmarks.federated.slurm` writes the order of work down for Slurm instead,
whose every task does one run by `benchmarks.federated.single_run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from benchmarks.scheduling import processes
from benchmarks.scheduling.processes import Job, Slot
from benchmarks.scheduling.tasks import Task


class Work(Protocol):
    """A run under way, or one that has ended."""

    @property
    def seconds(self) -> float:
        """Since it began; 0 while it waits for a machine."""
        ...

    @property
    def log(self) -> Path:
        """Where what it prints lies, or will lie."""
        ...

    def saying(self) -> str:
        """Where it is, in its own words."""
        ...

    def failure(self) -> str:
        """Why it ended without its results."""
        ...


class Executor(AbstractContextManager[Any], Protocol):
    """Does runs, several at a time; entered before the first and left after the last."""

    @property
    def width(self) -> int:
        """How many runs are done at once, as far as that is known."""
        ...

    def room(self, task: Task) -> bool:
        """Whether this run may be submitted now."""
        ...

    def submit(self, task: Task) -> Work:
        """Begin or continue a prepared run. Raises OSError or OblivionisError."""
        ...

    def ended(self) -> Sequence[Work]:
        """Take those that have ended since the last call; the stages that they finished are in their directories."""
        ...

    def stop(self, works: Sequence[Work]) -> None:
        """End these runs as Ctrl-C does, within seconds."""
        ...


class LocalExecutor:
    """An `Executor` of `jobs` processes of this machine at once, each on its share of the cores and GPUs."""

    def __init__(self, jobs: int) -> None:
        self.width = jobs
        self._free = processes.slots(jobs)
        self._under_way: list[tuple[Job, Slot]] = []

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, *_: object) -> None: ...

    def room(self, task: Task) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    def submit(self, task: Task) -> Job:
        """Start the process of a run."""
        job = processes.start(task.run.path, self._free[0], task.config.unlearning.method, command=task.command)
        self._under_way.append((job, self._free.pop(0)))
        return job

    def ended(self) -> list[Job]:
        """Those whose process is gone."""
        return self._taken([job for job, _ in self._under_way if job.process.poll() is not None])

    def stop(self, works: Sequence[Work]) -> None:
        """SIGTERM, and SIGKILL for what is left of them after some seconds."""
        processes.stop(self._taken(works))

    def _taken(self, works: Sequence[Work]) -> list[Job]:
        """Free the slots of these runs."""
        taken = [entry for entry in self._under_way if entry[0] in works]
        self._under_way = [entry for entry in self._under_way if entry not in taken]
        self._free += [slot for _, slot in taken]
        return [job for job, _ in taken]
