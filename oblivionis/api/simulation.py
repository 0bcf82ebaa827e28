"""Clients of any Flower ClientApp, simulated on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.serverapp import Grid

from oblivionis.flower.names import ENVIRONMENT
from oblivionis.models.hardware import usable_cpus
from oblivionis.runtime.fork_server import fork_server
from oblivionis.runtime.processes import client_processes
from oblivionis.runtime.simulation_grid import simulation_grid


@contextmanager
def simulated_clients(client_app: str, clients: int, *, processes: int | None = None) -> Iterator[Grid]:
    """A Flower `Grid` of simulated clients: a Flower Strategy's `start` takes it.

    Each message is answered by one of a few processes of this machine, forked from one that has imported the app's
    module, and computes with one thread, unless OMP_NUM_THREADS is set: threads that the module starts when it is
    imported are missing in the forked processes. What a client keeps in its `Context` stays with it, and it answers one
    message at a time. Nothing listens on any port. The processes end with the block.

    Parameters
    ----------
    client_app : str
        Where the `flwr.clientapp.ClientApp` is found, as "module:name". The module is imported, so a script guards what
        it runs by ``if __name__ == "__main__":``.
    clients : int, at least 1
        The app finds its number, from 0, as ``partition-id`` in its Context's ``node_config``.
    processes : int, at least 1, optional
        None: one for each core that this process may use.

    Yields
    ------
    Grid

    Raises
    ------
    ValueError
        For a number below 1, or a `client_app` without a colon.
    OSError
        If a process cannot be started.
    RuntimeError
        In a script that is imported for its ClientApp and has no such guard.
    RunError
        On Windows, which cannot fork processes.
    """
    module, colon, _ = client_app.partition(":")
    if not colon:
        raise ValueError(f'client_app is {client_app!r}, expected "module:name"')
    count = min(usable_cpus() if processes is None else processes, clients)
    if count < 1:
        raise ValueError(f"{clients} clients in {processes} processes, expected at least 1 of both")
    with (
        fork_server((module,), {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}) as forks,
        client_processes(forks, client_app, count) as found,
        simulation_grid(found, clients, None) as grid,
    ):
        yield grid
