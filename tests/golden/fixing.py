"""What makes two runs of one program differ, fixed from outside: clock, the system's random numbers, keys, processes.

Of the program's own names only those are here by which a simulation begins its clients, since golden runs compare
across renames: the others are Python's and cryptography's. The clock and random numbers are told apart by who asks: a
caller whose file lies in the tree that is recorded gets fixed ones.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

START = 1_767_603_600.0
"""Monday 5 January 2026, 09:00 UTC."""
FREE_BYTES = 16_000_000_000
_WRAPPERS = ("random.py", "secrets.py", "uuid.py")


@dataclass(frozen=True)
class Broken:
    """The process is killed as soon as it is about to send a message and `ledger` has `lines` lines."""

    ledger: Path
    lines: int

    def check(self) -> None:
        """Kill this process if it is time."""
        if self.ledger.is_file() and self.ledger.read_bytes().count(b"\n") >= self.lines:
            os.kill(os.getpid(), signal.SIGKILL)


def wall_clock(tree: Path, seconds: float = 0.0) -> None:
    """`time.time()` and `time.perf_counter()` stand still for the program; what waits goes by the real clock.

    seconds: how long after `START`.
    """
    ours = _asked_by(tree)
    _replace_clock("time", ours, lambda: START + seconds)
    _replace_clock("perf_counter", ours, lambda: 0.0)
    for name in ("gmtime", "localtime"):
        _replace_broken_down(name, ours, START + seconds)
    real = time.strftime
    time.strftime = lambda form, *when: real(form, *(when or (time.gmtime(START + seconds),) * ours(sys._getframe(1))))


def everything(tree: Path, label: str, seconds: float, node_dirs: Path | None, broken: Broken | None) -> None:
    """All of a process: time passes for the program by its own pauses alone, which take no time, and a simulation's
    clients run one after another in this process.

    label: random numbers and keys follow from it. node_dirs: the clients have the folders node0, node1, … in it.
    """
    _virtual_clock(tree, seconds)
    _machine(tree)
    _random_numbers(tree, label)
    _file_headers()
    _one_process(node_dirs, broken)
    _no_server()


def _asked_by(tree: Path) -> Callable[[FrameType | None], bool]:
    root, libraries = f"{tree}{os.sep}", sysconfig.get_path("purelib")  # an environment may lie in the tree

    def ours(frame: FrameType | None) -> bool:
        file = "" if frame is None else str(frame.f_globals.get("__file__", ""))
        return file.startswith(root) and not file.startswith(libraries)

    return ours


def _replace_clock(name: str, ours: Callable[[FrameType | None], bool], fixed: Callable[[], float]) -> None:
    real = getattr(time, name)
    setattr(time, name, lambda: fixed() if ours(sys._getframe(1)) else real())


def _replace_broken_down(name: str, ours: Callable[[FrameType | None], bool], now: float) -> None:
    real = getattr(time, name)
    setattr(time, name, lambda *when: real(*(when or (now,) * ours(sys._getframe(1)))))


def _virtual_clock(tree: Path, seconds: float) -> None:
    wall_clock(tree, seconds)
    ours, real, passed = _asked_by(tree), time.sleep, [0.0]

    def sleep(pause: float) -> None:
        if ours(sys._getframe(1)):
            passed[0] += pause
        else:
            real(pause)

    wait = threading.Event.wait

    def until_set(self: threading.Event, timeout: float | None = None) -> bool:
        beside = threading.current_thread() is not threading.main_thread()
        return wait(self, None if beside and ours(sys._getframe(1)) else timeout)

    _replace_clock("monotonic", ours, lambda: passed[0])
    time.sleep, threading.Event.wait = sleep, until_set


def _machine(tree: Path) -> None:
    """What is written and printed of the machine, but for its cores."""
    import psutil

    ours, real = _asked_by(tree), psutil.virtual_memory

    def memory() -> Any:
        found = real()
        return found._replace(total=FREE_BYTES, available=FREE_BYTES) if ours(sys._getframe(1)) else found

    psutil.virtual_memory, platform.platform = memory, lambda: "Linux"


def _random_numbers(tree: Path, label: str) -> None:
    """The n-th number of a length follows from the label, n and the length, for program, libraries and keys each."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    ours, drawn = _asked_by(tree), {}

    def urandom(length: int) -> bytes:
        frame = sys._getframe(1)
        while frame.f_back is not None and os.path.basename(frame.f_code.co_filename) in _WRAPPERS:
            frame = frame.f_back
        return draw("program" if ours(frame) else "libraries", length)

    def draw(kind: str, length: int) -> bytes:
        number = next(drawn.setdefault((kind, length), itertools.count()))
        return hashlib.shake_256(f"{label}/{kind}/{length}/{number}".encode()).digest(length)

    def key(kind: Any) -> Any:
        return classmethod(lambda cls: kind.from_private_bytes(draw(kind.__name__, 32)))

    os.urandom = random._urandom = urandom  # type: ignore[attr-defined]
    Ed25519PrivateKey.generate = key(Ed25519PrivateKey)
    X25519PrivateKey.generate = key(X25519PrivateKey)


def _file_headers() -> None:
    """safetensors writes the metadata of a file in another order each time: here by name."""
    from safetensors import numpy as files

    serialize = files.serialize  # type: ignore[attr-defined]

    def in_order(*given: Any, **settings: Any) -> bytes:
        data = bytes(serialize(*given, **settings))
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        if "__metadata__" in header:
            header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(text) <= end - 8, "the same in another order"
        return data[:8] + text.ljust(end - 8) + data[end:]

    files.serialize = in_order  # type: ignore[attr-defined]


def _one_process(node_dirs: Path | None, broken: Broken | None) -> None:
    """Simulated clients run here, one after another, and other Python processes end at once."""
    from support.inprocess import InProcessGrid

    from oblivionis.client.app import app
    from oblivionis.server import simulation

    class Grid(InProcessGrid):
        def push_messages(self, messages: Any) -> Any:
            if broken is not None:
                broken.check()
            return super().push_messages(messages)

    @contextmanager
    def simulation_grid(processes: Any, clients: int, cores: int | None) -> Iterator[Grid]:
        grid = Grid(app, clients)
        for context in grid.contexts.values():
            if node_dirs is not None:
                context.node_config["node-dir"] = str(node_dirs / f"node{context.node_config['partition-id']}")
        yield grid

    begin = subprocess.Popen.__init__

    def instead(self: Any, args: Any, *others: Any, **settings: Any) -> None:
        begin(self, ["true"] if isinstance(args, list) and args[0] == sys.executable else args, *others, **settings)

    simulation.simulation_grid = simulation_grid
    simulation.processes.client_processes = lambda *_, **__: nullcontext([])
    subprocess.Popen.__init__ = instead


def _no_server() -> None:
    """What would be served to a browser is asked for here, page by page, and kept in the folder `window`."""
    import uvicorn
    from golden.pages import keep

    def run(self: Any, sockets: Any = None) -> None:
        sys.stdout.flush()
        (address,) = re.findall(r"http://\S+token=\S+", Path("/proc/self/fd/1").read_text(encoding="utf-8"))
        keep(self.config.app, address, Path("window"))

    uvicorn.Server.run = run
