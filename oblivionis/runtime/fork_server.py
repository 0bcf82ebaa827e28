"""Processes of this machine, forked from one that has the libraries loaded.

Importing torch, transformers and peft takes a process seconds. The fork server, this file as a script, imports them
once and forks itself for each process that is asked for. It hears by a socket pair that it inherits, so that nobody
else can ask, and ends, with all that it forked, when the other end is closed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from oblivionis.errors import RunError
from oblivionis.runtime.transfer import Channel

_ENDS_S = 10.0
_inside = False
"""Whether this process is a fork server or forked from one."""


class Forked:
    """A forked process: what is sent to it, and its id.

    handle: of the system, of this process alone, where there are such (Linux), for another one may have its id later;
    ended: the processes of which it is known that they have ended.
    """

    def __init__(self, channel: Channel, pid: int, handle: int | None, ended: Collection[int]) -> None:
        self.channel, self.pid, self._handle, self._known_to_have_ended = channel, pid, handle, ended
        if handle is not None:
            weakref.finalize(self, os.close, handle)

    def kill(self) -> None:
        """End the process at once, if it has not ended yet."""
        with contextlib.suppress(OSError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            elif self.pid not in self._known_to_have_ended:
                os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """This process's end. Its methods may be called by several threads."""

    def __init__(self, control: socket.socket) -> None:
        self._socket, self._control = control, Channel(control)
        self._lock = threading.Lock()
        self._ended: dict[int, int] = {}

    def fork(self, function: str, name: str, environment: Mapping[str, str] | None = None) -> Forked:
        """Fork a process that calls `function`, as "module:name", with its end of a channel.

        name: what `ps -o comm` shows, at most 15 characters; environment: variables that it has besides this process's
        own. OSError where the fork server has ended, or there is no memory for another process.
        """
        ours, theirs = socket.socketpair()
        handle: int | None = None
        with self._lock, theirs:
            try:
                self._control.send((function, name, {**os.environ, **(environment or {})}, os.getcwd()))
                socket.send_fds(self._socket, [b"\0"], [theirs.fileno()])
                if pid := self._answer():
                    self._ended.pop(pid, None)  # an earlier process had its id
                    handle = next(iter(socket.recv_fds(self._socket, 1, 1)[1]), None)
            except (EOFError, ConnectionError):
                ours.close()
                raise OSError("the process that starts the others has ended: is memory short?") from None
        if pid == 0:
            ours.close()
            raise OSError("no process can be started: is memory short?")
        return Forked(Channel(ours), pid, handle, self._ended)

    def exit_code(self, pid: int, timeout_s: float = _ENDS_S) -> int | None:
        """How a process ended: its exit code, or minus the signal's number; None where it has not ended in time."""
        with self._lock:
            while pid not in self._ended:
                if not wait([self._socket], timeout_s):
                    return None
                try:
                    self._note(self._control.receive())
                except (EOFError, ConnectionError):
                    return None
            return self._ended[pid]

    def _answer(self) -> int:
        """The id of the forked process; processes that end meanwhile are noted."""
        while not isinstance(found := self._control.receive(), int):
            self._note(found)
        return found

    def _note(self, ended: tuple[int, int]) -> None:
        pid, code = ended
        self._ended[pid] = code


@contextlib.contextmanager
def fork_server(
    modules: Sequence[str], environment: Mapping[str, str], prepare: tuple[str, object] | None = None
) -> Iterator[ForkServer]:
    """A fork server that imports `modules` first. What it has forked ends with it.

    prepare: a function, as "module:name", that is then called with this value, so that what it keeps need not be made
    in each process; what it raises is lost.

    environment: variables that are set before a library is imported, unless the user has set them. RunError where the
    system cannot fork; RuntimeError in a process that a fork server has forked or will fork: a script that begins one
    when it is imported would do so for ever.
    """
    if not hasattr(os, "fork"):
        raise RunError("clients are simulated on Linux and macOS; on Windows, use the Windows Subsystem for Linux")
    if _inside:
        raise RuntimeError('a script whose ClientApp is simulated starts what it runs by if __name__ == "__main__":')
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno()), *modules],
            env={**environment, **os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[theirs.fileno()],
        )
    try:
        with contextlib.suppress(OSError):  # that it has ended is told to who asks for a process
            Channel(ours).send(prepare)
        yield ForkServer(ours)
    finally:
        ours.close()
        process.terminate()  # it ignores this once it serves, and then ends since the socket is closed
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_ENDS_S)
        process.kill()
        process.wait()


# -- in the fork server ------------------------------------------------------------------------------------------------


def serve(end: socket.socket, modules: Sequence[str]) -> None:
    """Fork a process for each request until the other end is closed.

    A module that cannot be imported is left to the process that needs it, which can tell.
    """
    global _inside
    _inside = True
    for name in modules:
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
    control = Channel(end)
    with contextlib.suppress(Exception, SystemExit):
        if prepare := control.receive():
            _named(prepare[0])(prepare[1])
    gc.collect()
    gc.freeze()  # a child's garbage collector touches none of this, so that the memory stays shared
    children, ended = set[int](), os.pipe()
    for number in ended:
        os.set_blocking(number, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.set_wakeup_fd(ended[1], warn_on_full_buffer=False)
    with contextlib.suppress(EOFError, OSError):
        while True:
            ready, _, _ = select.select([end, ended[0]], [], [])
            if ended[0] in ready:
                os.read(ended[0], 1 << 12)
                for pid in list(children):
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done:
                        children.discard(pid)
                        control.send((pid, os.waitstatus_to_exitcode(status)))
            if end in ready:
                function, name, environment, folder = control.receive()
                _, (channel, *_), _, _ = socket.recv_fds(end, 1, 1)
                try:
                    pid = os.fork()
                except OSError:
                    pid = -1
                if pid == 0:
                    _become(function, name, environment, folder, channel)
                os.close(channel)
                if pid > 0:
                    children.add(pid)
                control.send(max(pid, 0))
                if pid > 0:
                    _send_handle(end, pid)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)
    os.killpg(0, signal.SIGKILL)  # this process, and what those have started


def _send_handle(end: socket.socket, pid: int) -> None:
    """Send a byte, with a handle of the child where the system has them: until it is waited for its id is its own."""
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        end.send(b"\0")
        return
    socket.send_fds(end, [b"\0"], [handle])
    os.close(handle)


def _named(function: str) -> Callable[[Any], None]:
    """The function "module:name"."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def _become(function: str, name: str, environment: Mapping[str, str], folder: str, channel: int) -> None:
    """In the child: be the process that was asked for, and end."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asked, which ends this one
        os.dup2(channel, 3, inheritable=False)
        os.closerange(4, 1 << 12)
        for variable in os.environ.keys() - environment.keys():
            del os.environ[variable]
        os.environ.update(environment)
        os.chdir(folder)
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(name)
        asked = Channel(socket.socket(fileno=3))
        os.register_at_fork(after_in_child=asked.close)  # or nobody would hear that this process has ended
        _named(function)(asked)
        code = 0
    except (EOFError, BrokenPipeError, ConnectionResetError):
        code = 0  # who asked has ended
    except BaseException:
        traceback.print_exc()
    os._exit(code)


if __name__ == "__main__":
    from oblivionis.runtime import fork_server as imported  # what it notes there is seen by who imports it

    imported.serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
