"""Where the runs of a suite are done: an executor takes prepared runs and tells which have ended.

`benchmarks.federated.runner` decides what is done and in which order, and knows no more of an executor than this:
whether there is room for a run, `submit`, `ended` and `stop`. `local` has processes of this machine, `ray_tasks` tasks
of a Ray cluster. What must outlive this command is no executor: `benchmarks.federated.slurm` writes the order of work
down for Slurm instead, whose every task does one node by `benchmarks.federated.single_run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from benchmarks.federated.graph import Node
from oblivionis.runs.directory import RunDirectory


class Work(Protocol):
    """A run under way, or one that has ended."""

    @property
    def node(self) -> Node:
        """What is done."""
        ...

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


class Executor(AbstractContextManager["Executor"], Protocol):
    """Does runs, several at a time; entered before the first and left after the last."""

    @property
    def width(self) -> int:
        """How many runs are done at once, as far as can be told."""
        ...

    def room(self, node: Node) -> bool:
        """Whether this run may be submitted now."""
        ...

    def submit(self, node: Node, run: RunDirectory) -> Work:
        """Begin or continue a prepared run. Raises OSError or OblivionisError."""
        ...

    def ended(self) -> Sequence[Work]:
        """Take those that have ended since the last call; the stages that they finished are in the store."""
        ...

    def stop(self) -> None:
        """End what is under way as Ctrl-C does, within seconds."""
        ...
