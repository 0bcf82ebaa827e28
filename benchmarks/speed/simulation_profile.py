"""Where the processor time of a simulation goes, part by part.

    python -m benchmarks.speed.simulation_profile [EXPERIMENT] [KEY=VALUE ...]

plays what `oblivionis simulate` plays, with the real server and the real clients, but in this one process, one client
after another: what client processes cost is not in it. Prints a table: how often a part was at work, its processor
seconds (those of all threads), those of each time, and its share. What a part calls that is a part itself counts there
alone, so that the rows add up to the process's processor time, the imports at its start included.

Rounds of one kind take equally long, so fewer of them tell as much: multiply the column of each time.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from rich.console import Console

from evaluation import hook
from oblivionis.cli.arguments import split_arguments
from oblivionis.client.app import app
from oblivionis.client.worker import Worker
from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.measures.assessor import Assessor
from oblivionis.measures.rebound.tracker import ReboundTracker
from oblivionis.measures.verification import Verification
from oblivionis.reports.html.run_page import write_html
from oblivionis.reports.run_summary import print_summary
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events
from oblivionis.server.app import serve
from oblivionis.server.preflight import preflight
from oblivionis.server.run_context import Server
from strategies.rounds.memory_grid import MemoryGrid, Node
from strategies.rules.server_step import ServerStep

IMPORTS, REST = "imports", "all else"
PARTS: tuple[tuple[type, str, str], ...] = (
    (Server, "__init__", "server: model, records, questions"),
    (ServerStep, "aggregate_train", "server: aggregation"),
    (RunDirectory, "save_checkpoint", "server: checkpoint"),
    (RunDirectory, "append_metrics", "server: lines of metrics"),
    (Verification, "exchanged", "server: verification after an exchange"),
    (Verification, "judge", "server: verification at the end"),
    (ReboundTracker, "round_ended", "server: rebound"),
    (Worker, "__init__", "client: model and records"),
    (Worker, "finetune", "client: training"),
    (Worker, "forget", "client: unlearning"),
    (ClientApp, "__call__", "client: the rest of a message"),
)
"""Methods, and the part that each is."""


class Meter:
    """Seconds by part, by `clock`; of parts within parts the inner one counts."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.times: dict[str, int] = defaultdict(int)
        self._clock, self._running, self._since = clock, [REST], clock()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is computed within is of the part `name`."""
        self.settle()
        self._running.append(name)
        self.times[name] += 1
        try:
            yield
        finally:
            self.settle()
            self._running.pop()

    def settle(self) -> None:
        """Book the seconds since the last call."""
        now = self._clock()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def rows(self) -> list[tuple[str, int, float]]:
        """Part, times, seconds; the longest first."""
        self.settle()
        found = [(name, self.times.get(name, 1), seconds) for name, seconds in self.seconds.items()]
        return sorted(found, key=lambda row: -row[2])


@contextmanager
def metered(meter: Meter) -> Iterator[None]:
    """The program tells `meter` of its parts."""
    profile = ["light"]
    part = hook.part

    @contextmanager
    def evaluator(name: str) -> Iterator[None]:
        with meter.part(f"evaluation, {profile[-1]}: {name}"), part(name):
            yield

    def measured(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def wrapper(*args: Any, full: bool, **more: Any) -> Any:
            profile.append("full" if full else "light")
            try:
                with meter.part(f"evaluation, {profile[-1]}: all else"):
                    return method(*args, full=full, **more)
            finally:
                profile.pop()

        return wrapper

    with ExitStack() as stack:
        for owner, attribute, name in PARTS:
            stack.enter_context(patch.object(owner, attribute, _part(meter, name, getattr(owner, attribute))))
        stack.enter_context(patch.object(hook, "part", evaluator))
        stack.enter_context(patch.object(Assessor, "measure", measured(Assessor.measure)))
        yield


def _part(meter: Meter, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def wrapper(*args: Any, **more: Any) -> Any:
        with meter.part(name):
            return method(*args, **more)

    return wrapper


def in_this_process(clients: int) -> MemoryGrid:
    """A grid of `clients` nodes on which the real ClientApp answers."""

    def node(partition: int) -> Node:
        context = Context(
            run_id=1,
            node_id=partition,
            node_config={"partition-id": partition, "num-partitions": clients},
            state=RecordDict(),
            run_config={},
        )

        def answer(message: Message) -> RecordDict | Error:
            reply = app(message=message, context=context)
            return reply.error if reply.has_error() else reply.content

        return answer

    return MemoryGrid({partition: node(partition) for partition in range(clients)})


def play(config: Config, meter: Meter) -> None:
    """Everything from the memory estimate to the summary, in a new run directory of `config.output`."""
    console = Console(quiet=True)
    run = RunDirectory.create(Path(config.output), config.name)
    run.write_config(configuration.to_yaml(config))
    with metered(meter):
        with meter.part("memory estimate"):
            preflight(config, console)
        serve(config, in_this_process(config.federation.clients), run, Events(), threading.Event())
        with meter.part("report"):
            write_html(run, config)
        with meter.part("summary"):
            print_summary(run, config, console)


def main() -> None:
    imports = time.process_time()
    experiment, overrides = split_arguments(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        config = configuration.compose(experiment, [*overrides, f"output={folder}"])
        meter = Meter()
        meter.seconds[IMPORTS] = imports
        play(config, meter)
    rows = meter.rows()
    total = sum(seconds for _, _, seconds in rows)
    print("| part | times | seconds | each | share |\n| --- | ---: | ---: | ---: | ---: |")
    for name, times, seconds in [*rows, ("in all", 1, total)]:
        print(f"| {name} | {times} | {seconds:.1f} | {seconds / times:.2f} | {seconds / total:.0%} |")


if __name__ == "__main__":
    main()
