"""Begins runs as far as there is room, shows how far they are, and stops them in an orderly way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from benchmarks.output.terminal import say
from benchmarks.scheduling.executors import Executor, Work
from benchmarks.scheduling.tasks import Task
from oblivionis.errors import OblivionisError
from oblivionis.runs.duration_forecast import duration
from oblivionis.runs.periodic_message import Ticker
from oblivionis.runs.progress import Bars

POLL_S = 0.2
STARTS_FROM = "what it starts from failed"


class Scheduler:
    """The runs of an executor that are under way, by the keys of their tasks."""

    def __init__(self, executor: Executor, console: Console) -> None:
        self.executor, self._console = executor, console
        self.under_way: dict[str, tuple[Task, Work]] = {}

    def begin(self, task: Task) -> None:
        """Begin or continue a prepared run. Raises OSError or OblivionisError."""
        self.under_way[task.key] = task, self.executor.submit(task)

    def ended(self) -> list[tuple[Task, Work]]:
        """Take the runs that have ended."""
        over = self.executor.ended()
        return [self.under_way.pop(key) for key, (_, work) in list(self.under_way.items()) if work in over]

    def stop(self, task: Task) -> Work:
        """End a run and take it."""
        _, work = self.under_way.pop(task.key)
        self.executor.stop([work])
        return work

    def say(self, text: str, style: str | None = None) -> None:
        """Print a line that stays."""
        say(self._console, text, style)

    def work(self, total: int, step: Callable[[], tuple[int, str] | None]) -> None:
        """Call `step` until it returns None, and show what it returns: how many of `total` are done, and a title.

        Whatever ends it early, such as Ctrl-C, ends the runs under way first.
        """
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with ExitStack() as shown:
            bar = shown.enter_context(Bars(*columns, console=self._console, transient=True))
            if not self._console.is_terminal:
                shown.callback(Ticker(lambda _: self.say("\n".join(self._at()))).close)
            line = bar.add_task("runs", total=total)
            at: list[str] = []
            bar.lines = lambda: at
            try:
                while (reached := step()) is not None:
                    bar.update(line, completed=reached[0], description=reached[1])
                    at[:] = self._at()
                    time.sleep(POLL_S)
            except BaseException:
                if self.under_way:
                    self.say(f"stopping {_counted(len(self.under_way))}")
                    self.executor.stop([work for _, work in self.under_way.values()])
                raise

    def _at(self) -> list[str]:
        """Where the runs under way are, in their own words."""
        return [f"{task.label}: {work.saying() or 'starting'}" for task, work in list(self.under_way.values())]


def _counted(runs: int) -> str:
    return f"{runs} run{'s' * (runs != 1)}"


class Runs:
    """Tasks in the order of work, each begun as soon as those before it are finished and there is room.

    done: keys of the tasks that this command need not do; failures: by key why a run failed.
    """

    def __init__(self, tasks: Sequence[Task], scheduler: Scheduler) -> None:
        self._tasks, self._scheduler = {task.key: task for task in tasks}, scheduler
        self.done = {task.key for task in tasks if task.finished}
        self.failures: dict[str, str] = {}
        self._took: dict[str, float] = {}
        self._pending = [task for task in tasks if task.key not in self.done]

    def execute(self, changed: Callable[[], None] = lambda: None) -> None:
        """Do what is not done; `changed` is called whenever runs ended. A failed run keeps the others going."""

        def step() -> tuple[int, str] | None:
            self._launch()
            if self._reap():
                changed()
            under_way = len(self._scheduler.under_way)
            if not self._pending and not under_way:
                return None
            return len(self._tasks) - len(self._pending) - under_way, self._title()

        self._scheduler.work(len(self._tasks), step)

    def _launch(self) -> None:
        """Begin what may begin now."""
        waiting = []
        for task in self._pending:
            if error := next((self.failures[key] for key in task.after if key in self.failures), None):
                self._fail(task, f"{STARTS_FROM}: {error}")
            elif task.finished:
                self.done.add(task.key)
            elif not self._scheduler.executor.room(task) or not self._ready(task) or task.held:
                waiting.append(task)
            else:
                try:
                    task.prepare()
                    self._scheduler.begin(task)
                except (OblivionisError, OSError) as error:
                    self._fail(task, str(error))
        self._pending = waiting

    def _ready(self, task: Task) -> bool:
        return all(self._tasks[key].finished for key in task.after)

    def _reap(self) -> bool:
        """Take the runs that ended; whether there were any."""
        over = self._scheduler.ended()
        for task, work in over:
            if task.finished:
                self._took[task.key] = work.seconds
                left = self._left()
                more = f"; about {duration(left)} left" if left else ""
                self._scheduler.say(f"{task.label}: {duration(work.seconds)}{more}")
            else:
                self._fail(task, f"{work.failure()}; see {work.log}")
        return bool(over)

    def _fail(self, task: Task, error: str) -> None:
        self.failures[task.key] = error
        self._scheduler.say(f"{task.label} failed: {error}", style="red")

    def _left(self) -> float:
        """Seconds until everything is done, judged by the runs of the same stages that were done now, else by all."""
        mean = sum(self._took.values()) / len(self._took)
        total = 0.0
        for key, task in self._tasks.items():
            if key in self._took or key in self.done or key in self.failures:
                continue
            same = [s for other, s in self._took.items() if self._tasks[other].of_kind(task)]
            expected = sum(same) / len(same) if same else mean
            if key in self._scheduler.under_way:
                expected = max(0.0, expected - self._scheduler.under_way[key][1].seconds)
            total += expected
        return total / self._scheduler.executor.width

    def _title(self) -> str:
        if under_way := len(self._scheduler.under_way):
            return f"{_counted(under_way)} under way"
        held = [task.label for task in self._pending if task.held]
        return f"waiting for another process: {', '.join(held)}" if held else "runs"
