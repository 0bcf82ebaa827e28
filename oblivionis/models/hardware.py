"""What the machine has and what a simulation takes of it: client processes at once, GPUs, optional packages."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

import psutil
import torch

from oblivionis.config.schema import Config
from oblivionis.errors import OblivionisError
from oblivionis.models.loading import require_bitsandbytes
from strategies.exact_shares import ceil_of, parts_in


class ResourceError(OblivionisError):
    """The machine does not have what the configuration requires."""


@dataclass(frozen=True, slots=True)
class Machine:
    """CPU cores, GPUs, free bytes of RAM and of the first GPU, which the server uses too."""

    cpus: int
    gpus: int
    free_ram: int
    free_gpu: int = 0

    @classmethod
    def here(cls) -> Machine:
        """This machine, now."""

        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        free = torch.cuda.mem_get_info(0)[0] if gpus else 0
        return cls(usable_cpus(), gpus, psutil.virtual_memory().available, free)


def usable_cpus() -> int:
    """CPU cores that this process may run on: fewer than the machine's under `taskset` or in a container."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def participants(config: Config) -> int:
    """Clients that fine-tune in a round, those asked beyond need included; of asynchronous rounds, at any time."""
    federation = config.federation
    if federation.buffer.size and federation.buffer.concurrency is not None:
        return federation.buffer.concurrency
    drawn = max(federation.per_round, 1)
    return min(ceil_of(federation.oversample, drawn), max(drawn, federation.clients))


def uses_gpu(config: Config, machine: Machine) -> bool:
    """Whether the models lie on a GPU."""
    return config.model.device == "cuda" or (config.model.device == "auto" and machine.gpus > 0)


def processor(config: Config) -> str:
    """The kind of processor that models are computed on: of a GPU its name, of a CPU its architecture and the vector
    instructions that are used. The same work on another kind can give other last bits."""
    if uses_gpu(config, Machine.here()):
        return torch.cuda.get_device_name(0)
    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def server_threads(config: Config, machine: Machine) -> tuple[int, int]:
    """CPU threads that measure: those of the server's process, and of a second one, 0 where there is none."""
    threads = config.federation.server_threads or machine.cpus
    second = threads // 2 if config.evaluation.processes > 1 and not uses_gpu(config, machine) else 0
    return threads - second, second


def client_processes(config: Config, machine: Machine) -> int:
    """Client processes that run at once: as cores and GPUs allow, at least as configured, at most the participants."""
    federation = config.federation
    fitting = max(federation.client_processes, machine.cpus // federation.client_cpus)
    if federation.client_gpus > 0:
        share = federation.client_gpus
        fitting = min(fitting, machine.gpus * parts_in(1, share) if share < 1 else parts_in(machine.gpus, share))
    return min(fitting, participants(config))


def check(config: Config, machine: Machine) -> list[str]:
    """Hints on what is allowed but seldom meant. Raises ResourceError, or ModelError for a missing package."""
    model, federation = config.model, config.federation
    if model.quantization != "none":
        require_bitsandbytes(f"model.quantization={model.quantization}")
    on_gpu = uses_gpu(config, machine)
    if model.device == "cuda" and machine.gpus == 0:
        raise ResourceError("model.device is cuda, but torch sees no GPU; use model.device=auto")
    if federation.client_gpus > machine.gpus and federation.ray_address is None:
        found = "no GPU" if machine.gpus == 0 else f"{machine.gpus} GPU{'' if machine.gpus == 1 else 's'}"
        raise ResourceError(
            f"federation.client_gpus={federation.client_gpus:g} is more than this machine has, torch sees {found}; "
            + ("set federation.client_gpus=0 to run on the CPU" if machine.gpus == 0 else "lower it")
        )
    if config.training.optimizer == "paged_adamw_32bit":
        if not on_gpu:
            raise ResourceError("training.optimizer=paged_adamw_32bit needs a GPU; use training.optimizer=adamw")
        require_bitsandbytes("training.optimizer=paged_adamw_32bit")
    hints = []
    if on_gpu and federation.client_gpus == 0:
        count = client_processes(config, machine)
        hints.append(
            f"federation.client_gpus is 0: nothing limits how many of the client processes (here {count}) share the "
            "first GPU; 1 gives each a GPU of its own, 0.5 lets two share one"
        )
    if model.quantization == "int8" and not on_gpu:
        hints.append(
            "int8 on a CPU: bitsandbytes trains with dequantised weights, but rounds activations to 8 bits as well "
            "when it evaluates, so that the same loss differs a little between the two; nf4 has no such difference"
        )
    return hints
