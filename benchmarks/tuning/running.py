"""The runs of a tuning, each a process of its own: what it starts from, the untuned settings, and the trials."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import TrialState
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from benchmarks.federated import processes
from benchmarks.federated.processes import Job, Slot
from benchmarks.tuning import objective
from benchmarks.tuning.objective import Oracle
from benchmarks.tuning.settings import STAGES, Source, with_values
from benchmarks.tuning.study import Search
from oblivionis.config import compose as configuration
from oblivionis.config import method_traits
from oblivionis.config.schema import Config
from oblivionis.data.corpora import load_corpus, load_partition
from oblivionis.errors import RunError, RunFailed
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory, named_metrics
from oblivionis.runs.duration_forecast import duration
from oblivionis.runs.failed_evaluators import failures
from oblivionis.runs.periodic_message import Ticker
from oblivionis.runs.progress import Bars
from oblivionis.runs.reuse import import_updates, take_over

POLL_S = 0.2
MOST_FAILURES = 3
"""So many trials that fail one after another end the search: it is not the values that are wrong."""
TRIALS, UNTUNED = "trials", "untuned"


@dataclass(frozen=True)
class Terms:
    """On what terms trials are judged: the retrained model, which metric its utility is, which share must be left."""

    oracle: Oracle
    utility: str
    least_utility: float


def judged(run: RunDirectory, config: Config, terms: Terms) -> dict[str, Any]:
    """What a finished run is worth: distance, violation, the measures and their distances, utility and what it took.

    Raises RunError for one that is not as its ledger says.
    """
    artifact_binding.require_intact(run, with_models=False)
    summary, log = run.stage_summary("unlearn"), run.evaluation_log("unlearn")
    assert summary is not None
    values = objective.measured(summary["metrics"], log or {}, config.evaluation.truth_ratio)
    utility = summary["metrics"].get(terms.utility)
    violation = objective.violation(utility, terms.oracle, terms.least_utility)
    return {
        "distance": objective.distance(values, terms.oracle),
        "violation": violation,
        "measures": values,
        "distances": objective.distances(values, terms.oracle),
        "utility": utility,
        "utility_share": terms.least_utility - violation,
        "failed": not_measured_of(run),
        **effort(run, config),
    }


def not_measured_of(run: RunDirectory, stage: str = "unlearn") -> dict[str, str]:
    """By evaluator why figures of a stage's last model are missing: a measure without them counts as far off as can
    be."""
    return {f.evaluator: f.reason for f in failures(run) if f.stage == stage and f.final}


def effort(run: RunDirectory, config: Config) -> dict[str, float]:
    """What unlearning took: clients that were asked to forget, over all rounds; passes over their records, by methods
    for which clients go through them; seconds."""
    rows = [r for r in run.metrics() if (r["stage"], r["evaluator"]) == ("unlearn", "federation")]
    exchanges = sum(len(row.get("clients", {}).get("unlearn", ())) for row in rows)
    return {
        "rounds": len(rows),
        "exchanges": exchanges,
        "client_epochs": exchanges * config.unlearning.epochs if method_traits.is_loss(config.unlearning.method) else 0,
        "seconds": round(sum(row["metrics"].get("seconds", 0.0) for row in rows), 3),
    }


def curve(run: RunDirectory, oracle: Oracle) -> dict[int, float]:
    """The distance after each round that was measured, by what is measured there."""
    found: dict[int, dict[str, float]] = {}
    for row in run.metrics():
        if (row["stage"], row["moment"]) == ("unlearn", "round"):
            found.setdefault(row["round"], {}).update(named_metrics(row["evaluator"], row["metrics"]))
    wanted = [measure for measure in objective.AFTER_ROUNDS if measure in oracle.values]
    names = [objective.METRICS[measure] for measure in wanted]
    return {
        server_round: objective.distance(objective.measured(metrics, None, ""), oracle, wanted)
        for server_round, metrics in found.items()
        if wanted and all(name in metrics for name in names)
    }


def start_base(folder: Path, config: Config, source: Source) -> RunDirectory:
    """The run directory of what a tuning starts from: the finetuned model is that of `source`, where it has one.

    That takes that the same clients hold the same records, which another choice of whom to forget may change
    (`data.partition.forget_placement`), and that no ε is accounted for; else the stage finetune is done anew, too.
    """
    run = RunDirectory(folder.resolve())
    if not (run.path / "config.yaml").is_file():
        run.path.mkdir(parents=True, exist_ok=True)
        run.write_config(configuration.to_yaml(config))
    begun = run.checkpoint_rounds("finetune") or run.stage_summary("finetune") is not None
    if source.run is None or begun or config.privacy.level != "none" or not _alike(config, source.config):
        return run
    with run.lock():
        artifact_binding.take_over(run, source.run, "finetune")
        rows = [r for r in source.run.metrics() if (r["stage"], r["evaluator"]) == ("finetune", "federation")]
        run.append_metrics(rows)
        run.save_checkpoint(source.run.load_checkpoint("finetune"), keep=1)
    return run


def _alike(one: Config, other: Config) -> bool:
    """Whether the same clients hold the same records."""
    first, second = (load_partition(load_corpus(config.data), config) for config in (one, other))
    return first == second


def prepare(folder: Path, config: Config, base: RunDirectory, updates: RunDirectory) -> RunDirectory:
    """The run directory of a stage unlearn that starts from the stages of `base`; `updates` has clients' updates."""
    run = RunDirectory(folder.resolve())
    if not (run.path / "config.yaml").is_file():
        run.path.mkdir(parents=True, exist_ok=True)
        run.write_config(configuration.to_yaml(config))
    with run.lock():
        import_updates(config, run, updates)
        for stage in STAGES:
            if run.stage_summary(stage) is None:
                take_over(run, base, stage)
    return run


def finished(run: RunDirectory, config: Config) -> bool:
    """Whether all its stages are complete."""
    return all(run.stage_summary(stage) is not None for stage in config.stages)


def tidy(run: RunDirectory) -> None:
    """Drop the models of a run that was judged: its numbers and answers stay, and its settings make it again."""
    for name in ("checkpoints", "updates"):
        shutil.rmtree(run.path / name, ignore_errors=True)


class Workers:
    """As many runs at once as there are slots, shown while they go on, and stopped in an orderly way."""

    def __init__(self, console: Console, jobs: int) -> None:
        self._console, self._free, self.slots = console, processes.slots(jobs), jobs
        self.jobs: dict[str, tuple[Slot, Job]] = {}

    @property
    def room(self) -> bool:
        """Whether another run may begin."""
        return bool(self._free)

    def start(self, label: str, run: RunDirectory, config: Config) -> None:
        """Begin or continue a run with that configuration."""
        slot = self._free.pop(0)
        self.jobs[label] = (slot, processes.start(run.path, slot, config.unlearning.method))

    def ended(self) -> dict[str, Job]:
        """Take the runs whose processes have ended."""
        found = {label: job for label, (_, job) in self.jobs.items() if job.process.poll() is not None}
        for label in found:
            self._free.append(self.jobs.pop(label)[0])
        return found

    def stop(self, label: str) -> float:
        """End a run; the seconds that it took."""
        slot, job = self.jobs.pop(label)
        processes.stop([job])
        self._free.append(slot)
        return job.seconds

    def say(self, text: str, style: str | None = None) -> None:
        """A line that stays."""
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def work(self, title: str, total: int, step: Callable[[], int | None]) -> None:
        """Call `step`, which tells how much is done, until it returns None; Ctrl-C ends the runs under way first."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with ExitStack() as shown:
            bar = shown.enter_context(Bars(*columns, console=self._console, transient=True))
            if not self._console.is_terminal:
                shown.callback(Ticker(lambda _: self.say("\n".join(self._at()))).close)
            task = bar.add_task(title, total=total)
            try:
                while (done := step()) is not None:
                    bar.update(task, completed=done)
                    bar.lines = self._at()
                    time.sleep(POLL_S)
            except BaseException:
                if self.jobs:
                    self.say(f"stopping {len(self.jobs)} run{'s' * (len(self.jobs) > 1)}")
                    processes.stop([job for _, job in self.jobs.values()])
                raise

    def _at(self) -> list[str]:
        return [f"{label}: {job.saying()}" for label, (_, job) in list(self.jobs.items())]


def complete(workers: Workers, wanted: Mapping[str, tuple[RunDirectory, Config]]) -> None:
    """Do these runs, by label, as far as they are not finished. Raises RunFailed for one that fails."""
    waiting = {label: run for label, (run, config) in wanted.items() if not finished(run, config)}
    total = len(waiting)

    def step() -> int | None:
        for label, job in workers.ended().items():
            run, config = wanted[label]
            if not finished(run, config):
                raise RunFailed(f"{label}: {job.failure()}; see {job.log}")
            workers.say(f"{label}: {duration(job.seconds)}")
        for label in list(waiting):
            if workers.room and waiting[label].held_by() is None:
                run = waiting.pop(label)
                if not finished(run, wanted[label][1]):
                    workers.start(label, run, wanted[label][1])
        return total - len(waiting) - len(workers.jobs) if waiting or workers.jobs else None

    if waiting:
        workers.work(f"{total} run{'s' * (total > 1)}", total, step)


class Trials:
    """The search of one method: asks for trials until the budget is spent, follows, stops and judges them.

    folder: the method's; untuned: its configuration with the settings that nobody tuned; budget: trials that finish or
    are stopped as not worth it; one that breaks off is replaced by another.
    """

    def __init__(
        self,
        search: Search,
        workers: Workers,
        folder: Path,
        untuned: Config,
        terms: Terms,
        start: Callable[[Path, Config], RunDirectory],
        budget: int,
        method: str,
    ) -> None:
        self._search, self._workers, self._terms, self._budget = search, workers, terms, budget
        self._folder, self._untuned, self._start, self._method = folder, untuned, start, method
        self._open: list[tuple[int, dict[str, Any]]] = [(t.number, t.params) for t in search.trials(TrialState.RUNNING)]
        for number, _ in self._open:
            if (pid := RunDirectory(self._place(number).resolve()).held_by()) is not None:
                workers.say(
                    f"{method} trial {number}: still under way in process {pid}, left by a killed tuning; waiting"
                )
        self._runs: dict[str, tuple[int, RunDirectory, Config]] = {}
        self._reported: dict[str, set[int]] = {}
        self._failures, self._took, self._slots = 0, list[float](), workers.slots

    def execute(self) -> None:
        """Spend the budget. Raises RunFailed where trial after trial fails."""
        if self._search.spent < self._budget or self._open:
            self._workers.work(self._method, self._budget, self._step)

    def _step(self) -> int | None:
        for label in list(self._runs):
            self._follow(label)
        for label, job in self._workers.ended().items():
            self._end(label, job)
        while self._workers.room and (given := self._next()) is not None:
            self._begin(*given)
        return self._search.spent if self._runs or self._open or self._search.spent < self._budget else None

    def _next(self) -> tuple[int, dict[str, Any]] | None:
        """A trial that was interrupted and that nobody does, else a new one while the budget lasts."""
        for given in self._open:
            if RunDirectory(self._place(given[0]).resolve()).held_by() is None:
                self._open.remove(given)
                return given
        if self._search.spent + len(self._runs) + len(self._open) >= self._budget:
            return None
        trial = self._search.ask()
        return trial.number, trial.params

    def _place(self, number: int) -> Path:
        return self._folder / TRIALS / f"{number:04d}"

    def _begin(self, number: int, values: Mapping[str, Any]) -> None:
        config = with_values(self._untuned, values)
        label = f"{self._method} trial {number}"
        try:
            run = self._start(self._place(number), config)
        except RunError as error:
            self._fail(number, label, str(error))
            return
        if finished(run, config):
            self._judge(number, label, run, config)
            return
        self._runs[label] = (number, run, config)
        self._workers.start(label, run, config)

    def _follow(self, label: str) -> None:
        """Report the rounds that are complete; end the trial where it is not worth its time."""
        number, run, config = self._runs[label]
        reached = curve(run, self._terms.oracle)
        new = sorted(reached.keys() - self._reported.get(label, set()))
        self._reported[label] = set(reached)
        if not any([self._search.report(number, r, reached[r]) for r in new]) or finished(run, config):
            return
        last = max(reached)
        self._took.append(self._workers.stop(label))
        del self._runs[label]
        self._search.prune(number, effort(run, config))
        tidy(run)
        self._workers.say(f"{label}: stopped after round {last}, distance {reached[last]:.2f} by then{self._left()}")

    def _end(self, label: str, job: Job) -> None:
        number, run, config = self._runs.pop(label)
        self._took.append(job.seconds)
        if finished(run, config):
            self._judge(number, label, run, config)
        else:
            self._fail(number, label, f"{job.failure()}; see {job.log}")

    def _judge(self, number: int, label: str, run: RunDirectory, config: Config) -> None:
        told = judged(run, config, self._terms)
        self._search.complete(number, told)
        tidy(run)
        self._failures = 0
        short = told["violation"] > 0
        self._workers.say(
            f"{label}: distance {told['distance']:.2f}, utility {told['utility_share']:.0%} of the retrained model's"
            f"{', too little' if short else ''}{self._left()}",
            style="dim" if short else None,
        )
        for evaluator, why in told["failed"].items():
            self._workers.say(f"{label}: {evaluator} failed: {why}", style="red")

    def _fail(self, number: int, label: str, error: str) -> None:
        self._search.fail(number, error)
        self._failures += 1
        self._workers.say(f"{label} failed: {error}", style="red")
        if self._failures >= MOST_FAILURES:
            raise RunFailed(f"{MOST_FAILURES} trials of {self._method} failed one after another, the last one: {error}")

    def _left(self) -> str:
        """How long the rest will take, judged by the trials that ended now."""
        rest = self._budget - self._search.spent
        if not self._took or rest <= 0:
            return ""
        return f"; about {duration(sum(self._took) / len(self._took) * rest / self._slots)} left"
