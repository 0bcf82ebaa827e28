"""Client processes on the machines of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from flwr.app import Context, Message
from ray.exceptions import RayError

from oblivionis.runtime.client_process import ClientAppHost, Raised
from oblivionis.runtime.simulation_grid import ClientProcess, ClientProcessDied


class RayClient(ClientProcess):
    """An actor of Ray's. `app`: the ClientApp as "module:name"; `cpus`, `gpus`: what is reserved for it."""

    def __init__(self, app: str, cpus: float, gpus: float) -> None:
        self._actor: Any = ray.remote(ClientAppHost).options(num_cpus=cpus, num_gpus=gpus).remote(app)

    def ready(self) -> None:
        self._got(self._actor.__ray_ready__.remote())

    def answer(self, message: Message, context: Context) -> tuple[Message | Raised, Context]:
        return self._got(self._actor.answer.remote(message, context))

    def _got(self, asked: Any) -> Any:
        try:
            return ray.get(asked)
        except RayError as error:
            raise ClientProcessDied(" ".join(str(error).split())) from None

    def end(self) -> None:
        ray.kill(self._actor)


def room(cpus: float, gpus: float) -> int:
    """How many actors that reserve `cpus` and `gpus` the machines of the cluster have room for."""
    count = 0
    for node in ray.nodes():
        if node["Alive"]:
            fitting = int(node["Resources"].get("CPU", 0) / cpus)
            count += min(fitting, int(node["Resources"].get("GPU", 0) / gpus)) if gpus > 0 else fitting
    return count


@contextmanager
def client_actors(app: str, count: int, *, cpus: float, gpus: float) -> Iterator[Sequence[ClientProcess]]:
    """`count` actors, which end with the block."""
    found = [RayClient(app, cpus, gpus) for _ in range(count)]
    try:
        yield found
    finally:
        for actor in found:
            actor.end()
