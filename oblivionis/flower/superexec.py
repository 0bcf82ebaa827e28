"""Flower's SuperExec, which starts the process of each message on a node."""

from __future__ import annotations

from collections.abc import Callable

from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode.runtime.run_clientapp import run_clientapp

__all__ = [
    "CLIENT_APP",
    "RUN_CLIENTAPP",
    "ExecutionSpec",
    "LaunchResult",
    "SubprocessExecutor",
    "arguments_of",
    "flower_superexec",
    "run_clientapp",
    "use_executor",
]

CLIENT_APP = TaskType.CLIENT_APP
RUN_CLIENTAPP = "flwr.supernode.runtime.run_clientapp"
"""The module that a process of a ClientApp runs."""


def arguments_of(spec: ExecutionSpec) -> dict[str, object]:
    """What `run_clientapp` is called with for a task."""
    return {
        "runtime_api_address": spec.runtime_api_address,
        "token": spec.token,
        "insecure": spec.insecure,
        "certificates": validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure),
        "parent_pid": spec.parent_pid,
        "runtime_dependency_install": spec.runtime_dependency_install,
    }


def use_executor(make: Callable[[], SubprocessExecutor]) -> None:
    """Have this process's `flower_superexec` start tasks by what `make` gives."""
    run_superexec.get_executor = lambda *_, **__: make()  # pyright: ignore[reportPrivateImportUsage]
