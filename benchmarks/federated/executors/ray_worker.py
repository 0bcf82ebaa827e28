"""What a machine of a Ray cluster does for a suite: say what it has, and do one run."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from filelock import FileLock, Timeout

from benchmarks.federated import identity
from benchmarks.federated.executors.file_transfer import Piece, Unpacking, pieces
from benchmarks.scheduling import processes
from benchmarks.scheduling.processes import Job, Slot
from oblivionis.config import compose as configuration
from oblivionis.errors import OblivionisError, RunError
from oblivionis.runs.directory import RunDirectory, package_versions
from oblivionis.version import __version__

_POLL_S, _SAY_S, _FREE_S = 0.2, 1.0, 120.0


@dataclass(frozen=True)
class Probe:
    """A file with a text that nobody else has: who reads it there sees the folder that it lies in."""

    file: Path
    text: str

    def seen(self) -> bool:
        """Whether this machine sees it."""
        try:
            return self.file.read_text(encoding="utf-8") == self.text
        except OSError:
            return False


@dataclass(frozen=True)
class Order:
    """A run to be done: key: its folder in the store that `probe` lies in; folder: where its relative paths begin.

    method: that of unlearning; versions: those of the machine that asks; parcel: pieces of the prepared run in Ray's
    object store, for a machine that does not see the store; command: what does it, as `processes.start` takes it.
    """

    key: str
    probe: Probe
    folder: Path
    method: str
    versions: Mapping[str, str]
    cpus: int
    parcel: Sequence[Any]
    command: Sequence[str] = processes.RESUME


@dataclass(frozen=True)
class Begun:
    """The run has begun on the machine `host`."""

    host: str


@dataclass(frozen=True)
class Ended:
    """The run has ended; failure: why without its results, "" with them."""

    failure: str


def versions() -> dict[str, str]:
    """What must be the same on all machines before anything else can be compared."""
    packages = {name: str(version) for name, version in package_versions().items()}
    program = identity.program()[:12]
    return {"oblivionis": __version__, "Python": platform.python_version(), **packages, "the program": program}


def look(probe: Probe) -> dict[str, Any]:
    """The versions of this machine, and whether it sees the store."""
    return {**versions(), "sees store": probe.seen()}


def inputs(folder: Path, texts: Sequence[str]) -> dict[str, str | None]:
    """The contents of what runs with these configurations read, as `identity.inputs`."""
    with _inside(folder):
        found: dict[str, str | None] = {}
        for text in texts:
            found |= identity.inputs(configuration.from_yaml(text))
        return found


def work(order: Order) -> Iterator[Begun | str | Piece | Ended]:
    """Do a run: that it has begun, what it says meanwhile, its files where the store is not seen, and how it ended."""
    yield Begun(socket.gethostname())
    # Who joined after the suite began has not been asked for any of this.
    host, here = socket.gethostname(), versions()
    if other := [name for name, version in order.versions.items() if here.get(name) != version]:
        yield Ended(f"{host} has another version of {', '.join(other)} than the machine that asks: install the same")
        return
    shared = order.probe.seen()
    if not shared and not order.parcel:
        yield Ended(f"{host} does not see the store, which all machines did when the suite began")
        return
    with ExitStack() as held:
        try:
            folder = order.probe.file.parent / order.key if shared else held.enter_context(_unpacked(order))
            _wait_until_free(RunDirectory(folder))
            cores = held.enter_context(cores_of(order.cpus))
            job = _start(folder, cores, order)
        except (OblivionisError, OSError) as error:
            yield Ended(str(error))
            return
        try:
            with processes.ended_with_us(job, None if shared else folder.parent):
                yield from _followed(job)
        finally:
            if job.process.poll() is None:
                processes.stop([job])
        failure = job.failure() if job.process.returncode else ""
        if not shared:
            yield from pieces(folder)
        yield Ended(failure)


def _start(folder: Path, cores: tuple[int, ...], order: Order) -> Job:
    """The process of the run: on its cores, on the GPUs that Ray gave this task, and without Ray's own variables."""
    gpus = ",".join(str(gpu) for gpu in ray.get_gpu_ids())
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    place = order.folder if order.folder.is_dir() else folder
    slot, how = Slot(cores, gpus), {"environment": environment, "folder": place}
    return processes.start(folder, slot, order.method, command=order.command, **how)


def _followed(job: Job) -> Iterator[str]:
    """What the run says, whenever it says something new, until it has ended."""
    said, due = "", 0.0
    while job.process.poll() is None:
        if time.monotonic() >= due and (line := job.saying()) != said:
            said, due = line, time.monotonic() + _SAY_S
            yield line
        time.sleep(_POLL_S)


@contextmanager
def _unpacked(order: Order) -> Iterator[Path]:
    """The run's files in a folder of this machine, which is deleted in the end."""
    root = Path(tempfile.mkdtemp(prefix="oblivionis-"))
    try:
        arriving = Unpacking(root / order.key)
        for reference in order.parcel:
            arriving.take(ray.get(reference))
        arriving.settle()
        yield root / order.key
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _wait_until_free(run: RunDirectory) -> None:
    """Until nobody works on the run: who did before, on a machine that was lost, may need some seconds to end."""
    deadline = time.monotonic() + _FREE_S
    while True:
        try:
            with run.lock():
                return
        except RunError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


@contextmanager
def cores_of(count: int) -> Iterator[tuple[int, ...]]:
    """`count` cores of this machine that no other run of a cluster has; () where there are not so many left.

    Ray counts cores and leaves open which they are. The operating system holds the locks, so that they go with the
    process.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    folder = Path(tempfile.gettempdir()) / f"oblivionis-cores-{os.getuid() if hasattr(os, 'getuid') else 0}"
    with ExitStack() as held:
        taken: list[int] = []
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            for core in cores:
                if len(taken) < count:
                    with suppress(Timeout):
                        held.enter_context(FileLock(folder / f"{core}.lock", timeout=0))
                        taken.append(core)
        if len(taken) < count:
            taken.clear()
            held.close()
        yield tuple(taken)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Relative paths begin at `folder`, where this machine has it."""
    before = Path.cwd()
    with suppress(OSError):
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
