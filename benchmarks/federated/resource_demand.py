"""What a run asks of the machine that does it: CPU cores, GPUs and, by the memory estimate, RAM."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.federated.options import Reserve
from benchmarks.scheduling.memory import memory_key
from oblivionis.config.schema import Config
from oblivionis.errors import OblivionisError
from oblivionis.reports.format import bytes_text

MARGIN = 1.25
"""By how much a run may exceed its estimate: what was measured lies within a quarter of it."""
BESIDES = 1_000_000_000
"""Bytes of what the estimate leaves out: the processes of the run's own Ray."""
_STEP = 100_000_000


@dataclass(frozen=True)
class Demand:
    """cpus: cores; gpus: GPUs; memory: bytes of RAM, 0 where nobody can tell."""

    cpus: int
    gpus: int
    memory: int

    def __str__(self) -> str:
        parts = [f"{self.cpus} CPU{'s' * (self.cpus != 1)}"]
        parts += [f"{self.gpus} GPU{'s' * (self.gpus != 1)}"] if self.gpus else []
        parts += [f"{bytes_text(self.memory)} of RAM"] if self.memory else []
        return ", ".join(parts)


class Demands:
    """The demands of a suite's runs; runs that differ in nothing that takes memory are estimated once.

    gpus_there: whether machines have GPUs, which a model with `model.device=auto` then takes; tell: called, once each,
    with why a run's memory cannot be estimated.
    """

    def __init__(self, reserve: Reserve, *, gpus_there: bool, tell: Callable[[str], None]) -> None:
        self._reserve, self._gpus_there, self._tell = reserve, gpus_there, tell
        self._known: dict[str, int] = {}
        self._said: set[str] = set()

    def of(self, config: Config) -> Demand:
        """What a run with `config` asks."""
        gpus = self._gpus(config)
        cpus = max(self._reserve.cpus, config.federation.client_cpus)
        if self._reserve.memory is not None:
            return Demand(cpus, gpus, self._reserve.memory)
        key = json.dumps([memory_key(config), cpus, gpus])
        if key not in self._known:
            self._known[key] = self.estimated(config, cpus, gpus)
        return Demand(cpus, gpus, self._known[key])

    def _gpus(self, config: Config) -> int:
        if self._reserve.gpus is not None:
            return self._reserve.gpus
        shares = config.federation.client_gpus
        on_gpu = config.model.device == "cuda" or shares > 0 or (config.model.device == "auto" and self._gpus_there)
        return max(1, math.ceil(shares)) if on_gpu else 0

    def estimated(self, config: Config, cpus: int, gpus: int) -> int:
        """Bytes of memory that a run takes with a margin, in whole steps; 0, which a line tells, if that is unknown."""
        from oblivionis.models.hardware import Machine
        from oblivionis.models.memory import estimate
        from oblivionis.server.preflight import lengths_of

        try:
            ram = estimate(config, Machine(cpus, gpus, free_ram=0), lengths_of(config)).ram
        except Exception as error:  # a model whose pass cannot be tried without numbers may still run
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._say_once(f"the memory of some runs cannot be told beforehand ({reason}); name it with --memory GB")
            return 0
        return math.ceil((MARGIN * ram + BESIDES) / _STEP) * _STEP

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._tell(text)


def check(config: Config, label: str) -> None:
    """Raises OblivionisError for a run whose clients are spread by Ray themselves: it cannot be put on one machine."""
    if config.federation.ray_address is not None:
        raise OblivionisError(
            f"{label}: federation.ray_address spreads the clients of one run, this command whole runs; leave one out"
        )
