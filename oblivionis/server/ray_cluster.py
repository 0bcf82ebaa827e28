"""A Ray cluster of several machines as the place where clients are simulated."""

from __future__ import annotations

import importlib
import logging
import platform
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from oblivionis.errors import RunError
from oblivionis.server import ray_runtime
from oblivionis.version import __version__

_KEY = "federation.ray_address"
_REACH_S, _ANSWER_S = 10.0, 120.0
T = TypeVar("T")


@contextmanager
def cluster(address: str, run: Path) -> Iterator[None]:
    """Join the Ray cluster at `address` for a run in the directory `run`. In the end the clients go, the cluster stays.

    Raises RunError when there is no cluster, or when one of its machines cannot simulate clients of this run.
    """
    with joined(address, _KEY):
        if problems := _problems(run):
            raise RunError(f"{_KEY}: " + "; ".join(problems))
        yield


@contextmanager
def joined(address: str, named: str) -> Iterator[None]:
    """Inside, this process belongs to the Ray cluster at `address`; `named`: the key or option that says where it is.

    Raises RunError when no cluster answers there, or one of another Python or Ray.
    """
    with ExitStack() as inside:
        try:
            _reach(address)
            inside.enter_context(ray_runtime.running(address=address, logging_level=logging.ERROR, log_to_driver=False))
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise RunError(
                f"{named}: no Ray cluster answers at {address!r} ({reason}); start one with "
                "`ray start --head` here and `ray start --address=HOST:PORT` on the other machines"
            ) from None
        yield


def machines() -> list[dict[str, Any]]:
    """What Ray knows of each machine of the cluster that can do work; `joined` comes first."""
    import ray

    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]


def on_each(question: Callable[..., T], *arguments: Any, answer_s: float = _ANSWER_S) -> Iterator[tuple[str, T | str]]:
    """What `question(*arguments)` gives on each machine, by the machine's name; a text where it gives no answer."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked: list[tuple[str, Any]] = []
    for node in machines():
        place: Any = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ray.remote(num_cpus=0, scheduling_strategy=place)(question)
        asked.append((node["NodeManagerAddress"], task.remote(*arguments)))
    for name, answer in asked:
        try:
            yield name, ray.get(answer, timeout=answer_s)
        except RayError as error:
            yield name, f"machine {name} cannot run tasks ({str(error).strip().splitlines()[-1]})"


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
    here = {"oblivionis": __version__, "Python": platform.python_version()}
    problems = []
    for name, there in on_each(_look, str(run)):
        if isinstance(there, str):
            problems.append(there)
            continue
        if not there.pop("sees run"):
            problems.append(f"machine {name} does not see {run}: set output to a folder that all machines share")
        problems += other_versions(name, here, there)
    return problems


def other_versions(name: str, here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """In which of the things `here`, each with its version, the machine `name` differs."""
    return [
        f"machine {name} has {what} {there[what]}, this one {version}: install the same on all"
        for what, version in here.items()
        if there[what] != version
    ]


def _look(run: str) -> dict[str, Any]:
    """On another machine: does it see the run directory, and which versions has it?"""
    try:
        version = importlib.import_module("oblivionis").__version__
    except ImportError:
        version = "missing"
    return {"sees run": Path(run, "config.yaml").is_file(), "oblivionis": version, "Python": platform.python_version()}
