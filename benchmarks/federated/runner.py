"""Runs a suite of the kind `federated`: its graph of runs, several at a time, then results, tables and report."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from benchmarks.federated import collecting, processes, results
from benchmarks.federated.graph import Graph, Node, plan
from benchmarks.federated.options import Options
from benchmarks.federated.processes import Job, Slot
from benchmarks.federated.report import NODES, write_report
from benchmarks.federated.settings import Settings
from oblivionis.config import compose as configuration
from oblivionis.errors import OblivionisError, RunFailed
from oblivionis.files import write_json
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.forecast import duration
from oblivionis.runs.progress import Bars
from oblivionis.runs.reuse import import_updates, take_over
from oblivionis.runs.ticker import Ticker

_POLL_S = 0.2


def announce(settings: Settings, options: Options) -> list[str]:
    """What `run` would do."""
    graph = plan(settings.cells(), settings.oracles)
    done = [node for node in graph.nodes if node.finished(options.store)]
    saved = sum(_seconds(node, options.store) for node in done)
    lines = [
        f"experiment: {settings.experiment}; stages: {', '.join(settings.stages)}",
        *(f"{axis.name}: {', '.join(value.label for value in axis.values)}" for axis in settings.axes()),
        f"{len(graph.of_cell)} cells in {len(graph.nodes)} runs, {options.jobs} at a time",
    ]
    if done:
        lines.append(f"{len(done)} of them are in {options.store} already, which saves {duration(saved)}")
    marks = [("done" if node in done else "to do", node) for node in graph.nodes]
    return lines + [f"  {mark:5}  {node.label}{_after(node)}" for mark, node in marks]


def _after(node: Node) -> str:
    return f"  (after {' and '.join(need.label for need in node.after)})" if node.after else ""


def _seconds(node: Node, store: Path) -> float:
    """Seconds of the stages that this run did itself."""
    run = node.run(store)
    summaries = [run.stage_summary(stage) for stage in node.config.stages]
    return sum(s["seconds"] for s in summaries if s is not None and "reused_from" not in s)


def run(settings: Settings, folder: Path, console: Console, options: Options) -> None:
    """Do the runs that the store lacks, then write and print results, tables and report.

    A run that fails is told and keeps the others going, except those that need it. Raises RunFailed at the end when
    cells failed, KeyboardInterrupt after the runs under way were stopped.
    """
    cells = settings.cells()
    graph = plan(cells, settings.oracles)
    started = time.monotonic()
    work = _Work(graph, options, console)

    def save() -> None:
        found = collecting.collect(settings.axes(), cells, graph, options.store, folder, work.failures)
        results.write(found, folder)
        write_json(folder / NODES, work.facts(time.monotonic() - started))

    with _sigterm_as_ctrl_c():
        work.execute(save)
    save()
    write_report(settings, folder, console)
    failed = [cell.id for cell in cells if not all(n.finished(options.store) for n in graph.of_cell[cell.id])]
    if failed:
        raise RunFailed(
            f"{len(failed)} of {len(cells)} cells failed: {', '.join(failed)}; try them again with --resume"
        )


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    def handle(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Work:
    """The runs of a graph under way."""

    def __init__(self, graph: Graph, options: Options, console: Console) -> None:
        self._graph, self._store, self._console = graph, options.store, console
        self._free: list[Slot] = processes.slots(options.jobs)
        self._jobs: dict[str, tuple[Node, Slot, Job]] = {}
        self._width = options.jobs
        self.failures: dict[str, str] = {}
        self._took: dict[str, float] = {}
        self._found = {node.key for node in graph.nodes if node.finished(options.store)}

    def execute(self, changed: Any) -> None:
        """Do everything that is not done; `changed` is called whenever a run ended."""
        pending = [node for node in self._graph.nodes if node.key not in self._found]
        if self._found:
            saved = sum(_seconds(n, self._store) for n in self._graph.nodes if n.key in self._found)
            self._say(f"{len(self._found)} of {len(self._graph.nodes)} runs are done already: {duration(saved)} saved")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with ExitStack() as shown:
            bar = shown.enter_context(Bars(*columns, console=self._console, transient=True))
            if not self._console.is_terminal:
                shown.callback(Ticker(lambda _: self._say("\n".join(self._at()))).close)
            task = bar.add_task("runs", total=len(self._graph.nodes), completed=len(self._found))
            try:
                while pending or self._jobs:
                    pending = self._launch(pending)
                    if self._reap():
                        changed()
                    ended = len(self._graph.nodes) - len(pending) - len(self._jobs)
                    bar.update(task, completed=ended, description=self._description(pending))
                    bar.lines = self._at()
                    time.sleep(_POLL_S)
            except BaseException:
                self._say(f"stopping {len(self._jobs)} runs")
                processes.stop([job for _, _, job in self._jobs.values()])
                raise

    def _launch(self, pending: Sequence[Node]) -> list[Node]:
        """Start what is ready as far as there is room; what stays pending."""
        waiting = []
        for node in pending:
            if error := next((self.failures[n.key] for n in node.after if n.key in self.failures), None):
                self._fail(node, f"what it starts from failed: {error}")
            elif node.finished(self._store):
                self._found.add(node.key)
            elif not self._free or not all(need.finished(self._store) for need in node.after) or self._held(node):
                waiting.append(node)
            else:
                try:
                    run = _prepare(node, self._store)
                    slot = self._free.pop(0)
                    self._jobs[node.key] = (node, slot, processes.start(run.path, slot))
                except (OblivionisError, OSError) as error:
                    self._fail(node, str(error))
        return waiting

    def _held(self, node: Node) -> bool:
        """Whether another process does this run, of a suite that was killed or of one beside this one."""
        return node.run(self._store).held_by() is not None

    def _reap(self) -> bool:
        """Take the runs that ended; whether there were any."""
        ended = [key for key, (_, _, job) in self._jobs.items() if job.process.poll() is not None]
        for key in ended:
            node, slot, job = self._jobs.pop(key)
            self._free.append(slot)
            if node.finished(self._store):
                self._took[key] = job.seconds
                left = self._left()
                self._say(f"{node.label}: {duration(job.seconds)}{f'; about {duration(left)} left' if left else ''}")
            else:
                self._fail(node, f"{job.failure()}; see {job.log}")
        return bool(ended)

    def _fail(self, node: Node, error: str) -> None:
        self.failures[node.key] = error
        self._say(f"{node.label} failed: {error}", style="red")

    def _left(self) -> float:
        """Seconds until everything is done, judged by the runs of the same stage that were done now, else by all."""
        mean = sum(self._took.values()) / len(self._took) if self._took else 0.0
        total = 0.0
        for node in self._graph.nodes:
            if node.key in self._took or node.key in self._found or node.key in self.failures:
                continue
            same = [self._took[n.key] for n in self._graph.nodes if n.stage == node.stage and n.key in self._took]
            expected = sum(same) / len(same) if same else mean
            if node.key in self._jobs:
                expected = max(0.0, expected - self._jobs[node.key][2].seconds)
            total += expected
        return total / self._width

    def _at(self) -> list[str]:
        """Where the runs under way are, in their own words."""
        return [f"{node.label}: {job.saying()}" for node, _, job in list(self._jobs.values())]

    def _description(self, pending: Sequence[Node]) -> str:
        if self._jobs:
            return f"{len(self._jobs)} run{'s' * (len(self._jobs) > 1)} under way"
        held = [node.label for node in pending if self._held(node)]
        return f"waiting for another process: {', '.join(held)}" if held else "runs"

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def facts(self, seconds: float) -> dict[str, Any]:
        """What was run now and what was found done, for the folder of the suite."""
        return {
            "seconds": seconds,
            "nodes": [
                {
                    "key": node.key,
                    "label": node.label,
                    "stage": node.stage,
                    "cells": [cell.id for cell in node.cells],
                    "seconds": _seconds(node, self._store),
                    "shared": node.key in self._found,
                    "error": self.failures.get(node.key, ""),
                }
                for node in self._graph.nodes
                if node.finished(self._store) or node.key in self.failures
            ],
        }


def _prepare(node: Node, store: Path) -> RunDirectory:
    """The run directory of a node, with the stages that other runs have done for it."""
    run = node.run(store)
    if not (run.path / "config.yaml").is_file():
        run.path.mkdir(parents=True, exist_ok=True)
        run.write_config(configuration.to_yaml(node.settings(store)))
    with run.lock():
        for need in node.needs:
            source = need.run(store)
            import_updates(node.config, run, source)
            for stage in need.config.stages:
                if run.stage_summary(stage) is None:
                    take_over(run, source, stage)
    return run
