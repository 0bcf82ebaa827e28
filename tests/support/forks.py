"""A server of warm processes: what a test starts is forked from a process that has the libraries loaded already.

Importing torch, transformers, peft and flwr takes a process five seconds, most of what a command of a test costs. Ray
is left to the child: what it reads of the environment when it is imported is the command's own.
`site/sitecustomize.py` hands the command lines named there over to this server, which forks a process for each: with
the same arguments, working directory, environment, files, umask, cores and signal masks, in a session of its own. The
program itself is not loaded here, so the child imports it as ever. Whoever handed over passes signals on and ends as
the child did; dies it, the child is killed.

    python forks.py ADDRESS OWNER       # until the process OWNER or the socket ADDRESS has gone
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from pathlib import Path

LIBRARIES = (
    "torch",
    "torch._dynamo",
    "torch.nn.attention.flex_attention",
    "transformers",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.tokenization_utils_fast",
    "peft",
    "peft.tuners.lora",
    "flwr.app",
    "flwr.cli.app",
    "flwr.clientapp",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.superlink.cli",
    "flwr.supernode.cli",
    "flwr.superlink.runtime.run_serverapp",
    "cryptography.hazmat.primitives.asymmetric.ec",
    "datasets",
    "matplotlib.pyplot",
    "nltk.stem.porter",
    "omegaconf",
    "pandas",
    "pyarrow.parquet",
    "rapidfuzz",
    "rich.console",
    "rich.progress",
    "safetensors.numpy",
    "scipy.stats",
    "sklearn.linear_model",
    "sklearn.metrics",
    "statsmodels.api",
    "typer",
)
_REQUEST_BYTES, _FILES = 1 << 20, 64
_PADDING = 1 << 15
"""Room in the memory from which /proc tells a process's arguments and environment."""


def main() -> None:
    """Serve until the owner or the socket has gone."""
    address, owner = sys.argv[1], int(sys.argv[2])
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [entry for entry in sys.path[1:] if entry not in own]  # each child gets those of its environment
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what all have in common is not looked through again by each
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{address}.new")
    listener.listen(64)
    os.rename(f"{address}.new", address)
    _Server(listener, address, owner).serve()


class _Server:
    """Children by the connection on which their end is awaited."""

    def __init__(self, listener: socket.socket, address: str, owner: int) -> None:
        self._listener, self._address, self._owner = listener, address, owner
        self._children: dict[socket.socket, int] = {}
        self._wake, wakes = os.pipe()
        for end in (self._wake, wakes):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        self._wakes = wakes

    def serve(self) -> None:
        while os.path.exists(self._address) and _alive(self._owner):
            ready, _, _ = select.select([self._listener, self._wake, *self._children], [], [], 1.0)
            for one in ready:
                if one is self._listener:
                    self._fork(self._listener.accept()[0])
                elif one == self._wake:
                    os.read(self._wake, 1 << 12)
                elif isinstance(one, socket.socket) and one in self._children and not one.recv(1):
                    self._kill(one)
            self._reap()
        for connection in list(self._children):
            self._kill(connection)

    def _fork(self, connection: socket.socket) -> None:
        request, files = _received(connection)
        if request is None:
            connection.close()
            return
        pid = os.fork()
        if pid == 0:
            _become(request, files)
        for file in files:
            os.close(file)
        self._children[connection] = pid
        with contextlib.suppress(OSError):
            connection.sendall(f"{pid}\n".encode())

    def _reap(self) -> None:
        for connection, pid in list(self._children.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._children[connection]
                with contextlib.suppress(OSError):
                    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                connection.close()

    def _kill(self, connection: socket.socket) -> None:
        """Whoever handed over was killed: so is the child. What that started lives on, as ever."""
        with contextlib.suppress(OSError):
            os.kill(self._children[connection], signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _received(connection: socket.socket) -> tuple[dict | None, list[int]]:
    """A request, one line of JSON, and the open files that come with it."""
    files, text = array.array("i"), b""
    while not text.endswith(b"\n"):
        piece, ancillary, _, _ = connection.recvmsg(_REQUEST_BYTES, socket.CMSG_LEN(_FILES * files.itemsize))
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                files.frombytes(data[: len(data) - len(data) % files.itemsize])
        if not piece:
            return None, list(files)
        text += piece
    return json.loads(text), list(files)


def _become(request: dict, files: list[int]) -> None:
    """In the child: turn into the process that was asked for, run it, and end as Python ends."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        _take_files(dict(zip(request["files"], files, strict=True)))
        os.chdir(request["cwd"])
        os.umask(request["umask"])
        os.sched_setaffinity(0, request["cores"])
        os.environ.clear()
        os.environ.update(request["environment"])
        _tell_proc(request["arguments"], {**request["environment"], "OBLIVIONIS_TEST_FORKED": "1"})
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ignored = request["sigint_ignored"]
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, request["masked"])
        code = _run(request["arguments"], request["environment"])
    except BaseException:
        traceback.print_exc()
    finally:
        _end(code)


def _take_files(wanted: dict[int, int]) -> None:
    """Give the files of whoever asked the numbers that they had there, and close all others."""
    floor = max([1023, *wanted]) + 1
    high = {number: fcntl.fcntl(file, fcntl.F_DUPFD, floor) for number, file in wanted.items()}
    os.closerange(0, floor)
    for number, file in high.items():
        os.dup2(file, number)
        os.close(file)
    for number in (0, 1, 2):
        if number not in wanted:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    for name, number in (("stdout", 1), ("stderr", 2)):
        lines = number == 2 or os.isatty(number)
        stream = open(  # noqa: SIM115
            number, "w", 1 if lines else -1, "utf-8", "backslashreplace" if number == 2 else "strict", closefd=False
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.__stdin__ = sys.stdin


def _tell_proc(arguments: list[str], environment: dict[str, str]) -> None:
    """Write arguments and environment where /proc reads them, as far as there is room: tests find processes by them.

    And a script's name, as the system names a process that runs one.
    """
    if not arguments[0].startswith("-"):
        Path("/proc/self/comm").write_text(Path(arguments[0]).name[:15])
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    for start, end, texts in (
        (int(fields[45]), int(fields[46]), arguments),
        (int(fields[47]), int(fields[48]), sorted((f"{k}={v}" for k, v in environment.items()), key=len)),
    ):
        room, told = end - start - 1, b""
        for text in texts:
            piece = os.fsencode(text) + b"\0"
            if len(told) + len(piece) <= room:
                told += piece
        ctypes.memmove(start, told.ljust(end - start, b"\0"), end - start)


def _run(arguments: list[str], environment: dict[str, str]) -> int:
    """Do what `python ARGUMENTS` does; the exit code."""
    sys.orig_argv[:] = ["python", *arguments]
    paths = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    try:
        if patches := environment.get("OBLIVIONIS_TEST_PATCH"):
            sys.path[:0] = paths
            for patch in patches.split(os.pathsep):
                runpy.run_path(patch)
            del sys.path[: len(paths)]
        if arguments[0] == "-m":
            sys.path[:0] = [os.getcwd(), *paths]
            sys.argv[:] = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            sys.path[:0] = paths
            sys.argv[:] = ["-c", *arguments[2:]]
            exec(arguments[1], {"__name__": "__main__"})
        else:
            sys.path[:0] = [str(Path(arguments[0]).parent), *paths]
            sys.argv[:] = arguments
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> None:
    """What an interpreter does in the end: threads are awaited, exit handlers run, output is flushed."""
    import atexit
    import threading

    with contextlib.suppress(BaseException):
        threading._shutdown()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
