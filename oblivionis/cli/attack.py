"""The command `attack`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from oblivionis.cli.as_json import AsJson, answering
from oblivionis.cli.progress_display import following
from oblivionis.config import compose as configuration

if TYPE_CHECKING:
    from oblivionis.runs.directory import RunDirectory


def attack(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Changes of the run's configuration, e.g. `attack.samples=1000` `attack.relearn.steps=[10,100]`.",
            show_default=False,
        ),
    ] = None,
    stage: Annotated[str, typer.Option(help="Which stage's model to attack.")] = "unlearn",
    only: Annotated[
        str | None,
        typer.Option(metavar="KIND,…", help="Make only these attacks now: quantise, relearn, sampling, …"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try to get forgotten records back, from the unlearned model and, beside it, from the retrained one.

    Repeated, it makes only what is missing, so it may be interrupted. The run's models stay as they are.
    """
    from oblivionis.runs.checkpoints import find_checkpoint

    find_checkpoint(run, stage, overrides or [])  # a mistake is reported before anything heavy is imported

    from oblivionis.audits.attack import attack_run
    from oblivionis.reports.certificate.signing import mark_superseded
    from oblivionis.reports.html import run_page as html_report
    from oblivionis.runs.failed_evaluators import not_measured

    kinds = [kind.strip() for kind in only.split(",")] if only else []
    with answering(as_json) as answer:
        with following(Console(), "attacking") as follow:
            directory, folder, results = attack_run(run, stage, overrides or [], kinds, follow)
        mark_superseded(directory)
        html_report.write_html(directory, configuration.from_yaml(directory.read_config(), directory.config_place))
        if as_json:
            answer({"folder": folder, **results})
        else:
            _print(directory, folder, results)
    if results["failed"]:
        failed = [f"{name}: {reason}" for name, reason in results["failed"].items()]
        raise not_measured(failed, "the same command tries them again")


def _print(directory: RunDirectory, folder: Path, results: Mapping[str, Any]) -> None:
    from oblivionis.reports import attacks as attack_report

    console = Console()
    attack_report.print_results(results, console)
    made = len(results["seconds"])
    lines = [
        f"{made} attacks on a model, {sum(results['seconds'].values()):.0f} s when they were made",
        f"results: {folder} (results.json, questions/)",
        f"report: {directory.path / 'report.html'}",
    ]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
