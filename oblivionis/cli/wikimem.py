"""The `oblivionis wikimem` commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from oblivionis.cli.as_json import AsJson, answering
from oblivionis.data.wikidata.entities import REJECTED
from oblivionis.errors import OblivionisError, RunInterrupted

if TYPE_CHECKING:
    from rich.console import Console

    from oblivionis.audits.wikimem_build import BuildProgress

wikimem_cli = typer.Typer(help="Which facts about people a model has memorised.", no_args_is_help=True)


@wikimem_cli.command("build")
def build(
    dump: Annotated[
        Path, typer.Option("--dump", metavar="FILE", help="Wikidata's JSON dump: `.json.gz`, `.json.bz2` or `.json`.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new or empty folder for the result.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue the unfinished build in --out.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples.")] = 0,
    language: Annotated[str, typer.Option(help="Language of names and labels, as a code of Wikidata.")] = "en",
    min_humans: Annotated[int, typer.Option(min=1, help="Keep properties that so many people use.")] = 100,
    counterfactuals: Annotated[int, typer.Option(min=1, help="Values of other people wanted per property.")] = 100,
    subjects: Annotated[int, typer.Option(min=0, help="People to draw as subjects, half of each cohort.")] = 200,
    well_known: Annotated[int, typer.Option(help="Well-known: an article in at least so many Wikipedias.")] = 20,
    lesser_known: Annotated[int, typer.Option(help="Lesser-known: an article in one to so many Wikipedias.")] = 3,
    every_line: Annotated[
        bool,
        typer.Option(
            "--every-line",
            help="Parse also lines that cannot be about a human, so that every fault in them is counted (slower; the "
            "result is the same).",
        ),
    ] = False,
    checkpoint_every: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Time between checkpoints.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Count properties of people in a Wikidata dump and draw counterfactuals and subjects from it.

    The dump is streamed twice, for the samples and for their labels; memory stays bounded. Faulty lines are counted and
    passed over. Interrupted, it continues with --resume and ends with the same files.
    """

    from oblivionis.audits import wikimem_build
    from oblivionis.data.wikidata.reader import Options

    try:
        options = Options(seed, language, counterfactuals, min_humans, subjects, well_known, lesser_known, every_line)
    except ValueError as error:
        raise OblivionisError(str(error)) from error
    with answering(as_json) as answer:
        console = Console()
        display = _Display(console, dump)
        try:
            with display:
                summary = wikimem_build.build(
                    dump, out, options, resume=resume, every=checkpoint_every, listen=display.show
                )
        except KeyboardInterrupt:
            raise RunInterrupted("stopped; to continue, repeat the command with --resume") from None
        if as_json:
            answer({"folder": out, **summary})
        else:
            _print_summary(summary, out, console)


class _Display:
    """A bar per pass with bytes of the dump file and the time left; off a terminal a line per checkpoint."""

    def __init__(self, console: Console, dump: Path) -> None:

        self._console = console
        self._size = dump.stat().st_size if dump.is_file() else 0
        self._bars = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=10),
            DownloadColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            TextColumn("left", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> None:
        self._bars.start()

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, progress: BuildProgress) -> None:
        counts = progress.survey.counts
        state = f"{counts['humans']:,} humans, {progress.survey.rejected.total():,} rejected lines"
        if self._console.is_terminal:
            if progress.stage not in self._tasks:
                self._tasks[progress.stage] = self._bars.add_task(progress.stage, total=self._size, state="")
            self._bars.update(self._tasks[progress.stage], completed=progress.read, state=state)
        elif progress.saved:
            share = f"{progress.read / 1e6:,.0f} of {self._size / 1e6:,.0f} MB"
            self._console.print(f"{progress.stage}: {share}, {state}", highlight=False, soft_wrap=True)


def _print_summary(summary: Mapping[str, Any], out: Path, console: Console) -> None:

    properties, subjects = summary["properties"], summary["subjects"]
    rejected = sum(kind["lines"] for kind in summary["rejected"].values())
    kinds = "".join(f"; {REJECTED[kind]}: {found['lines']:,}" for kind, found in summary["rejected"].items())
    written = ", ".join(f"{count} {cohort}" for cohort, count in subjects["written"].items()) or "none"
    lines = [
        f"{summary['entities']:,} entities, {summary['humans']:,} humans",
        f"rejected lines: {rejected:,}{kinds}",
        f"{properties['kept']} of {properties['used']} properties are used by at least "
        f"{summary['options']['min_humans']} humans; {properties['with_canaries']} of them have canaries, "
        f"{properties['without_canaries']} have none",
        f"subjects: {written}; {subjects['facts']:,} facts",
    ]
    if short := properties["too_few_counterfactuals"]["with_canaries"]:
        wanted = summary["options"]["counterfactuals"]
        lines.append(f"{len(short)} properties with canaries have fewer than {wanted} different values")
    if not summary["closed"]:
        lines.append("warning: the dump does not end with the closing bracket of its array; it may be cut off")
    lines.append(f"results: {out} (counterfactuals.json, pairs.jsonl, properties.json, subjects.jsonl, summary.json)")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
