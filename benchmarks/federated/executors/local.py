"""Runs as processes of this machine, each on its share of the cores and GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.federated import processes
from benchmarks.federated.graph import Node
from benchmarks.federated.processes import Job, Slot
from oblivionis.runs.directory import RunDirectory


@dataclass(frozen=True)
class _Process:
    """A run that a process does on `slot`."""

    node: Node
    slot: Slot
    job: Job

    @property
    def seconds(self) -> float:
        return self.job.seconds

    @property
    def log(self) -> Path:
        return self.job.log

    def saying(self) -> str:
        return self.job.saying()

    def failure(self) -> str:
        return self.job.failure()


class LocalExecutor:
    """An `Executor` of `jobs` processes at once."""

    def __init__(self, jobs: int) -> None:
        self.width = jobs
        self._free: list[Slot] = processes.slots(jobs)
        self._under_way: list[_Process] = []

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, *_: object) -> None: ...

    def room(self, node: Node) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    def submit(self, node: Node, run: RunDirectory) -> _Process:
        """Start `oblivionis simulate --resume`."""
        job = processes.start(run.path, self._free[0], node.config.unlearning.method)
        work = _Process(node, self._free[0], job)
        self._free.pop(0)
        self._under_way.append(work)
        return work

    def ended(self) -> list[_Process]:
        """Those whose process is gone."""
        over = [work for work in self._under_way if work.job.process.poll() is not None]
        for work in over:
            self._under_way.remove(work)
            self._free.append(work.slot)
        return over

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for what is left of them after some seconds."""
        processes.stop([work.job for work in self._under_way])
