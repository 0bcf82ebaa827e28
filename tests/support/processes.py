"""Real processes in tests: their environment, finding them again, waiting, free ports."""

import ipaddress
import os
import shutil
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

PROJECT = Path(__file__).resolve().parents[2]
SITE = PROJECT / "tests" / "support" / "site"
"""On the PYTHONPATH of what is to be handed over to a warm process (`forks.py`)."""
MARK = "OBLIVIONIS_TEST_MARK"
FORKED = "OBLIVIONIS_TEST_FORKED"
"""In the environment of what `forks.py` forked; whoever handed over to it has the same command line."""
IN_ONE_PROCESS = PROJECT / "tests" / "support" / "in_one_process.py"
"""Runs first in commands (`OBLIVIONIS_TEST_PATCH`), so that their simulations begin no process."""


def checkout(folder):
    """A copy of this checkout without what was installed and made in it: `flwr run` looks at each file of a folder."""
    own = {"pyproject.toml", "LICENSE", "oblivionis", "strategies", "clients", "evaluation", "conf", "docs"}
    shutil.copytree(
        PROJECT, folder, ignore=lambda at, names: {"__pycache__"} | (set(names) - own if Path(at) == PROJECT else set())
    )
    return folder


def environment(**more):
    """This environment, offline, with Flower's and our own commands on the PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    offline = {"HF_HUB_OFFLINE": "1", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return {**os.environ, "PATH": path, **offline, **{k: str(v) for k, v in more.items()}}


def marked(value, name="", **variables):
    """Live processes with the mark `value`, these variables and `name` in their name or command, whoever began them."""
    found = []
    for process in psutil.process_iter():
        try:
            wanted = {MARK: str(value), **variables}.items() <= process.environ().items()
            if wanted and (name in process.name() or name in " ".join(process.cmdline())):
                found.append(process)
        except psutil.Error:
            continue
    return found


def end(processes, how):
    """`terminate` or `kill` each; some may be gone by now."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            getattr(process, how)()


def until(condition, seconds, *, every=0.02):
    """The first true value of `condition()`; None after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            return None
        time.sleep(every)
    return value


def free_ports(number):
    """Ports of 127.0.0.1 that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@contextmanager
def listening(processes, *, every=0.2):
    """Yields a set that fills with who listens where, as (program, address), while `processes()` run."""
    found, over = set(), threading.Event()

    def look():
        while not over.wait(every):
            for process in processes():
                with suppress(psutil.Error):
                    name, sockets = process.name(), process.net_connections("inet")
                    found.update(
                        (name, s.laddr.ip) for s in sockets if s.status == "LISTEN" or s.type == socket.SOCK_DGRAM
                    )

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def reached_from_elsewhere(found):
    """Those of (program, address) on whose address other machines may speak to this one."""

    def loopback(address):
        one = ipaddress.ip_address(address)
        return (getattr(one, "ipv4_mapped", None) or one).is_loopback

    return {(name, address) for name, address in found if not loopback(address)}
