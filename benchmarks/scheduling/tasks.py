"""A run that is to be done, and its directory before the work begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.reuse import adopt_rounds, import_updates, take_over


@dataclass(frozen=True)
class Task:
    """A run that is to be done.

    key: a name that no other task has; run: its directory, which need not exist before `prepare`; after: keys of the
    tasks that must be finished before it begins.
    """

    key: str
    label: str
    config: Config
    run: RunDirectory
    prepare: Callable[[], object]
    after: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether all stages of its configuration are complete."""
        return finished(self.run, self.config)

    @property
    def held(self) -> bool:
        """Whether another process does this run, of a command that was killed or of one that runs at the same time."""
        return self.run.held_by() is not None


def finished(run: RunDirectory, config: Config) -> bool:
    """Whether all stages of a run's configuration are complete."""
    return all(run.stage_summary(stage) is not None for stage in config.stages)


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
    if not (run.path / "config.yaml").is_file():
        run.path.mkdir(parents=True, exist_ok=True)
        run.write_config(configuration.to_yaml(config))
    with run.lock():
        for stage, source in (rounds or {}).items():
            adopt_rounds(run, source, stage)
        if not rounds and (source := updates or stages.get("finetune")) is not None:
            import_updates(config, run, source)
        for stage, source in stages.items():
            if run.stage_summary(stage) is None:
                take_over(run, source, stage)
