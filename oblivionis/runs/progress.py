"""What a run tells about itself while it goes on: a live display on a terminal, one line per event elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining
from rich.table import Column
from rich.text import Text

MOMENTS = {"start": " (before)", "after_unlearn": " (right after FedTU)", "round": "", "end": " (end, full profile)"}


TEXTS = (
    {"muse_verbmem": "VerbMem", "muse_knowmem_forget": "KnowMem forget", "muse_knowmem_retain": "retain"},
    {"rwku_forget_questions": "RWKU forget", "rwku_neighbor_questions": "neighbours"},
    {"choices_forget": "accuracy forget", "choices_utility": "utility"},
)
"""Of data that are texts, what belongs into the headline."""


def headline(metrics: Mapping[str, float]) -> str:
    """The few numbers that fit into one line."""
    parts = []
    for group in ("forget", "retain"):
        found = [(name, metrics.get(f"{group}_{key}")) for key, name in (("rouge", "ROUGE"), ("prob", "Prob"))]
        numbers = " ".join(f"{name} {value:.3f}" for name, value in found if value is not None)
        parts += [f"{group} {numbers}"] if numbers else []
    for texts in TEXTS:
        found = [(name, metrics.get(key)) for key, name in texts.items()]
        numbers = " ".join(f"{name} {value:.3f}" for name, value in found if value is not None)
        parts += [numbers] if numbers else []
    if metrics.get("model_utility") is not None:
        parts.append(f"model utility {metrics['model_utility']:.3f}")
    found = [(name, metrics.get(f"ruler_{key}")) for key, name in (("mean_rank", "rank"), ("gap", "gap"))]
    numbers = " ".join(f"{name} {value:.3f}" for name, value in found if value is not None)
    parts += [f"RULER {numbers}"] if numbers else []
    return " · ".join(parts) or "no metrics"


class Events:
    """What can be told. Every method may be left out by a listener; this base is silent."""

    def note(self, text: str) -> None:
        """Something a user should read once."""

    def warning(self, text: str) -> None:
        """Something went wrong and the run goes on."""

    def stage_started(self, stage: str, done: int, total: int) -> None:
        """Rounds 1 to `done` of `total` were completed earlier (resume)."""

    def round_started(self, server_round: int) -> None: ...

    def requests(self, text: str) -> None:
        """Who asks for what in the FedTU exchange that starts next, in words."""

    def exchange_started(self, kind: str, clients: Sequence[int]) -> None:
        """`kind` is `unlearn`, `calibrate` or `train`; `clients` are partition ids."""

    def arrived(self, answers: int, sent: int) -> None:
        """So many answers of the exchange in progress have come in; they are judged when all are there."""

    def reply(self, client: int, ok: bool, reason: str) -> None:
        """The answer of a client was judged."""

    def evaluating(self, moment: str) -> None: ...

    def evaluated(self, server_round: int, moment: str, metrics: Mapping[str, float], seconds: float) -> None: ...

    def round_finished(self, server_round: int, seconds: float) -> None: ...

    def stage_finished(self, stage: str, seconds: float) -> None: ...

    def close(self) -> None:
        """The run is over, for good or bad."""


class LogEvents(Events):
    """One log line per event, for `flwr run` and for files."""

    def __init__(self, log: logging.Logger | None = None) -> None:
        self._log = (log or logging.getLogger("flwr")).info
        self._stage, self._total, self._asking = "", 0, ""
        self._ok = self._bad = 0

    def note(self, text: str) -> None:
        self._log("%s", text)

    def warning(self, text: str) -> None:
        self._log("warning: %s", text)

    def stage_started(self, stage: str, done: int, total: int) -> None:
        self._stage, self._total = stage, total
        unit = "client" if stage == "local" else "round"
        more = f", continuing after {unit} {done}" if done else ""
        self._log("[%s] %d %s%s%s", stage, total, unit, "s" * (total != 1), more)

    def requests(self, text: str) -> None:
        self._asking = text

    def exchange_started(self, kind: str, clients: Sequence[int]) -> None:
        self._ok = self._bad = 0
        if kind == "unlearn":
            self._log("[%s] FedTU: %s", self._stage, self._asking or f"{_asking(clients)} to forget")
            self._asking = ""

    def reply(self, client: int, ok: bool, reason: str) -> None:
        self._ok, self._bad = self._ok + ok, self._bad + (not ok)
        if not ok:
            self._log("[%s] client %d left out: %s", self._stage, client, reason)

    def evaluated(self, server_round: int, moment: str, metrics: Mapping[str, float], seconds: float) -> None:
        self._log("[%s] %s: %s", self._stage, _where(self._stage, server_round, self._total, moment), headline(metrics))

    def round_finished(self, server_round: int, seconds: float) -> None:
        self._total = max(self._total, server_round)
        if self._stage == "local":
            self._log("[local] %d of %d clients done", server_round, self._total)
            return
        answers = f"{self._ok} of {self._ok + self._bad} clients answered"
        self._log("[%s] round %d/%d done: %s, %.1f s", self._stage, server_round, self._total, answers, seconds)

    def stage_finished(self, stage: str, seconds: float) -> None:
        self._log("[%s] finished in %.0f s", stage, seconds)


class LineEvents(LogEvents):
    """One line per event on a console that is no terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._log = lambda text, *args: console.print(text % args, highlight=False, markup=False, soft_wrap=True)


def _where(stage: str, server_round: int, total: int, moment: str) -> str:
    """What was measured; the stage `local` counts clients, not rounds."""
    if stage == "local":
        return f"client {server_round}"
    return f"round {server_round}/{max(total, server_round)}{MOMENTS.get(moment, f' ({moment})')}"


def _asking(clients: Sequence[int]) -> str:
    verb = "client %s asks" if len(clients) == 1 else "clients %s ask"
    return verb % ", ".join(map(str, clients))


class _Bars(Progress):
    """Progress bars with one line of text below them."""

    line = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.line:
            yield Text(self.line, style="dim", no_wrap=True, overflow="ellipsis")


class LiveEvents(Events):
    """A live display on a terminal: a bar per stage, one for the whole run with the time left, the last metrics."""

    def __init__(self, console: Console, rounds: Mapping[str, int]) -> None:
        self._console = console
        self._progress = _Bars(
            SpinnerColumn(),
            TextColumn("[bold]{task.description:<9}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            Remaining(),
            TextColumn("{task.fields[state]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            speed_estimate_period=86400.0,
        )
        self._all = self._progress.add_task("whole run", total=sum(rounds.values()), state="starting Flower and Ray")
        self._task = self._all
        self._stage, self._total, self._exchange, self._asking = "", 0, "", ""
        self._progress.start()

    def _state(self, text: str) -> None:
        self._progress.update(self._task, state=text)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def warning(self, text: str) -> None:
        self._console.print(f"warning: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)

    def stage_started(self, stage: str, done: int, total: int) -> None:
        self._progress.update(self._all, state="")
        self._stage, self._total = stage, total
        self._task = self._progress.add_task(stage, total=total, completed=done, state="done" if done == total else "")
        self._progress.advance(self._all, done)

    def round_started(self, server_round: int) -> None:
        self._exchange = "waiting for the clients"
        self._state(self._exchange)

    def requests(self, text: str) -> None:
        self._asking = text

    def exchange_started(self, kind: str, clients: Sequence[int]) -> None:
        kinds = {"unlearn": f"FedTU: {self._asking or _asking(clients)}", "calibrate": "FedEraser: calibrating"}
        self._exchange = kinds.get(kind, "FedFT")
        self._asking = ""
        self._state(f"{self._exchange}, 0/{len(clients)} replies")

    def arrived(self, answers: int, sent: int) -> None:
        self._state(f"{self._exchange}, {answers}/{sent} replies")

    def reply(self, client: int, ok: bool, reason: str) -> None:
        if not ok:
            self.warning(f"client {client} left out: {reason}")

    def evaluating(self, moment: str) -> None:
        self._state("evaluating")

    def evaluated(self, server_round: int, moment: str, metrics: Mapping[str, float], seconds: float) -> None:
        self._progress.line = (
            f"{self._stage}, {_where(self._stage, server_round, self._total, moment)}: {headline(metrics)}"
        )
        self._state("")

    def round_finished(self, server_round: int, seconds: float) -> None:
        if server_round > self._total:
            self._total = server_round
            self._progress.update(self._task, total=server_round)
            whole = next(t for t in self._progress.tasks if t.id == self._all)
            self._progress.update(self._all, total=(whole.total or 0) + 1)
        self._progress.update(self._task, completed=server_round)
        self._progress.advance(self._all)
        self._state("")

    def stage_finished(self, stage: str, seconds: float) -> None:
        self._state("done")

    def close(self) -> None:
        self._progress.stop()


def for_console(console: Console, rounds: Mapping[str, int]) -> Events:
    """The display that fits `console`."""
    return LiveEvents(console, rounds) if console.is_terminal else LineEvents(console)
