"""What a long command tells while it goes on: a bar on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.progress import TimeRemainingColumn as Remaining
from rich.table import Column

from evaluation.engine.progress import watched
from oblivionis.runs.duration_forecast import duration
from oblivionis.runs.periodic_message import Ticker

Follow = Callable[[float, int, str], None]
"""Called with how many are done (parts of one count, too), how many there are, and what is at work."""


@contextmanager
def following(console: Console, doing: str) -> Iterator[Follow]:
    """Show how far `doing` has come: the whole by the calls of the function, the rest by what the engine counts."""
    with (_bar if console.is_terminal else _lines)(console, doing) as (follow, watch), watched(watch):
        yield follow


Shown = tuple[Follow, Callable[[str, str, int, int], None]]


@contextmanager
def _bar(console: Console, doing: str) -> Iterator[Shown]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        Remaining(),
        TextColumn("{task.fields[at]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(doing, total=None, at="")
        yield (
            lambda done, total, at="": progress.update(task, completed=done, total=total, at=at),
            lambda part, what, done, total: progress.update(task, at=_counted(part, what, done, total)),
        )


@contextmanager
def _lines(console: Console, doing: str) -> Iterator[Shown]:
    whole, inner = "", ""

    def follow(done: float, total: int, at: str = "") -> None:
        nonlocal whole
        whole = f" {int(done)} of {total}{f', {at}' if at else ''}"

    def watch(part: str, what: str, done: int, total: int) -> None:
        nonlocal inner
        inner = _counted(part, what, done, total)

    def tell(elapsed: float) -> None:
        parts = [f"{doing}{whole}", inner, f"{duration(elapsed)} so far"]
        console.print(" · ".join(filter(None, parts)), markup=False, highlight=False, soft_wrap=True)

    ticker = Ticker(tell)
    try:
        yield follow, watch
    finally:
        ticker.close()


def _counted(part: str, what: str, done: int, total: int) -> str:
    return f"{f'{part}: ' if part else ''}{done} of {total} {what}"
