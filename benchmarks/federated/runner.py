"""Runs a suite of the kind `federated`: its graph of runs, several at a time, then results, tables and report."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.federated import collecting, results, slurm
from benchmarks.federated.costs import costs
from benchmarks.federated.graph import Graph, Node, plan
from benchmarks.federated.matrix import Cell
from benchmarks.federated.options import Options, RayCluster, Slurm
from benchmarks.federated.report import NODES, write_report
from benchmarks.federated.resource_demand import Demands
from benchmarks.federated.settings import Settings
from benchmarks.output.terminal import say
from benchmarks.scheduling.executors import Executor, LocalExecutor
from benchmarks.scheduling.memory import warn_of_memory
from benchmarks.scheduling.processes import last_words
from benchmarks.scheduling.scheduler import STARTS_FROM, Runs, Scheduler
from oblivionis.errors import RunFailed
from oblivionis.files import write_json
from oblivionis.reports.warnings import require_done, unserved
from oblivionis.runs.duration_forecast import duration
from oblivionis.runs.failed_evaluators import not_measured


def announce(settings: Settings, options: Options) -> list[str]:
    """What `run` would do."""
    graph = plan(settings.cells(), settings.oracles, against_never_saw=settings.against_never_saw)
    done = [node for node in graph.nodes if node.finished(options.store)]
    saved = sum(node.seconds(options.store) for node in done)
    many = f"{options.jobs} at a time" if options.away is None else "as many at a time as machines have room for"
    lines = [
        f"experiment: {settings.experiment}; stages: {', '.join(settings.stages)}",
        *(f"{axis.name}: {', '.join(value.label for value in axis.values)}" for axis in settings.axes()),
        f"{len(graph.of_cell)} cells in {len(graph.nodes)} runs, {many}",
    ]
    if done:
        lines.append(f"{len(done)} of them are in {options.store} already, which saves {duration(saved)}")
    lines += costs(graph.nodes, options.store)
    marks = [("done" if node in done else "to do", node) for node in graph.nodes]
    asked: dict[str, str] = {}
    if options.away is not None:
        demands = Demands(options.away.reserve, gpus_there=False, tell=lines.append)
        asked = {node.key: f"  asks for {demands.of(node.config)}" for mark, node in marks if mark == "to do"}
    return lines + [f"  {mark:5}  {node.label}{_after(node)}{asked.get(node.key, '')}" for mark, node in marks]


def _after(node: Node) -> str:
    return f"  (after {' and '.join(need.label for need in node.after)})" if node.after else ""


def run(settings: Settings, folder: Path, console: Console, options: Options) -> None:
    """Do the runs that are not in the store yet, then write and print results, tables and report.

    A run that fails is reported, and the others go on, except those that need it. Raises RunFailed at the end when
    cells failed or requests of theirs were not served, KeyboardInterrupt after the runs under way were stopped.
    """
    cells = settings.cells()
    graph = plan(cells, settings.oracles, against_never_saw=settings.against_never_saw)
    if isinstance(options.away, Slurm):
        slurm.write(graph, folder, options.store, options.away, console)
        return
    started = time.monotonic()
    pending = [node for node in graph.nodes if not node.finished(options.store)]
    scheduler = Scheduler(_executor(options, pending, console), console)
    runs = Runs([node.task(options.store) for node in graph.nodes], scheduler)

    def save() -> None:
        _save(settings, cells, graph, folder, options.store, runs.failures, runs.done, time.monotonic() - started)

    if runs.done:
        saved = sum(node.seconds(options.store) for node in graph.nodes if node.key in runs.done)
        scheduler.say(f"{len(runs.done)} of {len(graph.nodes)} runs are done already: {duration(saved)} saved")
    if pending:
        if options.away is None:
            warn_of_memory((node.config for node in pending), options.jobs, console)
        with _sigterm_as_ctrl_c(), scheduler.executor:
            runs.execute(save)
    save()
    write_report(settings, folder, console)
    if failed := _unfinished(cells, graph, options.store):
        raise RunFailed(
            f"{len(failed)} of {len(cells)} cells failed: {', '.join(failed)}; try them again with --resume"
        )
    _check_done(cells, graph, folder, options.store)


def _executor(options: Options, pending: Sequence[Node], console: Console) -> Executor:
    """Where this suite's runs are done."""
    if isinstance(options.away, RayCluster):
        from benchmarks.federated.executors.ray_tasks import RayExecutor  # Ray: a suite of this machine does without

        return RayExecutor(options.away, options.store, pending, partial(say, console, style="yellow"))
    return LocalExecutor(options.jobs)


def gather(settings: Settings, folder: Path, console: Console, store: Path) -> None:
    """Write and print results, tables and report of what others have done, and do nothing else.

    Raises RunFailed when cells are not done, or requests of theirs were not served.
    """
    cells = settings.cells()
    graph = plan(cells, settings.oracles, against_never_saw=settings.against_never_saw)
    failures: dict[str, str] = {}
    for node in graph.nodes:
        if node.finished(store) or node.run(store).held_by() is not None:
            continue
        before = next((failures[need.key] for need in node.after if need.key in failures), None)
        if why := last_words(node.run(store).path) or (before and f"{STARTS_FROM}: {before}"):
            failures[node.key] = why
    _save(settings, cells, graph, folder, store, failures, (), None)
    write_report(settings, folder, console)
    if unfinished := _unfinished(cells, graph, store):
        raise RunFailed(f"{len(unfinished)} of {len(cells)} cells are not done: {', '.join(unfinished)}")
    _check_done(cells, graph, folder, store)


def _check_done(cells: Sequence[Cell], graph: Graph, folder: Path, store: Path) -> None:
    """Raise RunFailed where deletion requests of a cell were not served, NotMeasured where only evaluators failed."""
    left = {
        cell.id: node.run(store).path for cell in cells for node in graph.of_cell[cell.id] if unserved(node.run(store))
    }
    sentences = []
    if left:
        place = shlex.quote(str(next(iter(left.values()))))
        text = f"Deletion requests of {len(left)} of {len(cells)} cells are pending or were rejected"
        sentences.append(f"{text} (to see why, for example: oblivionis runs show {place}): {', '.join(left)}.")
    require_done(sentences, partial(_check_measured, folder))


def _check_measured(folder: Path) -> None:
    """Raise NotMeasured where an evaluator failed in a cell, with what helps."""
    rows = [row for row in results.read(folder)[0].to_pylist() if row["status"] == results.NOT_MEASURED]
    cells: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        cells.setdefault((row["metric"], row["stage"], row["run"], row["error"]), []).append(row["cell"])
    if cells:
        found = [f"{name} in {stage} of {', '.join(of)}: {why}" for (name, stage, _, why), of in cells.items()]
        _, stage, run, _ = next(iter(cells))
        place = shlex.quote(os.path.normpath(folder / run))
        raise not_measured(found, f"measure again, for example: oblivionis evaluate {place} --stage {stage}")


def _save(
    settings: Settings,
    cells: Sequence[Cell],
    graph: Graph,
    folder: Path,
    store: Path,
    failures: Mapping[str, str],
    found: Collection[str],
    seconds: float | None,
) -> None:
    """Results and `nodes.json` of what is finished and what failed."""
    results.write(collecting.collect(settings.axes(), cells, graph, store, folder, failures), folder)
    write_json(folder / NODES, collecting.facts(graph, store, failures, found, seconds))


def _unfinished(cells: Sequence[Cell], graph: Graph, store: Path) -> list[str]:
    return [cell.id for cell in cells if not all(node.finished(store) for node in graph.of_cell[cell.id])]


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    def handle(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
