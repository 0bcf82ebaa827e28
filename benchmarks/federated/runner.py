"""Runs a suite of the kind `federated`: its graph of runs, several at a time, then results, tables and report."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from benchmarks.federated import collecting, results, slurm
from benchmarks.federated.executors import Executor, Work
from benchmarks.federated.executors.local import LocalExecutor
from benchmarks.federated.executors.ray_tasks import RayExecutor
from benchmarks.federated.graph import Graph, Node, plan
from benchmarks.federated.matrix import Cell
from benchmarks.federated.options import Options, RayCluster, Slurm
from benchmarks.federated.preparing import prepare
from benchmarks.federated.processes import last_words
from benchmarks.federated.report import NODES, write_report
from benchmarks.federated.resource_demand import Demands
from benchmarks.federated.settings import Settings
from oblivionis.errors import OblivionisError, RunFailed
from oblivionis.files import write_json
from oblivionis.runs.duration_forecast import duration
from oblivionis.runs.failed_evaluators import not_measured
from oblivionis.runs.periodic_message import Ticker
from oblivionis.runs.progress import Bars

_POLL_S = 0.2
_STARTS_FROM = "what it starts from failed"


def announce(settings: Settings, options: Options) -> list[str]:
    """What `run` would do."""
    graph = plan(settings.cells(), settings.oracles)
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
    marks = [("done" if node in done else "to do", node) for node in graph.nodes]
    asked: dict[str, str] = {}
    if options.away is not None:
        demands = Demands(options.away.reserve, gpus_there=False, tell=lines.append)
        asked = {node.key: f"  asks for {demands.of(node.config)}" for mark, node in marks if mark == "to do"}
    return lines + [f"  {mark:5}  {node.label}{_after(node)}{asked.get(node.key, '')}" for mark, node in marks]


def _after(node: Node) -> str:
    return f"  (after {' and '.join(need.label for need in node.after)})" if node.after else ""


def run(settings: Settings, folder: Path, console: Console, options: Options) -> None:
    """Do the runs that the store lacks, then write and print results, tables and report.

    A run that fails is told and keeps the others going, except those that need it. Raises RunFailed at the end when
    cells failed, KeyboardInterrupt after the runs under way were stopped.
    """
    cells = settings.cells()
    graph = plan(cells, settings.oracles)
    if isinstance(options.away, Slurm):
        slurm.write(graph, folder, options.store, options.away, console)
        return
    started = time.monotonic()
    work = _Work(graph, options, console)

    def save() -> None:
        _save(settings, cells, graph, folder, options.store, work.failures, work.found, time.monotonic() - started)

    with _sigterm_as_ctrl_c():
        work.execute(save)
    save()
    write_report(settings, folder, console)
    if failed := _lacking(cells, graph, options.store):
        raise RunFailed(
            f"{len(failed)} of {len(cells)} cells failed: {', '.join(failed)}; try them again with --resume"
        )
    _check_measured(folder)


def gather(settings: Settings, folder: Path, console: Console, store: Path) -> None:
    """Write and print results, tables and report of what others have done, and do nothing else.

    Raises RunFailed when cells are not done.
    """
    cells = settings.cells()
    graph = plan(cells, settings.oracles)
    failures: dict[str, str] = {}
    for node in graph.nodes:
        if node.finished(store) or node.run(store).held_by() is not None:
            continue
        before = next((failures[need.key] for need in node.after if need.key in failures), None)
        if why := last_words(node.run(store).path) or (before and f"{_STARTS_FROM}: {before}"):
            failures[node.key] = why
    _save(settings, cells, graph, folder, store, failures, (), None)
    write_report(settings, folder, console)
    if lacking := _lacking(cells, graph, store):
        raise RunFailed(f"{len(lacking)} of {len(cells)} cells are not done: {', '.join(lacking)}")
    _check_measured(folder)


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


def _lacking(cells: Sequence[Cell], graph: Graph, store: Path) -> list[str]:
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


class _Work:
    """The runs of a graph under way."""

    def __init__(self, graph: Graph, options: Options, console: Console) -> None:
        self._graph, self._store, self._console, self._options = graph, options.store, console, options
        self._jobs: dict[str, Work] = {}
        self.failures: dict[str, str] = {}
        self._took: dict[str, float] = {}
        self.found = {node.key for node in graph.nodes if node.finished(options.store)}

    def execute(self, changed: Callable[[], None]) -> None:
        """Do everything that is not done; `changed` is called whenever a run ended."""
        pending = [node for node in self._graph.nodes if node.key not in self.found]
        if self.found:
            saved = sum(n.seconds(self._store) for n in self._graph.nodes if n.key in self.found)
            self._say(f"{len(self.found)} of {len(self._graph.nodes)} runs are done already: {duration(saved)} saved")
        if not pending:
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with self._executor(pending) as executor, ExitStack() as shown:
            bar = shown.enter_context(Bars(*columns, console=self._console, transient=True))
            if not self._console.is_terminal:
                shown.callback(Ticker(lambda _: self._say("\n".join(self._at()))).close)
            task = bar.add_task("runs", total=len(self._graph.nodes), completed=len(self.found))
            try:
                while pending or self._jobs:
                    pending = self._launch(pending, executor)
                    if self._reap(executor):
                        changed()
                    ended = len(self._graph.nodes) - len(pending) - len(self._jobs)
                    bar.update(task, completed=ended, description=self._description(pending))
                    bar.lines = self._at()
                    time.sleep(_POLL_S)
            except BaseException:
                self._say(f"stopping {len(self._jobs)} runs")
                executor.stop()
                raise

    def _executor(self, pending: Sequence[Node]) -> Executor:
        """Where this suite's runs are done."""
        away = self._options.away
        if isinstance(away, RayCluster):
            return RayExecutor(away, self._store, pending, lambda text: self._say(text, style="yellow"))
        return LocalExecutor(self._options.jobs)

    def _launch(self, pending: Sequence[Node], executor: Executor) -> list[Node]:
        """Start what is ready as far as there is room; what stays pending."""
        waiting = []
        for node in pending:
            if error := next((self.failures[n.key] for n in node.after if n.key in self.failures), None):
                self._fail(node, f"{_STARTS_FROM}: {error}")
            elif node.finished(self._store):
                self.found.add(node.key)
            elif not executor.room(node) or not all(n.finished(self._store) for n in node.after) or self._held(node):
                waiting.append(node)
            else:
                try:
                    self._jobs[node.key] = executor.submit(node, prepare(node, self._store))
                except (OblivionisError, OSError) as error:
                    self._fail(node, str(error))
        return waiting

    def _held(self, node: Node) -> bool:
        """Whether another process does this run, of a suite that was killed or of one beside this one."""
        return node.run(self._store).held_by() is not None

    def _reap(self, executor: Executor) -> bool:
        """Take the runs that ended; whether there were any."""
        ended = executor.ended()
        for work in ended:
            node = self._jobs.pop(work.node.key).node
            if node.finished(self._store):
                self._took[node.key] = work.seconds
                left = self._left(executor.width)
                self._say(f"{node.label}: {duration(work.seconds)}{f'; about {duration(left)} left' if left else ''}")
            else:
                self._fail(node, f"{work.failure()}; see {work.log}")
        return bool(ended)

    def _fail(self, node: Node, error: str) -> None:
        self.failures[node.key] = error
        self._say(f"{node.label} failed: {error}", style="red")

    def _left(self, width: int) -> float:
        """Seconds until everything is done, judged by the runs of the same stage that were done now, else by all."""
        mean = sum(self._took.values()) / len(self._took) if self._took else 0.0
        total = 0.0
        for node in self._graph.nodes:
            if node.key in self._took or node.key in self.found or node.key in self.failures:
                continue
            same = [self._took[n.key] for n in self._graph.nodes if n.stage == node.stage and n.key in self._took]
            expected = sum(same) / len(same) if same else mean
            if node.key in self._jobs:
                expected = max(0.0, expected - self._jobs[node.key].seconds)
            total += expected
        return total / width

    def _at(self) -> list[str]:
        """Where the runs under way are, in their own words."""
        return [f"{work.node.label}: {work.saying()}" for work in list(self._jobs.values())]

    def _description(self, pending: Sequence[Node]) -> str:
        if self._jobs:
            return f"{len(self._jobs)} run{'s' * (len(self._jobs) > 1)} under way"
        held = [node.label for node in pending if self._held(node)]
        return f"waiting for another process: {', '.join(held)}" if held else "runs"

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
