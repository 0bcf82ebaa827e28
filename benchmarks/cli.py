"""`oblivionis bench`: benchmark suites and the tables of their results; `oblivionis tune`: fair hyperparameters."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.console import Console
from typer.core import TyperGroup

from benchmarks import suite_kinds as suites
from benchmarks.federated.options import RayCluster, Reserve, Slurm
from benchmarks.output.terminal import say
from benchmarks.suite_kinds import SUITE_FILE
from oblivionis.cli.as_json import AsJson, answering
from oblivionis.errors import OblivionisError, RunFailed
from oblivionis.files import read_json

TEXT = "text"
RESULTS_FILE = "results.parquet"
Results = Annotated[Path, typer.Argument(metavar="RESULTS", help="A suite's folder, or its results.parquet.")]
Store = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the runs, which suites share (default: `stages` beside the results).",
        show_default=False,
    ),
]
Format = Annotated[str, typer.Option("--format", help="text, md, latex, csv or html.")]
Suite = Annotated[
    str, typer.Argument(metavar="SUITE", help="A suite's YAML file, or a name in `benchmarks/suites/`, e.g. `quick`.")
]
SuiteKeys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Any key of the suite, e.g. `base.data.path=FOLDER` `matrix.seed=[0,1,2]`; an axis, a table or a "
        "method that is null is left out.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of the results (default: runs/bench/SUITE).", show_default=False),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Do the runs on the machines of a running Ray cluster (`auto`: one of this machine).",
        show_default=False,
    ),
]
WriteSlurm = Annotated[
    bool, typer.Option("--slurm", help="Write job arrays for Slurm into the folder of the results; run nothing.")
]
Cpus = Annotated[int | None, typer.Option(min=1, help="On a cluster: CPU cores of a run.  [default: 1]")]
Gpus = Annotated[
    int | None,
    typer.Option(
        min=0, help="On a cluster: GPUs of a run.  [default: 1 where its models lie on a GPU]", show_default=False
    ),
]
Memory = Annotated[
    float | None,
    typer.Option(
        metavar="GB", min=0.1, help="On a cluster: RAM of a run.  [default: as estimated]", show_default=False
    ),
]
TimeLimit = Annotated[
    str | None,
    typer.Option("--time", metavar="TIME", help="With --slurm: time limit of a run, e.g. 4:00:00.", show_default=False),
]
Sbatch = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OPTION", help="With --slurm: an option of sbatch, e.g. `--sbatch=--partition=gpu`; repeatable."
    ),
]
Tuned = Annotated[
    str,
    typer.Argument(
        metavar="RUN|EXPERIMENT",
        help="A finished run with the stages finetune and retrain; or a name in `conf/` or a YAML file, whose "
        "stages are made first.",
    ),
]
ExperimentKeys = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Of an EXPERIMENT: any option.", show_default=False),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(metavar="METHOD", help="A method to tune; repeatable: each gets the same budget.  [default: npo]"),
]
TuningOutput = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the results (default: runs/tune/RUN).", show_default=False)
]
Space = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="YAML: by method and key another range, or null.", show_default=False),
]
Subjects = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Tune on the records about NAME; repeatable.  [default: drawn by --seed]"),
]


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
    suite: Suite,
    overrides: SuiteKeys = None,
    output: Output = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once; each gets its share of the cores and GPUs.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Continue what was interrupted in that folder.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be run.")] = False,
    store: Store = None,
    ray_address: RayAddress = None,
    slurm: WriteSlurm = False,
    cpus: Cpus = None,
    gpus: Gpus = None,
    memory: Memory = None,
    limit: TimeLimit = None,
    sbatch: Sbatch = None,
    as_json: AsJson = False,
) -> None:
    """Run a suite and print its tables; results, tables and figures are written into a folder.

    `oblivionis bench SUITE` is the same.
    """

    away = _away(ray_address, (cpus, gpus, memory), slurm=slurm, limit=limit, sbatch=sbatch or ())
    if away is not None and jobs > 1:
        raise OblivionisError("--jobs says how many runs this machine does at once; on a cluster the resources decide")
    if as_json and (dry_run or slurm):
        raise OblivionisError("--dry-run and --slurm measure nothing: leave --json out")

    def run(console: Console) -> None:
        settings = {"resume": resume, "dry_run": dry_run, "jobs": jobs, "store": store, "away": away}
        suites.bench(suite, overrides or [], output, console=console, **settings)

    folder = output or suites.folder_of(suite)
    _answer(folder / RESULTS_FILE, run, lambda: _results(folder), as_json=as_json)


def _answer(file: Path, work: Callable[[Console], None], read: Callable[[], Any], *, as_json: bool) -> None:
    """Do the work, which leaves its results in `file`; print what `read` makes of them as JSON, also where some of it
    failed."""
    with answering(as_json) as answer:
        failed = None
        try:
            work(Console())
        except RunFailed as error:
            failed = error
        if as_json and file.is_file():
            answer(read())
        if failed is not None:
            raise failed


def _results(folder: Path) -> Any:
    from benchmarks.printing import results_document

    return results_document(folder)


def _away(
    ray_address: str | None,
    reserved: tuple[int | None, int | None, float | None],
    *,
    slurm: bool,
    limit: str | None,
    sbatch: Sequence[str],
) -> RayCluster | Slurm | None:
    """Where else than here a suite's runs are done; `reserved` for each: cores, GPUs, and RAM in GB."""
    if slurm and ray_address is not None:
        raise OblivionisError("--slurm and --ray-address exclude each other")
    if not slurm and (limit is not None or sbatch):
        raise OblivionisError("--time and --sbatch are for scripts of Slurm: give --slurm as well")
    cpus, gpus, memory = reserved
    reserve = Reserve(cpus or 1, gpus, None if memory is None else int(memory * 1e9))
    if slurm:
        return Slurm(reserve, limit, tuple(sbatch))
    if ray_address is not None:
        return RayCluster(ray_address, reserve)
    if any(value is not None for value in reserved):
        raise OblivionisError(
            "--cpus, --gpus and --memory say what a run gets on a cluster: give --ray-address or --slurm"
        )
    return None


@bench_cli.command("node")
def bench_node(
    folder: Annotated[Path, typer.Argument(metavar="RESULTS", help="A suite's folder.")],
    key: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder in the store.")],
    store: Store = None,
) -> None:
    """Do one run of a suite, unless it is done: what a task of the scripts of `--slurm` does."""

    suites.do_node(folder, key, store, Console())


@bench_cli.command("collect")
def bench_collect(
    folder: Annotated[Path, typer.Argument(metavar="RESULTS", help="A suite's folder.")],
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Write and print results and tables of those runs of a suite that are done, and run nothing."""

    file = folder / RESULTS_FILE
    _answer(file, lambda console: suites.collect(folder, store, console), lambda: _results(folder), as_json=as_json)


@bench_cli.command("table")
def bench_table(
    target: Results,
    layout: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A table of the suite, or of one in `benchmarks/`; repeatable."),
    ] = None,
    form: Format = TEXT,
    as_json: AsJson = False,
) -> None:
    """Print the tables of a suite's results, e.g. `--layout paper-table-2 --format latex`."""
    _check_target(target)
    from benchmarks.printing import FORMATS, results_document, tables_of

    _check_format(form, FORMATS)
    console, tables = Console(), [] if as_json and not layout else tables_of(target, layout or [])
    if as_json:
        with answering(as_json) as answer:
            return answer(results_document(target))
    for table in tables:
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
    layout: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="The metrics of this table alone, as of `bench table`; repeatable."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Also rows of which no value differs.")] = False,
    form: Format = TEXT,
    as_json: AsJson = False,
) -> None:
    """Hold a suite's results against earlier ones, value by value: those in `benchmarks/reference`, or your own.

    One line says how many values differ; the rows that do follow.
    """
    _check_target(target)
    from benchmarks.printing import FORMATS, comparison_document, comparison_of

    _check_format(form, FORMATS)
    comparison, settings = comparison_of(target, reference, layout or ())
    if as_json:
        with answering(as_json) as answer:
            return answer(comparison_document(comparison, settings))
    console, table = Console(), comparison.table(full=full)
    if form != TEXT:
        print(FORMATS[form](table), end="")
        return
    if table.rows:
        console.print(table.rich())
    else:
        say(console, table.title)
    for line in comparison.apart():
        say(console, line)
    for line in settings:
        say(console, f"other settings: {line}", "yellow")


@bench_cli.command("keep")
def bench_keep(
    source: Annotated[Path, typer.Argument(metavar="RESULTS", help="A suite's folder.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")],
    adapters: Annotated[
        float, typer.Option(metavar="MB", min=0, help="Also models of stages up to this size each; 0: none.")
    ] = 0.0,
) -> None:
    """Write a suite's results without its models, small enough to send: for `bench compare` elsewhere.

    Results, tables, and of each run configuration, metrics and answers per question. Folders of this machine are left
    out.
    """
    _check_target(source)
    from benchmarks.federated.shipped_results import keep

    files = keep(source, folder, SUITE_FILE, int(adapters * 1e6))
    size = sum(file.stat().st_size for file in files)
    print(f"{folder}: {len(files)} files, {size / 1e6:.1f} MB")


def _check_target(target: Path) -> None:
    if not target.exists():
        raise OblivionisError(f"{target} cannot be read as results of a suite: there is no such file or folder")


def _check_format(form: str, formats: Collection[str]) -> None:
    if form not in (TEXT, *formats):
        raise OblivionisError(f"--format {form}: expected one of {', '.join((TEXT, *formats))}")


def tune(
    run: Tuned,
    overrides: ExperimentKeys = None,
    unlearning: Methods = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials of each method.")] = 20,
    jobs: Annotated[int, typer.Option(min=1, help="Trials at once; each gets its share of the cores and GPUs.")] = 1,
    output: TuningOutput = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on in that folder: what was stopped, more trials, another method.")
    ] = False,
    space: Space = None,
    subject: Subjects = None,
    least_utility: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the retrained model's utility that must be left.")
    ] = 0.95,
    max_epochs: Annotated[int, typer.Option(min=2, help="Most epochs of unlearning, for every method.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of whom the tuning forgets, and of the search.")] = 0,
    prune: Annotated[
        bool, typer.Option("--prune/--no-prune", help="Stop trials that are worse than most after the same round.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search the hyperparameters of unlearning methods, under one budget, on other requests than those reported.

    Objective: the distance from the retrained model, two-sided; constraint: enough utility is left.
    """
    if importlib.util.find_spec("optuna") is None:
        raise OblivionisError("oblivionis tune takes Optuna, which is not installed: pip install 'oblivionis[tune]'")
    from benchmarks.tuning.tune import Wanted
    from benchmarks.tuning.tune import tune as run_tuning

    folder = output or Path("runs") / "tune" / Path(run).stem
    wanted = Wanted(
        run,
        tuple(overrides or ()),
        tuple(unlearning or ("npo",)),
        trials,
        jobs,
        folder,
        space,
        tuple(subject or ()),
        least_utility,
        max_epochs,
        seed,
        prune,
    )
    if as_json and dry_run:
        raise OblivionisError("--dry-run measures nothing: leave --json out")
    file = folder / "result.json"
    _answer(
        file,
        lambda console: run_tuning(wanted, console, resume=resume, dry_run=dry_run),
        lambda: {"folder": folder, **read_json(file, dict[str, Any])},
        as_json=as_json,
    )
