"""Client processes of this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from logging import ERROR

import psutil
from flwr.app import Context, Message

from oblivionis.runtime.client_process import Raised
from oblivionis.runtime.fork_server import Forked, ForkServer
from oblivionis.runtime.simulation_grid import ClientProcess, ClientProcessDied
from strategies.exact_shares import parts_in
from strategies.flower_internals import log

ADVICE = (
    "If memory is short, let fewer clients run at a time with a larger federation.client_cpus and "
    "federation.client_processes=1"
)
NAME = "client process"
_SERVE = "oblivionis.runtime.client_process:serve"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class ForkedClient(ClientProcess):
    """A process of this machine. `app`: the ClientApp as "module:name"; `devices`: the GPUs it may see."""

    def __init__(self, forks: ForkServer, app: str, devices: str | None) -> None:
        self._forks, self._ended = forks, False
        self._forked: Forked = forks.fork(_SERVE, NAME, {} if devices is None else {_VISIBLE: devices})
        self._forked.channel.send(app)

    def ready(self) -> None:
        """Nothing: it runs since it was forked."""

    def answer(self, message: Message, context: Context) -> tuple[Message | Raised, Context]:
        try:
            self._forked.channel.send((message, context))
            found = self._forked.channel.receive()
        except (EOFError, ConnectionError):
            raise ClientProcessDied("" if self._ended else self._reason()) from None
        if isinstance(found, Raised):
            log(ERROR, "%s\n%s", found.text, found.trace)
            raise ClientProcessDied(found.text)
        return found

    def end(self) -> None:
        self._ended = True
        self._forked.kill()
        self._forked.channel.hang_up()  # what the process has started may hold its end open

    def _reason(self) -> str:
        code, memory = self._forks.exit_code(self._forked.pid), psutil.virtual_memory()
        if code == -signal.SIGKILL:
            used = f"{(memory.total - memory.available) / 1e9:.1f} of {memory.total / 1e9:.1f} GB"
            return f"it was killed, as Linux does where memory runs short ({used} are in use). {ADVICE}"
        if code is not None and code < 0:
            return f"it crashed ({signal.strsignal(-code)}). {ADVICE}"
        return "how is not known" if code is None else f"it ended with exit code {code}"


def processor_seconds() -> float:
    """Processor time of this process and of all that it has started, those included that have ended."""
    total = 0.0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@contextmanager
def client_processes(
    forks: ForkServer, app: str, count: int, *, gpus: int = 0, share: float = 0.0
) -> Iterator[Sequence[ClientProcess]]:
    """`count` processes, each with `share` of the machine's `gpus` where that is above 0. OSError without memory."""
    found: list[ForkedClient] = []
    try:
        for number in range(count):
            found.append(ForkedClient(forks, app, devices(number, gpus, share) if share > 0 else None))
        yield found
    finally:
        for process in found:
            process.end()


def devices(number: int, gpus: int, share: float) -> str:
    """The GPUs of client process `number`, from 0, as CUDA reads them: `share` of one each, or so many whole ones."""
    names = os.environ[_VISIBLE].split(",") if os.environ.get(_VISIBLE) else [str(gpu) for gpu in range(gpus)]
    if share < 1:
        return names[number // parts_in(1, share) % len(names)]
    whole = int(share)
    return ",".join(names[(number * whole + i) % len(names)] for i in range(whole))
