"""Whole runs: what `oblivionis simulate` does, from another program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from oblivionis.config import compose as configuration
from oblivionis.config.allowed_code import permit_named
from oblivionis.erasure.schedule import check_requests
from oblivionis.reports import run_summary
from oblivionis.reports.html import run_page
from oblivionis.runs.directory import RunDirectory, check_output
from oblivionis.runs.failed_evaluators import failures
from oblivionis.runs.progress import Events, for_console
from oblivionis.runs.reuse import check_source
from oblivionis.server import simulation
from oblivionis.server.preflight import preflight
from oblivionis.server.stages import planned_rounds


@dataclass(frozen=True)
class Run:
    """A run on disk.

    Attributes
    ----------
    path : Path
        Its directory.
    metrics : mapping of mappings of float
        By stage that is complete, in the order of the reports, and by name the metrics of its final model with the
        profile `full`: `metrics["unlearn"]["forget_prob"]`. They are those of the table that `simulate` prints.
    failed : tuple of str
        The evaluations that failed, in any round, a line for each that says why. What they would have measured is
        missing from `metrics`.
    """

    path: Path
    metrics: Mapping[str, Mapping[str, float]]
    failed: tuple[str, ...] = ()

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run in a directory, made by `simulate` or by a deployed federation.

        Parameters
        ----------
        path : str or Path

        Returns
        -------
        Run

        Raises
        ------
        RunError
            Where there is no run.
        """
        run = RunDirectory.open(Path(path))
        config = configuration.from_yaml(run.read_config(), run.config_place)
        evaluation = config.evaluation
        metrics = run_summary.stage_metrics(run, evaluation.truth_ratio, evaluation.membership.confidence)
        return cls(run.path, metrics, tuple(failure.as_text() for failure in failures(run)))


def simulate(experiment: str | Path = "default", overrides: Sequence[str] = (), *, progress: bool = False) -> Run:
    """Run the stages of an experiment on simulated clients, as `oblivionis simulate` does, and open the run.

    Call it below `if __name__ == "__main__":`, since client processes may import the calling module. A run that broke
    down or was interrupted goes on with `oblivionis simulate --resume`.

    Parameters
    ----------
    experiment : str or Path
        A name in `conf/`, or the path of a YAML file.
    overrides : sequence of str
        `key=value`, each a key of the configuration, such as `unlearning=my_loss.py` for a loss of your own, or
        `output=FOLDER` for where the run's directory goes.
    progress : bool
        Show on standard error what goes on.

    Returns
    -------
    Run

    Raises
    ------
    ConfigError
        With every mistake in the configuration.
    RunFailed
        When the federation broke down.
    RunInterrupted
        After Ctrl-C.
    OblivionisError
        For another mistake that the user can mend.
    """
    config = configuration.compose(experiment, overrides)
    permit_named(config, overrides)
    check_output(Path(config.output), config.name)
    if config.start_from:
        check_source(config)
    check_requests(config)
    console = Console(stderr=True, quiet=not progress)
    preflight(config, console)
    run = RunDirectory.create(Path(config.output), config.name)
    run.write_config(configuration.to_yaml(config))
    events = for_console(console, planned_rounds(config)) if progress else Events()
    with run.lock():
        try:
            simulation.simulate(config, run, events)
        finally:
            events.close()
    run_page.write_html(run, config)
    return Run.open(run.path)
