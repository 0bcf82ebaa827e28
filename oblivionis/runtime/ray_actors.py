"""Client processes on the machines of a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from flwr.app import Context, Message
from ray.exceptions import RayError

from oblivionis.naming import counted
from oblivionis.runtime.client_process import ClientAppHost, Raised
from oblivionis.runtime.simulation_grid import ClientProcess, ClientProcessDied

_TELL_S = 5.0


class RayClient(ClientProcess):
    """An actor of Ray's. `app`: the ClientApp as "module:name"; `cpus`, `gpus`: what is reserved for it."""

    def __init__(self, app: str, cpus: int, gpus: float) -> None:
        self._actor: Any = ray.remote(ClientAppHost).options(num_cpus=cpus, num_gpus=gpus).remote(app)

    def place(self) -> Any:
        """What Ray resolves once the actor has a place to run."""
        return self._actor.__ray_ready__.remote()

    def ready(self) -> None:
        self._got(self.place())

    def answer(self, message: Message, context: Context) -> tuple[Message | Raised, Context]:
        return self._got(self._actor.answer.remote(message, context))

    def _got(self, asked: Any) -> Any:
        try:
            return ray.get(asked)
        except RayError as error:
            raise ClientProcessDied(" ".join(str(error).split())) from None

    def end(self) -> None:
        ray.kill(self._actor)


def room(cpus: int, gpus: float) -> int:
    """How many actors that reserve `cpus` and `gpus` the machines of the cluster have room for."""
    count = 0
    for node in ray.nodes():
        if node["Alive"]:
            fitting = int(node["Resources"].get("CPU", 0) / cpus)
            count += min(fitting, int(node["Resources"].get("GPU", 0) / gpus)) if gpus > 0 else fitting
    return count


@contextmanager
def client_actors(
    app: str, count: int, *, cpus: int, gpus: float, wait_s: float, tell: Callable[[str], None]
) -> Iterator[Sequence[ClientProcess]]:
    """`count` actors, which end with the block; it begins once the first of them has a place to run.

    `tell` is told what it waits for, if that takes long. TimeoutError where no actor has a place within `wait_s`.
    """
    found = [RayClient(app, cpus, gpus) for _ in range(count)]
    try:
        cores = counted(cpus, "CPU core")
        _wait_for_one(found, f"{cores} and {counted(gpus, 'GPU')}" if gpus else cores, wait_s, tell)
        yield found
    finally:
        for actor in found:
            actor.end()


def _wait_for_one(actors: Sequence[RayClient], wanted: str, wait_s: float, tell: Callable[[str], None]) -> None:
    places = [actor.place() for actor in actors]
    end, told = time.monotonic() + wait_s, time.monotonic() + _TELL_S
    while not ray.wait(places, timeout=min(1.0, wait_s))[0]:
        if time.monotonic() >= end:
            raise TimeoutError(
                f"others have taken what the Ray cluster has: no machine had {wanted} free for a client within "
                f"{wait_s:g} s (federation.wait_for_clients)"
            )
        if time.monotonic() >= told:
            told = end
            tell(f"waiting up to {wait_s:g} s for a machine of the Ray cluster with {wanted} free for a client")
