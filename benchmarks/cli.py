"""`oblivionis bench`: benchmark suites and the tables of their results."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import click
import typer
from rich.console import Console
from typer.core import TyperGroup

from oblivionis.errors import OblivionisError

TEXT = "text"
Results = Annotated[Path, typer.Argument(metavar="RESULTS", help="A suite's folder, or its results.parquet.")]
Format = Annotated[str, typer.Option("--format", help="text, md, latex, csv or html.")]


class _SuiteOrCommand(TyperGroup):
    """A first argument that is no command is a suite: `bench quick` is `bench run quick`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


bench_cli = typer.Typer(
    cls=_SuiteOrCommand,
    help="Run a benchmark suite (`oblivionis bench SUITE`), or print the tables of its results.",
    no_args_is_help=True,
)


@bench_cli.command("run")
def bench_run(
    suite: Annotated[
        str,
        typer.Argument(metavar="SUITE", help="A suite's YAML file, or a name in `benchmarks/suites/`, e.g. `quick`."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Any key of the suite, e.g. `base.data.path=FOLDER` `matrix.seed=[0,1,2]`; an axis, a table or a "
            "method that is null is left out.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the results (default: runs/bench/SUITE).", show_default=False),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once; each gets its share of the cores and GPUs.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Continue what was interrupted in that folder.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be run.")] = False,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the runs, which suites share (default: `stages` beside the results).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a suite and print its tables; results, tables and figures are written into a folder.

    `oblivionis bench SUITE` is the same.
    """
    from benchmarks import kinds as suites

    console = Console()
    suites.bench(
        suite, overrides or [], output, resume=resume, dry_run=dry_run, console=console, jobs=jobs, store=store
    )


@bench_cli.command("table")
def bench_table(
    target: Results,
    layout: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A table of the suite, or of one in `benchmarks/`; repeatable."),
    ] = None,
    form: Format = TEXT,
) -> None:
    """Print the tables of a suite's results, e.g. `--layout paper-table-2 --format latex`."""
    _check_target(target)
    from benchmarks.printing import FORMATS, tables_of

    _check_format(form, FORMATS)
    console = Console()
    for table in tables_of(target, layout or []):
        if form == TEXT:
            console.print(table.rich())
        else:
            print(FORMATS[form](table), end="")


@bench_cli.command("compare")
def bench_compare(
    target: Results,
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="[REFERENCE]",
            help="Another such folder or file, or the name of results that ship (default: as the folder is called).",
            show_default=False,
        ),
    ] = None,
    form: Format = TEXT,
) -> None:
    """Hold a suite's results against earlier ones, value by value: those in `benchmarks/reference`, or your own."""
    _check_target(target)
    from benchmarks.printing import FORMATS, comparison_of

    _check_format(form, FORMATS)
    comparison, settings = comparison_of(target, reference)
    console = Console()
    if form != TEXT:
        print(FORMATS[form](comparison.table()), end="")
        return
    console.print(comparison.table().rich())
    for line in comparison.apart():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for line in settings:
        console.print(f"other settings: {line}", style="yellow", markup=False, highlight=False, soft_wrap=True)


@bench_cli.command("keep")
def bench_keep(
    source: Annotated[Path, typer.Argument(metavar="RESULTS", help="A suite's folder.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")],
    adapters: Annotated[
        float, typer.Option(metavar="MB", min=0, help="Also models of stages up to this size each.")
    ] = 5.0,
) -> None:
    """Write a suite's results without its models, small enough to send: for `bench compare` elsewhere.

    Results, tables, and of each run configuration, metrics and answers per question. Folders of this machine are left
    out.
    """
    _check_target(source)
    from benchmarks.federated.keeping import keep
    from benchmarks.kinds import SUITE_FILE

    files = keep(source, folder, SUITE_FILE, int(adapters * 1e6))
    size = sum(file.stat().st_size for file in files)
    print(f"{folder}: {len(files)} files, {size / 1e6:.1f} MB")


def _check_target(target: Path) -> None:
    if not target.exists():
        raise OblivionisError(f"{target} cannot be read as results of a suite: there is no such file or folder")


def _check_format(form: str, formats: Collection[str]) -> None:
    if form not in (TEXT, *formats):
        raise OblivionisError(f"--format {form}: expected one of {', '.join((TEXT, *formats))}")
