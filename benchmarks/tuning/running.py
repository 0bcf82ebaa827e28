"""The runs of a tuning, each a process of its own: what it starts from, the untuned settings, and the trials."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from benchmarks.scheduling.scheduler import Runs, Scheduler
from benchmarks.scheduling.tasks import Task, prepare
from benchmarks.tuning import objective
from benchmarks.tuning.objective import Oracle
from benchmarks.tuning.settings import Source, with_values
from benchmarks.tuning.study import Search
from oblivionis.config import method_traits
from oblivionis.config.schema import Config
from oblivionis.data.corpora import load_corpus, load_partition
from oblivionis.errors import RunError, RunFailed
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory, named_metrics
from oblivionis.runs.duration_forecast import duration
from oblivionis.runs.failed_evaluators import failures

MOST_FAILURES = 3
"""So many trials that fail one after another end the search: it is not the values that are wrong."""
TRIALS, UNTUNED = "trials", "untuned"
Start = Callable[[str, str, Config, Path], Task]
"""The task of a stage unlearn by its key, its label, its configuration and its folder."""


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


def start_base(run: RunDirectory, config: Config, source: Source) -> None:
    """Make the run directory of what a tuning starts from: the finetuned model is that of `source`, if it has one.

    That takes that the same clients hold the same records, which another choice of whom to forget may change
    (`data.partition.forget_placement`), and that no ε is accounted for; else the stage finetune is done anew, too.
    """
    prepare(run, config, {})
    begun = run.checkpoint_rounds("finetune") or run.stage_summary("finetune") is not None
    if source.run is None or begun or config.privacy.level != "none" or not _alike(config, source.config):
        return
    with run.lock():
        artifact_binding.take_over(run, source.run, "finetune")
        rows = [r for r in source.run.metrics() if (r["stage"], r["evaluator"]) == ("finetune", "federation")]
        run.append_metrics(rows)
        run.save_checkpoint(source.run.load_checkpoint("finetune"), keep=1)


def _alike(one: Config, other: Config) -> bool:
    """Whether the same clients hold the same records."""
    first, second = (load_partition(load_corpus(config.data), config) for config in (one, other))
    return first == second


def tidy(run: RunDirectory) -> None:
    """Drop the models of a run that was judged: its numbers and answers stay, and its settings make it again."""
    for name in ("checkpoints", "updates"):
        shutil.rmtree(run.path / name, ignore_errors=True)


def complete(scheduler: Scheduler, tasks: Sequence[Task]) -> None:
    """Do what is not finished of these runs. Raises RunFailed where some fail."""
    runs = Runs(tasks, scheduler)
    if len(runs.done) < len(tasks):
        runs.execute()
    if failed := [f"{task.label}: {runs.failures[task.key]}" for task in tasks if task.key in runs.failures]:
        raise RunFailed("; ".join(failed))


class Trials:
    """The search of one method: asks for trials until the budget is spent, follows, stops and judges them.

    untuned: the run with the settings that nobody tuned, beside whose folder the trials lie; start: makes the task of
    a trial; budget: trials that finish or are stopped as not worth it; one that breaks off is replaced by another.
    """

    def __init__(
        self, search: Search, scheduler: Scheduler, untuned: Task, terms: Terms, start: Start, budget: int, method: str
    ) -> None:
        self._search, self._scheduler, self._terms, self._budget = search, scheduler, terms, budget
        self._untuned, self._start, self._method = untuned, start, method
        self._open = [self._task(t.number, t.params) for t in search.trials(TrialState.RUNNING)]
        for task in self._open:
            if (pid := task.run.held_by()) is not None:
                scheduler.say(f"{task.label}: still under way in process {pid}, left by a killed tuning; waiting")
        self._reported: dict[str, set[int]] = {}
        self._failures, self._took = 0, list[float]()

    def execute(self) -> None:
        """Spend the budget. Raises RunFailed where trial after trial fails."""
        if self._search.spent < self._budget or self._open:
            self._scheduler.work(self._budget, self._step)

    def _step(self) -> tuple[int, str] | None:
        for task, _ in list(self._scheduler.under_way.values()):
            self._follow(task)
        for task, work in self._scheduler.ended():
            self._took.append(work.seconds)
            if task.finished:
                self._judge(task)
            else:
                self._fail(task, f"{work.failure()}; see {work.log}")
        while self._scheduler.executor.room(self._untuned) and (task := self._next()) is not None:
            self._begin(task)
        spent = self._search.spent
        return (spent, self._method) if self._scheduler.under_way or self._open or spent < self._budget else None

    def _next(self) -> Task | None:
        """A trial that was interrupted and that nobody does, else a new one while the budget lasts."""
        for task in self._open:
            if not task.held:
                self._open.remove(task)
                return task
        if self._search.spent + len(self._scheduler.under_way) + len(self._open) >= self._budget:
            return None
        trial = self._search.ask()
        return self._task(trial.number, trial.params)

    def _task(self, number: int, values: Mapping[str, Any]) -> Task:
        """The run of a trial, whose key is its number."""
        place = self._untuned.run.path.parent / TRIALS / f"{number:04d}"
        config = with_values(self._untuned.config, values)
        return self._start(str(number), f"{self._method} trial {number}", config, place)

    def _begin(self, task: Task) -> None:
        try:
            task.prepare()
        except RunError as error:
            self._fail(task, str(error))
            return
        if task.finished:
            self._judge(task)
        else:
            self._scheduler.begin(task)

    def _follow(self, task: Task) -> None:
        """Report the rounds that are complete; end the trial where it is not worth its time."""
        reached = curve(task.run, self._terms.oracle)
        new = sorted(reached.keys() - self._reported.get(task.key, set()))
        self._reported[task.key] = set(reached)
        if not any([self._search.report(int(task.key), r, reached[r]) for r in new]) or task.finished:
            return
        last = max(reached)
        self._took.append(self._scheduler.stop(task).seconds)
        self._search.prune(int(task.key), effort(task.run, task.config))
        tidy(task.run)
        text = f"{task.label}: stopped after round {last}, distance {reached[last]:.2f} by then{self._left()}"
        self._scheduler.say(text)

    def _judge(self, task: Task) -> None:
        found = judged(task.run, task.config, self._terms)
        self._search.complete(int(task.key), found)
        tidy(task.run)
        self._failures = 0
        short = found["violation"] > 0
        self._scheduler.say(
            f"{task.label}: distance {found['distance']:.2f}, utility {found['utility_share']:.0%} of the retrained "
            f"model's{', too little' if short else ''}{self._left()}",
            style="dim" if short else None,
        )
        for evaluator, why in found["failed"].items():
            self._scheduler.say(f"{task.label}: {evaluator} failed: {why}", style="red")

    def _fail(self, task: Task, error: str) -> None:
        self._search.fail(int(task.key), error)
        self._failures += 1
        self._scheduler.say(f"{task.label} failed: {error}", style="red")
        if self._failures >= MOST_FAILURES:
            raise RunFailed(f"{MOST_FAILURES} trials of {self._method} failed one after another, the last one: {error}")

    def _left(self) -> str:
        """How long the rest will take, judged by the trials that ended now."""
        rest = self._budget - self._search.spent
        if not self._took or rest <= 0:
            return ""
        mean = sum(self._took) / len(self._took)
        return f"; about {duration(mean * rest / self._scheduler.executor.width)} left"
