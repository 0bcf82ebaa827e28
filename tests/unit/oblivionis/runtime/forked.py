"""Functions that processes of the tests are forked for."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from oblivionis.runtime.transfer import Channel


def describe(channel: Channel) -> None:
    """What this process is like; then what it is sent, doubled."""
    channel.send(
        {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "cwd": os.getcwd(),
            "mine": os.environ.get("MINE"),
            "loaded": "json.tool" in sys.modules,
            "files": sorted(map(int, os.listdir("/proc/self/fd")))[:5],
        }
    )
    while True:
        channel.send(channel.receive() * 2)


def wait(channel: Channel) -> None:
    """Say its process id, and wait for long."""
    channel.send(os.getpid())
    time.sleep(600)


def start(channel: Channel) -> None:
    """Start another process, and say its id."""
    channel.send(subprocess.Popen(["sleep", "60"]).pid)
    time.sleep(600)


_kept = ""


def prepare(value: str) -> None:
    """Keep a value, for processes that are forked from this one."""
    global _kept
    _kept = value


def prepared(channel: Channel) -> None:
    """What is kept."""
    channel.send(_kept)


def fail(channel: object) -> None:
    """Break off with an exception."""
    raise ValueError("on purpose")
