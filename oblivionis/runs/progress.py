"""Progress of a run while it goes on: a live display on a terminal, otherwise one line per event."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from oblivionis.runs.duration_forecast import Forecast, Plan, duration
from oblivionis.runs.periodic_message import Ticker

LONG = 120.0
"""Seconds of a first round in which the start of the clients' processes is negligible."""
MOMENTS = {"start": " (before)", "after_unlearn": " (right after FedTU)", "round": "", "end": " (end, full profile)"}


TEXTS = (
    {"muse_verbmem": "VerbMem", "muse_knowmem_forget": "KnowMem forget", "muse_knowmem_retain": "retain"},
    {"rwku_forget_questions": "RWKU forget", "rwku_neighbor_questions": "neighbours"},
    {"choices_forget": "accuracy forget", "choices_utility": "utility"},
)
"""Of data that are texts, what belongs into the headline."""
FEW = 3
"""So many of other metrics fit into a line."""


def headline(metrics: Mapping[str, float]) -> str:
    """The few numbers that fit into one line: the chief ones, where there is none of them the first ones by name."""
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
    others = [f"{name} {value:.3f}" for name, value in metrics.items() if value is not None]
    return " · ".join(parts or others[:FEW]) or "nothing measured"


class Events:
    """The events of a run. A listener overrides the methods that it needs; this base shows nothing."""

    def note(self, text: str) -> None:
        """Something a user should read once."""

    def warning(self, text: str) -> None:
        """Something went wrong and the run goes on."""

    def planned(self, plan: Plan) -> None:
        """What the whole run is going to do, before its first stage."""

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

    def measuring(self, part: str, what: str, done: int, total: int) -> None:
        """How far an evaluation has come; a `Watcher` of `evaluation.engine.progress`."""

    def evaluated(self, server_round: int, moment: str, metrics: Mapping[str, float], seconds: float) -> None: ...

    def round_finished(self, server_round: int, seconds: float) -> None: ...

    def stage_finished(self, stage: str, seconds: float) -> None: ...

    def close(self) -> None:
        """The run is over, for good or bad."""


class _Following(Events):
    """Keeps what the lines of a display say: where the run is, what it does, and how long it will take."""

    def __init__(self) -> None:
        self.stage, self.doing, self.measured = "", "", ""
        self.forecast: Forecast | None = None
        self._timed = time.monotonic()
        self._total, self._round, self._asking, self._exchange = 0, 0, "", ""

    def planned(self, plan: Plan) -> None:
        self.forecast = Forecast(plan)

    def stage_started(self, stage: str, done: int, total: int) -> None:
        self.stage, self._round, self._total, self.doing = stage, done, total, ""
        if self.forecast and done:
            self.forecast.skip(stage, done)

    def round_started(self, server_round: int) -> None:
        self._round, self.doing = server_round, "waiting for the clients"

    def requests(self, text: str) -> None:
        self._asking = text

    def exchange_started(self, kind: str, clients: Sequence[int]) -> None:
        asking = self._asking or f"{_asking(clients)} to forget"
        kinds = {
            "unlearn": f"FedTU: {asking}",
            "calibrate": "FedTU: other clients train beside it",
            "replay": "FedTU: a past round is held again",
        }
        self._exchange, self._asking = kinds.get(kind, "FedFT"), ""
        self.doing = f"{self._exchange}, 0/{len(clients)} replies"

    def arrived(self, answers: int, sent: int) -> None:
        self.doing = f"{self._exchange}, {answers}/{sent} replies"

    def evaluating(self, moment: str) -> None:
        self.doing = f"evaluating{MOMENTS.get(moment, f' ({moment})')}"

    def measuring(self, part: str, what: str, done: int, total: int) -> None:
        self.doing = f"evaluating{f', {part}' if part else ''}: {done} of {total} {what}"

    def evaluated(self, server_round: int, moment: str, metrics: Mapping[str, float], seconds: float) -> None:
        self.measured, self.doing, self._timed = headline(metrics) if metrics else "", "", time.monotonic()
        if self.forecast:
            full, inside = moment in ("end", "base model"), moment in ("round", "after_unlearn")
            self.forecast.evaluation(self.stage, seconds, full=full, inside=inside)

    def round_finished(self, server_round: int, seconds: float) -> None:
        self._round, self.doing, self._timed = server_round, "", time.monotonic()
        self._total = max(self._total, server_round)
        if self.forecast:
            self.forecast.round(self.stage, seconds)

    def stage_finished(self, stage: str, seconds: float) -> None:
        self.doing = "done"
        if self.forecast:
            self.forecast.finished(stage)

    def left(self) -> str:
        """What the rest will take, in words."""
        return self.forecast.sentence(time.monotonic() - self._timed) if self.forecast else ""

    def spent(self) -> str:
        """Where the time went so far, in words."""
        return self.forecast.spent() if self.forecast else ""

    def where(self) -> str:
        """Stage and round, as a line begins with."""
        unit = "client" if self.stage == "local" else "round"
        before = "base model" if self.doing else "starting"
        return f"[{self.stage}] {unit} {self._round}/{self._total}" if self.stage else before


class LogEvents(_Following):
    """One log line per event, for `flwr run` and for files, with a forecast of the time left once there is one."""

    def __init__(self, log: logging.Logger | None = None) -> None:
        super().__init__()
        self._log: Callable[..., None] = (log or logging.getLogger("flwr")).info
        self._event = self._log
        self._ok = self._bad = 0
        self._forecast_shown = False

    def note(self, text: str) -> None:
        self._log("%s", text)

    def warning(self, text: str) -> None:
        self._log("warning: %s", text)

    def stage_started(self, stage: str, done: int, total: int) -> None:
        super().stage_started(stage, done, total)
        unit = "client" if stage == "local" else "round"
        more = f", continuing after {unit} {done}" if done else ""
        self._log("[%s] %d %s%s%s", stage, total, unit, "s" * (total != 1), more)

    def exchange_started(self, kind: str, clients: Sequence[int]) -> None:
        super().exchange_started(kind, clients)
        self._ok = self._bad = 0
        if kind == "unlearn":
            self._event("[%s] %s", self.stage, self._exchange)

    def reply(self, client: int, ok: bool, reason: str) -> None:
        self._ok, self._bad = self._ok + ok, self._bad + (not ok)
        if not ok:
            self._log("[%s] client %d left out: %s", self.stage, client, reason)

    def evaluated(self, server_round: int, moment: str, metrics: Mapping[str, float], seconds: float) -> None:
        super().evaluated(server_round, moment, metrics, seconds)
        if not self.measured:
            return
        say = self._event if moment == "round" else self._log
        say("[%s] %s: %s", self.stage, _where(self.stage, server_round, self._total, moment), self.measured)

    def round_finished(self, server_round: int, seconds: float) -> None:
        super().round_finished(server_round, seconds)
        if self.stage == "local":
            self._event("[local] %d of %d clients done", server_round, self._total)
        else:
            answers = f"{self._ok} of {self._ok + self._bad} clients answered"
            self._event("[%s] round %d/%d done: %s, %.1f s", self.stage, server_round, self._total, answers, seconds)
        self._foretell(seconds)

    def _foretell(self, seconds: float) -> None:
        """Once, after the first round if that was long, else after the second: starting takes half a minute."""
        if self._forecast_shown or self.forecast is None or not (text := self.forecast.sentence()):
            return
        if self.forecast.timed < 2 and seconds < LONG:
            return
        self._forecast_shown = True
        self._log("%s", text)
        if advice := self.forecast.advice():
            self.warning(advice)

    def stage_finished(self, stage: str, seconds: float) -> None:
        super().stage_finished(stage, seconds)
        self._log("[%s] finished in %.0f s", stage, seconds)


class LineEvents(LogEvents):
    """Lines on a console that is no terminal: what matters, and where the run is every few seconds.

    verbose: a line per event instead.
    """

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        super().__init__()
        self._log = lambda text, *args: console.print(text % args, highlight=False, markup=False, soft_wrap=True)
        self._event = self._log if verbose else lambda text, *args: None
        self._ticker = None if verbose else Ticker(self.tell)

    def tell(self, elapsed: float) -> None:
        """Say where the run is after so many seconds."""
        where = f"{self.where()}: {self.doing}" if self.doing else self.where()
        spent = f" ({spent})" if (spent := self.spent()) else ""
        self._log("%s", " · ".join(part for part in (where, f"{duration(elapsed)} so far{spent}", self.left()) if part))

    def close(self) -> None:
        if self._ticker is not None:
            self._ticker.close()


class QuietEvents(Events):
    """Warnings alone."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def warning(self, text: str) -> None:
        self._console.print(f"warning: {text}", markup=False, highlight=False, soft_wrap=True)

    def reply(self, client: int, ok: bool, reason: str) -> None:
        if not ok:
            self.warning(f"client {client} left out: {reason}")


def _where(stage: str, server_round: int, total: int, moment: str) -> str:
    """What was measured; the stage `local` counts clients, not rounds."""
    if stage == "local":
        return f"client {server_round}"
    return f"round {server_round}/{max(total, server_round)}{MOMENTS.get(moment, f' ({moment})')}"


def _asking(clients: Sequence[int]) -> str:
    verb = "client %s asks" if len(clients) == 1 else "clients %s ask"
    return verb % ", ".join(map(str, clients))


class Bars(Progress):
    """Progress bars with lines of text below them, which are asked for whenever they are drawn."""

    lines: Callable[[], Sequence[str]] = tuple

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for line in self.lines():
            yield Text(line, style="dim", no_wrap=True, overflow="ellipsis")


class LiveEvents(_Following):
    """A live display on a terminal: a bar per stage, one for the whole run with the time left, the last metrics."""

    def __init__(self, console: Console, rounds: Mapping[str, int]) -> None:
        super().__init__()
        self._console = console
        self._progress = Bars(
            SpinnerColumn(),
            TextColumn("[bold]{task.description:<9}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
        )
        self._all = self._progress.add_task("whole run", total=sum(rounds.values()), state="starting")
        self._task = self._all
        self._advised, self._last = False, ""
        self._progress.lines = self._lines
        self._progress.start()

    def _lines(self) -> list[str]:
        """What is left, where the time went, and what was measured last."""
        spent = f"so far: {spent}" if (spent := self.spent()) else ""
        times = " · ".join(filter(None, (self.left(), spent)))
        return [line for line in (times, self._last) if line]

    def _show(self) -> None:
        if self._task != self._all:
            self._progress.update(self._task, state=self.doing)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def warning(self, text: str) -> None:
        self._console.print(f"warning: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)

    def stage_started(self, stage: str, done: int, total: int) -> None:
        super().stage_started(stage, done, total)
        self._progress.update(self._all, state="")
        self._task = self._progress.add_task(stage, total=total, completed=done, state="done" if done == total else "")
        self._progress.advance(self._all, done)

    def round_started(self, server_round: int) -> None:
        super().round_started(server_round)
        self._show()

    def exchange_started(self, kind: str, clients: Sequence[int]) -> None:
        super().exchange_started(kind, clients)
        self._show()

    def arrived(self, answers: int, sent: int) -> None:
        super().arrived(answers, sent)
        self._show()

    def reply(self, client: int, ok: bool, reason: str) -> None:
        if not ok:
            self.warning(f"client {client} left out: {reason}")

    def evaluating(self, moment: str) -> None:
        super().evaluating(moment)
        self._show()

    def measuring(self, part: str, what: str, done: int, total: int) -> None:
        super().measuring(part, what, done, total)
        self._show()

    def evaluated(self, server_round: int, moment: str, metrics: Mapping[str, float], seconds: float) -> None:
        super().evaluated(server_round, moment, metrics, seconds)
        where = _where(self.stage, server_round, self._total, moment)
        self._last = f"{self.stage}, {where}: {self.measured}" if self.measured else self._last
        self._show()

    def round_finished(self, server_round: int, seconds: float) -> None:
        if server_round > self._total:
            self._progress.update(self._task, total=server_round)
            whole = next(t for t in self._progress.tasks if t.id == self._all)
            self._progress.update(self._all, total=(whole.total or 0) + 1)
        super().round_finished(server_round, seconds)
        self._progress.update(self._task, completed=server_round)
        self._progress.advance(self._all)
        self._show()
        if not self._advised and self.forecast and self.forecast.timed > 1 and (advice := self.forecast.advice()):
            self._advised = True
            self.warning(advice)

    def stage_finished(self, stage: str, seconds: float) -> None:
        super().stage_finished(stage, seconds)
        self._show()

    def close(self) -> None:
        self._progress.stop()


def for_console(console: Console, rounds: Mapping[str, int], verbosity: str = "normal") -> Events:
    """The display that fits `console`; `verbosity` is normal, quiet (warnings alone) or verbose (a line per event)."""
    if verbosity == "quiet":
        return QuietEvents(console)
    if verbosity == "verbose" or not console.is_terminal:
        return LineEvents(console, verbose=verbosity == "verbose")
    return LiveEvents(console, rounds)
