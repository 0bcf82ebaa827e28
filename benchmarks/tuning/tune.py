"""The whole of a tuning: whom it forgets, what it starts from, a search per method under one budget, and the results.

A folder holds one tuning: `tuning.yaml` says of which run, on whom and on what terms, `base/` has its finetuned and its
retrained model, `<method>/` the untuned run and the trials, `optuna.journal` what Optuna knows.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from rich.console import Console

from benchmarks.output.folders import claim
from benchmarks.output.terminal import say
from benchmarks.scheduling.executors import LocalExecutor
from benchmarks.scheduling.memory import warn_of_memory
from benchmarks.scheduling.scheduler import Scheduler
from benchmarks.scheduling.tasks import Task, prepare
from benchmarks.tuning import objective, running, settings
from benchmarks.tuning.requests import subjects_of
from benchmarks.tuning.running import Terms
from benchmarks.tuning.settings import Source
from benchmarks.tuning.space import Dimension, read_file, space, untuned
from benchmarks.tuning.study import JOURNAL, Search
from oblivionis.config import compose as configuration
from oblivionis.config import method_traits
from oblivionis.config.schema import Config
from oblivionis.data.corpora import load_corpus
from oblivionis.errors import RunError, RunFailed, RunInterrupted
from oblivionis.files import write_atomic
from oblivionis.measures import registry
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.failed_evaluators import not_measured
from oblivionis.runs.reuse import check_updates

if TYPE_CHECKING:
    from benchmarks.tuning.results import Found

CLAIM, EXPERIMENT = "tuning.yaml", "experiment.yaml"
UTILITY = "model_utility"
UTILITIES = (UTILITY, "retain_rouge", "retain_prob")
"""What measures the utility: the first that the retrained model has above 0."""


@dataclass(frozen=True)
class Wanted:
    """What the command asks for. methods: each gets `trials` trials with up to `max_epochs` epochs per exchange."""

    run: str
    overrides: tuple[str, ...]
    methods: tuple[str, ...]
    trials: int
    jobs: int
    output: Path
    space_file: Path | None = None
    subjects: tuple[str, ...] = ()
    least_utility: float = 0.95
    max_epochs: int = 20
    seed: int = 0
    prune: bool = True

    @property
    def command(self) -> str:
        """The command that goes on with it."""
        parts = ["oblivionis", "tune", self.run, *self.overrides]
        for method in self.methods:
            parts += ["--unlearning", method]
        parts += ["--trials", str(self.trials), "--jobs", str(self.jobs), "--output", str(self.output)]
        for subject in self.subjects:
            parts += ["--subject", subject]
        default = Wanted("", (), (), 0, 0, Path())
        given = {"--space": self.space_file and str(self.space_file), "--least-utility": self.least_utility}
        given |= {"--max-epochs": self.max_epochs, "--seed": self.seed}
        usual = {"--least-utility": default.least_utility, "--max-epochs": default.max_epochs, "--seed": default.seed}
        for name, value in given.items():
            parts += [name, str(value)] if value is not None and value != usual.get(name) else []
        return shlex.join([*parts, *([] if self.prune else ["--no-prune"]), "--resume"])


@dataclass(frozen=True)
class Method:
    """One method: as it is chosen, what tables call it, its untuned configuration, and what is searched."""

    chosen: str
    label: str
    untuned: Config
    space: tuple[Dimension, ...]


@dataclass(frozen=True)
class Plan:
    """A tuning that can be done."""

    wanted: Wanted
    source: Source
    subjects: tuple[str, ...]
    base: Config
    methods: tuple[Method, ...]

    def lines(self) -> list[str]:
        """What will be done, in words."""
        wanted, requests = self.wanted, self.base.unlearning.requests
        start = f"the finetuned model of {wanted.run}" if self.source.run else f"a finetuned model of {wanted.run}"
        lines = [
            f"tuned on the records about {', '.join(self.subjects)} (requests: {requests.policy}), from {start}; "
            "the retrained model is made without them",
            f"budget of each method: {wanted.trials} trials of {self.base.federation.rounds.unlearn} rounds, at most "
            f"{wanted.max_epochs} epochs per exchange; at least {wanted.least_utility:.0%} of the retrained model's "
            "utility",
        ]
        for method in self.methods:
            searched = "; ".join(
                f"{d.path.removeprefix('unlearning.')} {d.words()} ({untuned(method.untuned, d.path)})"
                for d in method.space
            )
            own = method.untuned.unlearning.requests.policy
            lines.append(f"{method.label}: {searched}{'' if own == requests.policy else f' (requests: {own})'}")
        return lines


def plan(wanted: Wanted) -> Plan:
    """What there is to do. Raises ConfigError and RunError for whatever is wrong with it."""
    settings.check_methods(wanted.methods)
    source = settings.source_of(wanted.run, wanted.overrides)
    spaces = read_file(wanted.space_file, wanted.methods) if wanted.space_file else {}
    subjects = subjects_of(source.config, wanted.seed, wanted.subjects)
    keeping = next((m for m in wanted.methods if method_traits.updates(m) is not None), source.config.unlearning.method)
    base = settings.base_config(source, subjects, keeping, prune=wanted.prune)
    found = []
    for chosen in wanted.methods:
        config = settings.untuned_config(source, base, chosen)
        if source.run is not None:
            check_updates(config, source.run)
        searched = space(chosen, config, wanted.max_epochs, spaces.get(chosen))
        found.append(Method(chosen, method_traits.label(chosen), config, tuple(searched)))
    return Plan(wanted, source, tuple(subjects), base, tuple(found))


def tune(wanted: Wanted, console: Console, *, resume: bool, dry_run: bool = False) -> None:
    """Do it, as far as it is not in the folder yet, and write and print what came out.

    Raises ConfigError or RunError for a mistake, RunFailed where runs fail or a method keeps too little utility,
    RunInterrupted after Ctrl-C.
    """
    planned = plan(wanted)
    if dry_run:
        for line in [*planned.lines(), f"results: {wanted.output}"]:
            say(console, line)
        return
    with ExitStack() as held:
        _claim(planned, resume=resume, held=held)
        for line in [*planned.lines(), f"results: {wanted.output}"]:
            say(console, line)
        try:
            _work(planned, console)
        except KeyboardInterrupt:
            raise RunInterrupted(f"stopped; continue with: {wanted.command}") from None


def _claim(planned: Plan, *, resume: bool, held: ExitStack) -> None:
    """Make the folder that of this tuning, or check that it is, and hold it. Raises RunError."""
    wanted, folder = planned.wanted, planned.wanted.output
    now = {
        "run": wanted.run,
        "overrides": list(wanted.overrides),
        "subjects": list(planned.subjects),
        "least_utility": wanted.least_utility,
        "max_epochs": wanted.max_epochs,
        "seed": wanted.seed,
        "prune": wanted.prune,
    }
    taken = "has a tuning already; go on with it, or add a method, with --resume"
    claim(folder / CLAIM, now, resume=resume, taken=taken)
    try:
        lock = FileLock(folder / "tuning.lock")
        lock.acquire(timeout=0)
        held.callback(lock.release)
        if planned.source.run is None:
            write_atomic(folder / EXPERIMENT, configuration.to_yaml(planned.source.config))
    except Timeout:
        raise RunError(f"{folder} is in use by another process; wait for it or stop it") from None
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}") from error


def _work(planned: Plan, console: Console) -> None:
    from benchmarks.tuning import results  # matplotlib: mistakes are reported without it

    wanted = planned.wanted
    (wanted.output / f"{JOURNAL}.lock").unlink(missing_ok=True)  # of a process that was killed; the folder is ours
    warn_of_memory((m.untuned for m in planned.methods for _ in range(wanted.jobs)), wanted.jobs, console)
    scheduler = Scheduler(LocalExecutor(wanted.jobs), console)
    base = RunDirectory((wanted.output / "base").resolve())
    begin = partial(running.start_base, base, planned.base, planned.source)
    running.complete(scheduler, [Task("base", "finetuned and retrained model", planned.base, base, begin)])
    terms = _terms(base, planned)
    if terms.utility != UTILITIES[0] and (note := left_out(base, UTILITIES[: UTILITIES.index(terms.utility)])):
        say(console, f"warning: the utility is {registry.reader_name(terms.utility)}, for {note}")
    updates = planned.source.run or base

    def start(key: str, label: str, config: Config, folder: Path) -> Task:
        run, stages = RunDirectory(folder.resolve()), {stage: base for stage in settings.STAGES}
        return Task(key, label, config, run, lambda: prepare(run, config, stages, updates))

    first = {
        method.label: start(
            method.label, f"{method.label} untuned", method.untuned, wanted.output / method.label / running.UNTUNED
        )
        for method in planned.methods
    }
    running.complete(scheduler, [*first.values()])
    rounds = planned.base.federation.rounds.unlearn
    found: list[Found] = []
    facts = _facts(planned, terms)
    for method in planned.methods:
        task = first[method.label]
        run, config = task.run, task.config
        judged = running.judged(run, config, terms)
        values = {d.path: untuned(config, d.path) for d in method.space}
        search = Search(wanted.output, method.label, method.space, wanted.seed, rounds)
        search.learn(values, judged, running.curve(run, terms.oracle))
        running.Trials(search, scheduler, task, terms, start, wanted.trials, method.label).execute()
        entry = results.Entry(None, values, judged)
        keys = settings.own_keys(config, planned.source.config)
        found.append(results.Found(method.label, method.space, entry, results.entries(search), search, keys))
        heads = {f.method: _head(planned, wanted.output / f.method) for f in found}
        results.write(wanted.output, found, facts, heads)
    console.print(results.table(found, terms.oracle, terms.least_utility))
    efforts = [results.effort_in_words(each.budget) for each in found]
    _say(planned, found, efforts, console)


def _terms(base: RunDirectory, planned: Plan) -> Terms:
    """The retrained model's values. Raises RunError where nothing was measured or it has no utility."""
    summary, log = base.stage_summary("retrain"), base.evaluation_log("retrain") or {}
    assert summary is not None
    convention = planned.base.evaluation.truth_ratio
    values, errors = objective.measured(summary["metrics"], log, convention), objective.standard_errors(log, convention)
    values = {name: value for name, value in values.items() if name in errors}
    if failed := [f"{n} in {s}: {why}" for s in settings.STAGES for n, why in running.not_measured_of(base, s).items()]:
        # Whatever is missing there, no trial would be held against.
        raise not_measured(failed, f"trials need all of them: delete {base.path}, and give --resume")
    utility = next((name for name in UTILITIES if summary["metrics"].get(name)), None)
    if not values or utility is None:
        raise RunError(
            f"{base.path}: nothing of the retrained model was measured that a distance or a utility could go by; see "
            "its report"
        )
    oracle = objective.Oracle(values, errors, summary["metrics"][utility])
    return Terms(oracle, utility, planned.wanted.least_utility)


def left_out(base: RunDirectory, metrics: Sequence[str]) -> str:
    """Why the retrained model has none of some metrics, where there is a reason; else empty."""
    notes = (base.stage_summary("retrain") or {}).get("notes", {})
    return next((f"{registry.reader_name(name)} is left out: {notes[name]}" for name in metrics if name in notes), "")


def _facts(planned: Plan, terms: Terms) -> dict[str, Any]:
    wanted = planned.wanted
    return {
        "run": wanted.run,
        "overrides": list(wanted.overrides),
        "subjects": list(planned.subjects),
        "requests": asdict(planned.base.unlearning.requests),
        "records": _records(planned),
        "least_utility": wanted.least_utility,
        "utility": terms.utility,
        "max_epochs": wanted.max_epochs,
        "trials": wanted.trials,
        "seed": wanted.seed,
        "oracle": {"values": terms.oracle.values, "errors": terms.oracle.errors, "utility": terms.oracle.utility},
    }


def _records(planned: Plan) -> dict[str, list[str]]:
    """The ids of the records that the tuning forgets, and of those that the run itself does."""
    reported = planned.source.config.data
    return {
        "tuned_on": sorted(load_corpus(planned.base.data).forget_ids),
        "reported": sorted(load_corpus(reported).forget_ids),
    }


def _head(planned: Plan, folder: Path) -> Mapping[str, Any]:
    """What makes the settings an experiment: on top of the run, from its stages, on the requests that it reports."""
    if planned.source.run is None:
        return {"extends": f"../{EXPERIMENT}", "stages": [*settings.STAGES, "unlearn"]}
    config = planned.source.run.path / "config.yaml"
    return {
        "extends": Path(os.path.relpath(config, folder.resolve())).as_posix(),
        "name": None,
        "start_from": planned.wanted.run,
        "stages": [*settings.STAGES, "unlearn"],
    }


def _say(planned: Plan, found: Sequence[Found], efforts: Sequence[str], console: Console) -> None:
    folder = planned.wanted.output
    for each, effort in zip(found, efforts, strict=True):
        budget = each.budget
        say(
            console,
            f"{each.method}: {budget['complete']} trials finished, {budget['pruned']} stopped early, {budget['fail']} "
            f"failed; {effort}; tuned: {folder / each.method / 'tuned.yaml'}",
        )
    say(
        console,
        f"every trial: {folder / 'trials.csv'} · frontier: {folder / 'frontier.svg'} · report it on the run's own "
        f"requests: oblivionis simulate {folder / found[0].method / 'tuned.yaml'}",
    )
    if short := [each.method for each in found if not each.best.feasible]:
        raise RunFailed(
            f"no trial of {', '.join(short)} keeps {planned.wanted.least_utility:.0%} of the retrained "
            "model's utility; tuned.yaml has the one that comes nearest. Give more trials with --resume"
        )
    entries = [(each.method, entry) for each in found for entry in (each.untuned, *each.trials)]
    names = [(f"{method} {'untuned' if e.trial is None else f'trial {e.trial}'}", e.judged) for method, e in entries]
    if failed := [f"{name}: {n}: {why}" for name, judged in names for n, why in judged.get("failed", {}).items()]:
        raise not_measured(failed, "such a measure counts as far off as can be")
