"""Client processes of a simulation that are forked from one which has the libraries loaded already.

Ray starts a Python process for each client process, and importing torch, transformers and peft takes it seconds. Here
Ray starts a stand-in, this file as a script: it asks a fork server, the same file again, for a copy of itself that
becomes Ray's worker, and ends with it. Ray takes the process that registers for its worker, whoever started it. The
fork server loads libraries while Ray starts, and ends when the command that started it lets go of its standard input.
Where it cannot be reached, a worker starts as Ray starts it.

It stands on two internals of Ray 2.55, to which flwr pins it: `SETUP_WORKER_FILENAME`, which names the script that each
worker begins with, and that its core reads its settings from the environment when it is imported, which is why the
fork server does not import ray.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

ADDRESS = "OBLIVIONIS_FORKS"
"""In the environment of Ray's processes: the socket on which the fork server listens."""
CONTEXT = "--serialized-runtime-env-context="
LANGUAGE = "--language="
SERVE = "--serve"
STREAMS = (0, 1, 2)
OF_CLIENTS = (
    "transformers.models.llama.modeling_llama",
    "transformers.models.auto.tokenization_auto",
    "oblivionis.client.app",
    "oblivionis.client.handlers.query",
    "oblivionis.client.handlers.train",
    "oblivionis.client.handlers.unlearn",
)
"""What a client process needs."""


def libraries_of_clients() -> tuple[str, ...]:
    """The modules that a process may import before client processes are forked from it."""
    from oblivionis.models.fork_safe_imports import forkable

    return OF_CLIENTS if forkable(metadata.version("torch")) else ("torch",)


@contextlib.contextmanager
def fork_server(threads: int, names: Sequence[str]) -> Iterator[str | None]:
    """A process that imports the modules `names` and then forks whoever asks at the address that is yielded.

    None where the system is not Linux. threads: as many of OpenMP's as Ray gives a worker by itself. What it has
    forked ends with it.
    """
    from oblivionis.flower.names import ENVIRONMENT

    if sys.platform != "linux":
        yield None
        return
    folder = tempfile.mkdtemp(prefix="oblivionis-")
    address = os.path.join(folder, "forks")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen(64)  # who comes while libraries are imported waits
        server = subprocess.Popen(
            [sys.executable, __file__, SERVE, str(listener.fileno()), *names],
            env={**ENVIRONMENT, "OMP_NUM_THREADS": str(threads), **os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[listener.fileno()],
        )
    try:
        yield address
    finally:
        # It ends with its standard input, and ends what it has forked before; while it still imports, by the signal.
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.communicate(timeout=10)
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def forked(address: str | None) -> Iterator[None]:
    """Ray that is started within has its workers forked by the fork server at `address`, if there is one."""
    if address is None:
        yield
        return
    from ray._private import ray_constants

    script_before, address_before = ray_constants.SETUP_WORKER_FILENAME, os.environ.get(ADDRESS)
    ray_constants.SETUP_WORKER_FILENAME, os.environ[ADDRESS] = __file__, address
    try:
        yield
    finally:
        ray_constants.SETUP_WORKER_FILENAME = script_before
        if address_before is None:
            del os.environ[ADDRESS]
        else:
            os.environ[ADDRESS] = address_before


@contextlib.contextmanager
def script(address: str, arguments: Sequence[str], files: Sequence[int]) -> Iterator[None]:
    """A process forked by the fork server at `address` that runs the script `arguments[0]` with the other arguments.

    files: its standard input, output and error. It is killed at the end. Raises OSError where nobody listens.
    """
    with connection_to(address) as connection:
        ask(connection, arguments, files)
        yield


# -- the stand-in ----------------------------------------------------------------------------------------------------


def stand_in(arguments: Sequence[str]) -> int:
    """Wait for the worker that is forked for Ray's `arguments`; its exit code. Without one, become it."""
    plain = _plain(arguments)
    connection = _connected() if plain else None
    if connection is not None:
        with connection, connection.makefile("r") as told:
            ask(connection, plain, STREAMS)
            if told.readline():
                return int(told.readline() or 1)
    found = find_spec("ray")
    assert found is not None and found.origin is not None
    own = str(Path(found.origin).parent / "_private" / "workers" / "setup_worker.py")
    os.execv(sys.executable, [sys.executable, own, *arguments])


def _plain(arguments: Sequence[str]) -> list[str]:
    """The worker's script and its arguments, without those of Ray's own first script; empty for a special worker."""
    if not arguments or arguments[0].startswith("-"):
        return []  # an option of Python
    for argument in arguments:
        if argument.startswith(LANGUAGE) and argument != f"{LANGUAGE}PYTHON":
            return []
        if argument.startswith(CONTEXT) and any(json.loads(argument.removeprefix(CONTEXT)).values()):
            return []
    return [a for a in arguments if not a.startswith((LANGUAGE, CONTEXT))]


def _connected() -> socket.socket | None:
    try:
        return connection_to(os.environ[ADDRESS])
    except (OSError, KeyError):
        return None


def connection_to(address: str) -> socket.socket:
    """A connection to the server at this address; OSError where nobody listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def ask(connection: socket.socket, arguments: Sequence[str], files: Sequence[int]) -> None:
    """Send what a process inherits: arguments, environment, folder, masked signals and its standard streams."""
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "cwd": os.getcwd(),
        "masked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    }
    line = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(connection, [line], files)
    if rest := line[sent:]:  # to send nothing is an error, too, where the worker has ended already
        connection.sendall(rest)


# -- the fork server -------------------------------------------------------------------------------------------------


def serve(listener: socket.socket, names: Sequence[str]) -> None:
    """Fork a process for each that asks on `listener`, until standard input ends. `names` are imported first."""
    with listener:
        for name in names:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # what all have in common is not looked through again by each
        wake, wakes = os.pipe()
        for end in (wake, wakes):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        children: dict[socket.socket, int] = {}
        while True:
            ready, _, _ = select.select([sys.stdin, listener, wake, *children], [], [])
            if sys.stdin in ready:
                break
            for one in ready:
                if one is listener:
                    fork(listener.accept()[0], children)
                elif one == wake:
                    os.read(wake, 1 << 12)
                elif one in children and _gone(one):
                    _kill(children[one])
            _reap(children)
        for pid in children.values():
            _kill(pid)


def fork(connection: socket.socket, children: dict[socket.socket, int]) -> None:
    """Take up a request: fork a worker for it, told in `children`, and say so; close what has no request."""
    request, files = received(connection)
    if request is None:
        connection.close()
        return
    try:
        pid = os.fork()
    except OSError:  # no memory or no process ids: the stand-in, unanswered, becomes the worker itself
        for file in files:
            os.close(file)
        connection.close()
        return
    if pid == 0:
        _become(request, files)
    for file in files:
        os.close(file)
    children[connection] = pid
    with contextlib.suppress(OSError):
        connection.sendall(b"\n")


def received(connection: socket.socket) -> tuple[dict | None, list[int]]:
    """The request, None where the other side has gone, and the files that came with it."""
    text, files = b"", []
    while not text.endswith(b"\n"):
        piece, more, _, _ = socket.recv_fds(connection, 1 << 20, len(STREAMS))
        files += more
        if not piece:
            return None, files
        text += piece
    return json.loads(text), files


def _reap(children: dict[socket.socket, int]) -> None:
    for connection, pid in list(children.items()):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            del children[connection]
            code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):
                connection.sendall(f"{code if code >= 0 else 128 - code}\n".encode())
            connection.close()


def _gone(connection: socket.socket) -> bool:
    """Whether who asked is there no more; where it went without reading its answer the connection is broken."""
    try:
        return not connection.recv(1)
    except ConnectionResetError:
        return True


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _change_environment(wanted: dict[str, str]) -> None:
    """What stays is not touched: where it lies in memory Ray finds the place for the name of a worker's process."""
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _become(request: dict, files: Sequence[int]) -> None:
    """In the child: be the process that was asked for, and end as Python ends."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for number, file in zip(STREAMS, files, strict=True):
            os.dup2(file, number)
        os.closerange(len(STREAMS), 1 << 12)
        os.chdir(request["cwd"])
        _change_environment(request["environment"])
        signal.pthread_sigmask(signal.SIG_SETMASK, request["masked"])
        sys.argv = request["arguments"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).resolve().parent))
    if sys.argv[1:2] != [SERVE]:
        sys.exit(stand_in(sys.argv[1:]))
    serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
