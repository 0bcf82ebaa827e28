"""A run that is to be done, and its directory before the work begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.scheduling.processes import RESUME
from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.reuse import adopt_rounds, import_updates, take_over


@dataclass(frozen=True)
class Task:
    """A run that is to be done.

    key: a name that no other task has; run: its directory, which need not exist before `prepare`; after: keys of the
    tasks that must be finished before it begins; stages: those that it is finished with, None: its configuration's;
    command: what does it, as `processes.start` takes it.
    """

    key: str
    label: str
    config: Config
    run: RunDirectory
    prepare: Callable[[], object]
    after: tuple[str, ...] = ()
    stages: Sequence[str] | None = None
    command: Sequence[str] = RESUME

    @property
    def finished(self) -> bool:
        """Whether all its stages are complete."""
        return finished(self.run, self.config.stages if self.stages is None else self.stages)

    def of_kind(self, other: Task) -> bool:
        """Whether it takes about as long as another one."""
        return (self.config.stages, self.stages) == (other.config.stages, other.stages)

    @property
    def held(self) -> bool:
        """Whether another process does this run, of a command that was killed or of one that runs at the same time."""
        return self.run.held_by() is not None


def finished(run: RunDirectory, stages: Iterable[str]) -> bool:
    """Whether these stages of a run are complete."""
    return all(run.stage_summary(stage) is not None for stage in stages)


def make(run: RunDirectory, config: Config) -> None:
    """Make the directory of a run with its configuration, unless it is there."""
    if not (run.path / "config.yaml").is_file():
        run.path.mkdir(parents=True, exist_ok=True)
        run.write_config(configuration.to_yaml(config))


def prepare(
    run: RunDirectory,
    config: Config,
    stages: Mapping[str, RunDirectory],
    updates: RunDirectory | None = None,
    rounds: Mapping[str, RunDirectory] | None = None,
) -> None:
    """Make the directory of a run that begins with finished stages of others.

    stages: by name the run that has done each; updates: the run with the clients' updates of the stage finetune, None:
    the one that has done it; rounds: by name of a stage the run whose rounds are this one's, too, though it serves
    another model of them.
    """
    make(run, config)
    with run.lock():
        for stage, source in (rounds or {}).items():
            adopt_rounds(run, source, stage)
        if not rounds and (source := updates or stages.get("finetune")) is not None:
            import_updates(config, run, source)
        for stage, source in stages.items():
            if run.stage_summary(stage) is None:
                take_over(run, source, stage)
