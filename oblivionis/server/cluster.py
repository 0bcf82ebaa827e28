"""A Ray cluster of several machines as the place where clients are simulated."""

from __future__ import annotations

import importlib
import logging
import platform
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from oblivionis.errors import RunError
from oblivionis.server import ray_runtime
from oblivionis.version import __version__

_REACH_S, _ANSWER_S = 10.0, 120.0


@contextmanager
def cluster(address: str, run: Path) -> Iterator[None]:
    """Join the Ray cluster at `address` for a run in the directory `run`. In the end the clients go, the cluster stays.

    Raises RunError when there is no cluster, or when one of its machines cannot simulate clients of this run.
    """
    with ExitStack() as joined:
        try:
            _reach(address)
            joined.enter_context(ray_runtime.running(address=address, logging_level=logging.ERROR, log_to_driver=False))
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise RunError(
                f"federation.ray_address: no Ray cluster answers at {address!r} ({reason}); start one with "
                "`ray start --head` here and `ray start --address=HOST:PORT` on the other machines"
            ) from None
        if problems := _problems(run):
            raise RunError("federation.ray_address: " + "; ".join(problems))
        yield


def _reach(address: str) -> None:
    """OSError or ValueError when nothing listens there: Ray would try for many minutes."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError("expected host:port or auto")
    socket.create_connection((host, int(port)), _REACH_S).close()


def _problems(run: Path) -> list[str]:
    """Why machines of the cluster cannot take part: each must see the run directory and have the same program."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = {"oblivionis": __version__, "Python": platform.python_version()}
    problems = []
    for node in ray.nodes():
        if not node["Alive"] or not node["Resources"].get("CPU"):
            continue
        place: Any = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ray.remote(num_cpus=0, scheduling_strategy=place)(_look)
        name = node["NodeManagerAddress"]
        try:
            there: dict[str, Any] = ray.get(task.remote(str(run)), timeout=_ANSWER_S)
        except RayError as error:
            problems.append(f"machine {name} cannot run tasks ({str(error).strip().splitlines()[-1]})")
            continue
        if not there.pop("sees run"):
            problems.append(f"machine {name} does not see {run}: set output to a folder that all machines share")
        problems += [
            f"machine {name} has {what} {there[what]}, this one {version}: install the same on all"
            for what, version in here.items()
            if there[what] != version
        ]
    return problems


def _look(run: str) -> dict[str, Any]:
    """On another machine: does it see the run directory, and which versions has it?"""
    try:
        version = importlib.import_module("oblivionis").__version__
    except ImportError:
        version = "missing"
    return {"sees run": Path(run, "config.yaml").is_file(), "oblivionis": version, "Python": platform.python_version()}
