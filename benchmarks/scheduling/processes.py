"""Runs as processes of their own: started on a share of the cores, stopped in an orderly way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from oblivionis.config.extension_traits import own_loss

LOG = "suite.log"
RESUME = ("oblivionis.cli.main", "simulate", "--resume")
"""The module, and its arguments before the folder, that continue a run."""
_GRACE_S = 5.0


@dataclass
class Slot:
    """A share of the machine for one run at a time: CPU cores, and GPUs where there are enough."""

    cpus: tuple[int, ...]
    gpus: str | None = None


@dataclass
class Job:
    """A run under way."""

    process: subprocess.Popen[bytes]
    log: Path
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def saying(self) -> str:
        """The last whole line that the run has printed, "" before the first one."""
        with self.log.open("rb") as handle:
            handle.seek(max(0, handle.seek(0, os.SEEK_END) - 4096))
            lines = handle.read().decode("utf-8", "replace").split("\n")[:-1]
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def failure(self) -> str:
        """What the run said last before it ended with an error."""
        status = self.process.returncode
        text = last_words(self.log.parent) or "it said nothing"
        return f"killed by signal {-status}" if status < 0 else f"{text} (exit code {status})"


def last_words(run: Path) -> str:
    """The error that the run directory `run` ended with, or else what it said last; "" where it said nothing."""
    try:
        text = (run / LOG).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    lines = [line.strip() for line in text.splitlines()]
    messages = [line for line in lines if line.startswith("error:")] or [
        line for line in lines if line and not line.startswith(("continue with:", "This is a fault of"))
    ]
    return messages[-1].removeprefix("error:").strip() if messages else ""


def slots(jobs: int) -> list[Slot]:
    """The cores of this process dealt out to `jobs` runs at once, and the GPUs if each gets one at least."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shares = [tuple(cores[n::jobs]) or tuple(cores) for n in range(jobs)]
    devices = _gpus() if jobs > 1 else []
    if len(devices) < jobs:
        return [Slot(share) for share in shares]
    return [Slot(share, ",".join(devices[n::jobs])) for n, share in enumerate(shares)]


def _gpus() -> list[str]:
    if (given := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [device for device in given.split(",") if device]
    import torch

    return [str(n) for n in range(torch.cuda.device_count())] if torch.cuda.is_available() else []


def start(
    run: Path,
    slot: Slot,
    method: str,
    *,
    command: Sequence[str] = RESUME,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Job:
    """Do the work of the run directory `run`; what it prints goes to its suite.log.

    method: that of the suite's own configuration: where it is the file of a loss, the run may execute it; command: a
    module and its arguments, to which the folder is added; environment: the process's variables, None: those of this
    one; folder: its working directory, None: likewise.
    """
    variables = dict(os.environ if environment is None else environment)
    if slot.gpus is not None:
        variables["CUDA_VISIBLE_DEVICES"] = slot.gpus
    arguments = [sys.executable, "-m", *command, str(run)]
    if (file := own_loss(method)) is not None:
        arguments += ["--allow-code", str(file)]
    before = os.sched_getaffinity(0) if slot.cpus else set()
    log = run / LOG
    try:
        if slot.cpus:
            os.sched_setaffinity(0, slot.cpus)
        with log.open("wb") as handle:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
                env=variables,
                cwd=folder,
                start_new_session=True,
            )
    finally:
        if before:
            os.sched_setaffinity(0, before)
    return Job(process, log)


@contextmanager
def ended_with_us(job: Job, scratch: Path | None = None) -> Iterator[None]:
    """Inside, the run is ended when this process dies, however it dies: a shell waits for the other end of a pipe.

    scratch: a folder that is deleted then.
    """
    text = f'read -r nothing; kill -TERM "$1"; sleep {_GRACE_S:g}; kill -KILL "-$1"; [ -z "$2" ] || rm -rf -- "$2"'
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", text, "sh", str(job.process.pid), str(scratch or "")],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        watcher.kill()
        watcher.communicate()


def stop(jobs: list[Job]) -> None:
    """End runs as Ctrl-C does, and whatever is left of one that takes more than `_GRACE_S` seconds."""
    descendants = [child for job in jobs for child in _descendants(job)]
    for job in jobs:
        with suppress(ProcessLookupError):
            job.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    for job in jobs:
        try:
            job.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(job.process.pid, signal.SIGKILL)
            job.process.wait()
            for child in descendants:  # Ray's have sessions of their own
                with suppress(psutil.Error):
                    child.kill()


def _descendants(job: Job) -> list[psutil.Process]:
    try:
        return psutil.Process(job.process.pid).children(recursive=True)
    except psutil.Error:
        return []
