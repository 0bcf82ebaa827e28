"""The command `attack`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


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
) -> None:
    """Try to get forgotten records back, from the unlearned model and, beside it, from the retrained one.

    Repeated, it makes only what is missing, so it may be interrupted. The run's models stay as they are.
    """
    from oblivionis.runs.checkpoints import find_checkpoint

    find_checkpoint(run, stage, overrides or [])  # a mistake is told before anything heavy is imported

    from oblivionis.audits.attack import attack_run
    from oblivionis.cli.following import following
    from oblivionis.config import compose as configuration
    from oblivionis.reports import attacks as attack_report
    from oblivionis.reports.certificate.signing import mark_superseded
    from oblivionis.reports.html import run_page as html_report

    kinds = [kind.strip() for kind in only.split(",")] if only else []
    console = Console()
    with following(console, "attacking") as follow:
        directory, folder, results = attack_run(run, stage, overrides or [], kinds, follow)
    attack_report.print_results(results, console)
    mark_superseded(directory)
    html_report.write_html(directory, configuration.from_yaml(directory.read_config(), directory.config_place))
    made = len(results["seconds"])
    lines = [
        f"{made} attacks on a model, {sum(results['seconds'].values()):.0f} s when they were made",
        f"results: {folder} (results.json, questions/)",
        f"report: {directory.path / 'report.html'}",
    ]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
