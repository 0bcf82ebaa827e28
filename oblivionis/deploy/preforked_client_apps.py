"""Flower's SuperExec with warm ClientApps: each is forked from a process that has the libraries loaded already.

Flower starts a process for every message. Importing torch, transformers and peft takes such a process several seconds,
more than many messages need for their work. The fork server of `multiprocessing` imports them once and runs nothing
else: it holds no lock and no CUDA context that a child would inherit (BLAS stops its threads for a fork). The program
itself is not imported there: it comes with each run, and a ClientApp loads it as ever.

The `bin/flower-superexec` of a node's folder runs `main`, so that a SuperNode finds it instead of Flower's own. What
it stands on of Flower is `oblivionis.flower.superexec`.
"""

from __future__ import annotations

import multiprocessing
import sys
from importlib import metadata
from logging import WARNING
from multiprocessing import forkserver

from oblivionis.flower.superexec import (
    CLIENT_APP,
    RUN_CLIENTAPP,
    ExecutionSpec,
    LaunchResult,
    SubprocessExecutor,
    arguments_of,
    flower_superexec,
    run_clientapp,
    use_executor,
)
from oblivionis.models.fork_safe_imports import libraries
from strategies.flower_internals import log


class WarmExecutor(SubprocessExecutor):
    """Forks ClientApps; all else, what shall say nothing and what cannot be forked starts as Flower starts it."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([RUN_CLIENTAPP, *libraries(metadata.version("torch"))])
        forkserver.ensure_running()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process of one message, which ends with the SuperExec."""
        if spec.task_type != CLIENT_APP or spec.suppress_output:
            return super().launch(spec)
        multiprocessing.active_children()  # forgets those that have ended
        try:
            self._context.Process(target=run_clientapp, kwargs=arguments_of(spec), daemon=True).start()
        except (OSError, EOFError) as error:
            log(WARNING, "no process could be forked (%s); starting a new one", error or type(error).__name__)
            return super().launch(spec)
        return LaunchResult.accepted()


def main() -> None:
    """`flower-superexec` with its own arguments, and warm ClientApps."""
    sys.argv[0] = "flower-superexec"
    use_executor(WarmExecutor)
    flower_superexec()
