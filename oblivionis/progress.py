"""What a run tells about itself while it goes on: a live display on a terminal, one line per event elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

HEADLINES = (
    ("forget_rouge", "forget ROUGE"),
    ("retain_rouge", "retain ROUGE"),
    ("forget_prob", "forget Prob"),
    ("retain_prob", "retain Prob"),
    ("model_utility", "MU"),
)


def headline(metrics: Mapping[str, float]) -> str:
    """The few numbers that fit into one line."""
    return " · ".join(f"{label} {metrics[key]:.3f}" for key, label in HEADLINES if metrics.get(key) is not None)


class Events:
    """What can be told. Every method may be left out by a listener; this base is silent."""

    def note(self, text: str) -> None:
        """Something a user should read once."""

    def warning(self, text: str) -> None:
        """Something went wrong and the run goes on."""

    def stage_started(self, stage: str, done: int, total: int) -> None:
        """Rounds 1 to `done` of `total` were completed earlier (resume)."""

    def round_started(self, round: int) -> None: ...

    def exchange_started(self, kind: str, clients: Sequence[int]) -> None:
        """`kind` is `unlearn` or `train`; `clients` are partition ids."""

    def arrived(self, answers: int, sent: int) -> None:
        """So many answers of the exchange in progress have come in; they are judged when all are there."""

    def reply(self, client: int, ok: bool, reason: str) -> None:
        """The answer of a client was judged."""

    def evaluating(self, moment: str) -> None: ...

    def evaluated(self, round: int, moment: str, metrics: Mapping[str, float], seconds: float) -> None: ...

    def round_finished(self, round: int, seconds: float) -> None: ...

    def stage_finished(self, stage: str, seconds: float) -> None: ...

    def close(self) -> None:
        """The run is over, for good or bad."""


class LogEvents(Events):
    """One log line per event, for `flwr run` and for files."""

    def __init__(self, log: logging.Logger | None = None) -> None:
        self._log = (log or logging.getLogger("flwr")).info
        self._stage, self._total = "", 0
        self._ok = self._bad = 0

    def note(self, text: str) -> None:
        self._log("%s", text)

    def warning(self, text: str) -> None:
        self._log("warning: %s", text)

    def stage_started(self, stage: str, done: int, total: int) -> None:
        self._stage, self._total = stage, total
        self._log("[%s] %d rounds%s", stage, total, f", continuing after round {done}" if done else "")

    def exchange_started(self, kind: str, clients: Sequence[int]) -> None:
        self._ok = self._bad = 0
        if kind == "unlearn":
            self._log("[%s] FedTU: clients %s forget", self._stage, ", ".join(map(str, clients)))

    def reply(self, client: int, ok: bool, reason: str) -> None:
        self._ok, self._bad = self._ok + ok, self._bad + (not ok)
        if not ok:
            self._log("[%s] client %d left out: %s", self._stage, client, reason)

    def evaluated(self, round: int, moment: str, metrics: Mapping[str, float], seconds: float) -> None:
        self._log("[%s] round %d/%d %s: %s (%.1f s)", self._stage, round, self._total, moment, headline(metrics), seconds)

    def round_finished(self, round: int, seconds: float) -> None:
        self._log("[%s] round %d/%d: %d replies, %.1f s", self._stage, round, self._total, self._ok, seconds)

    def stage_finished(self, stage: str, seconds: float) -> None:
        self._log("[%s] finished in %.0f s", stage, seconds)


class LineEvents(LogEvents):
    """One line per event on a console that is no terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._log = lambda text, *args: console.print(text % args, highlight=False, markup=False, soft_wrap=True)


class LiveEvents(Events):
    """A live display on a terminal: a bar per stage and one for the whole run with the time that is left."""

    def __init__(self, console: Console, rounds: Mapping[str, int]) -> None:
        self._console, self._rounds = console, dict(rounds)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description:<9}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            Remaining(),
            TextColumn("{task.fields[state]}"),
            console=console,
        )
        self._all = self._progress.add_task("whole run", total=sum(rounds.values()), state="starting Flower and Ray")
        self._task = self._all
        self._kind, self._last = "looking for clients", ""
        self._progress.start()

    def _state(self, text: str) -> None:
        self._progress.update(self._task, state=f"{text}   [dim]{self._last}[/dim]" if self._last else text)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def warning(self, text: str) -> None:
        self._console.print(f"warning: {text}", style="yellow", markup=False, highlight=False)

    def stage_started(self, stage: str, done: int, total: int) -> None:
        self._progress.update(self._all, state="")
        self._last = ""
        self._task = self._progress.add_task(stage, total=total, completed=done, state="")
        self._progress.advance(self._all, done)

    def exchange_started(self, kind: str, clients: Sequence[int]) -> None:
        named = f" (client {', '.join(map(str, clients))})" if kind == "unlearn" else ""
        self._kind = ("FedTU" if kind == "unlearn" else "FedFT") + named
        self._state(f"{self._kind}: 0/{len(clients)} replies")

    def arrived(self, answers: int, sent: int) -> None:
        self._state(f"{self._kind}: {answers}/{sent} replies")

    def reply(self, client: int, ok: bool, reason: str) -> None:
        if not ok:
            self.warning(f"client {client} left out: {reason}")

    def evaluating(self, moment: str) -> None:
        self._state("evaluating")

    def evaluated(self, round: int, moment: str, metrics: Mapping[str, float], seconds: float) -> None:
        self._last = headline({k: metrics[k] for k in ("forget_rouge", "retain_rouge") if k in metrics})
        self._state("")

    def round_finished(self, round: int, seconds: float) -> None:
        self._progress.update(self._task, completed=round)
        self._progress.advance(self._all)
        self._state("")

    def stage_finished(self, stage: str, seconds: float) -> None:
        self._state("done")

    def close(self) -> None:
        self._progress.stop()


def for_console(console: Console, rounds: Mapping[str, int]) -> Events:
    """The display that fits `console`."""
    return LiveEvents(console, rounds) if console.is_terminal else LineEvents(console)
