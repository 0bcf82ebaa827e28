"""How a suite is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Reserve:
    """What a run is given on other machines.

    cpus: CPU cores; gpus: GPUs, None: one where its models lie on a GPU; memory: bytes of RAM, None: as estimated.
    """

    cpus: int = 1
    gpus: int | None = None
    memory: int | None = None

    def arguments(self) -> Iterator[str]:
        """The same on the command line."""
        if self.cpus != 1:
            yield from ("--cpus", str(self.cpus))
        if self.gpus is not None:
            yield from ("--gpus", str(self.gpus))
        if self.memory is not None:
            yield from ("--memory", f"{self.memory / 1e9:g}")


@dataclass(frozen=True)
class RayCluster:
    """A running Ray cluster at `address` (host:port, or auto)."""

    address: str
    reserve: Reserve = field(default_factory=Reserve)

    def arguments(self) -> Iterator[str]:
        """The same on the command line."""
        yield from ("--ray-address", self.address, *self.reserve.arguments())


@dataclass(frozen=True)
class Slurm:
    """Scripts for Slurm: limit: of a run's time, as `sbatch --time` takes it; more: further options of sbatch."""

    reserve: Reserve = field(default_factory=Reserve)
    limit: str | None = None
    more: tuple[str, ...] = ()

    def arguments(self) -> Iterator[str]:
        """The same on the command line."""
        yield from ("--slurm", *self.reserve.arguments())
        if self.limit is not None:
            yield from ("--time", self.limit)
        yield from (f"--sbatch={option}" for option in self.more)


@dataclass(frozen=True)
class Options:
    """jobs: runs at once on this machine; store: folder of the runs, which suites share; away: where else they run."""

    jobs: int
    store: Path
    away: RayCluster | Slurm | None = None

    def arguments(self) -> Iterator[str]:
        """Where the runs are done, on the command line."""
        if self.jobs > 1:
            yield from ("--jobs", str(self.jobs))
        if self.away is not None:
            yield from self.away.arguments()
