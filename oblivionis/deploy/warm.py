"""Flower's SuperExec with warm ClientApps: each is forked from a process that has the libraries loaded already.

Flower starts a process for every message. Importing torch, transformers and peft takes such a process several seconds,
more than many messages need for their work. The fork server of `multiprocessing` imports them once and runs nothing
else: it holds no lock and no CUDA context that a child would inherit (BLAS stops its threads for a fork). The program
itself is not imported there: it comes with each run, and a ClientApp loads it as ever.

The `bin/flower-superexec` of a node's folder runs `main`, so that a SuperNode finds it instead of Flower's own. It
stands on internals of Flower 1.41, to which the package is pinned.
"""

from __future__ import annotations

import multiprocessing
import sys
from importlib import metadata
from logging import WARNING
from multiprocessing import forkserver

from flwr.supercore import log
from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode.runtime.run_clientapp import run_clientapp

from oblivionis.models.forking import forkable


def libraries(torch_version: str) -> tuple[str, ...]:
    """What is imported beforehand."""
    always = ("flwr.supernode.runtime.run_clientapp", "torch")
    return (*always, "transformers", "peft") if forkable(torch_version) else always


class WarmExecutor(SubprocessExecutor):
    """Forks ClientApps; all else, what shall say nothing and what cannot be forked starts as Flower starts it."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*libraries(metadata.version("torch"))])
        forkserver.ensure_running()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process of one message, which ends with the SuperExec."""
        if spec.task_type != TaskType.CLIENT_APP or spec.suppress_output:
            return super().launch(spec)
        multiprocessing.active_children()  # forgets those that have ended
        arguments = {
            "runtime_api_address": spec.runtime_api_address,
            "token": spec.token,
            "insecure": spec.insecure,
            "certificates": validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure),
            "parent_pid": spec.parent_pid,
            "runtime_dependency_install": spec.runtime_dependency_install,
        }
        try:
            self._context.Process(target=run_clientapp, kwargs=arguments, daemon=True).start()
        except (OSError, EOFError) as error:
            log(WARNING, "no process could be forked (%s); starting a new one", error or type(error).__name__)
            return super().launch(spec)
        return LaunchResult.accepted()


def main() -> None:
    """`flower-superexec` with its own arguments, and warm ClientApps."""
    sys.argv[0] = "flower-superexec"
    run_superexec.get_executor = lambda *_, **__: WarmExecutor()  # pyright: ignore[reportPrivateImportUsage]
    flower_superexec()
