"""What a finished suite leaves for its readers: printed tables, files of them, and `suite.html`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import pandas as pd
from rich.console import Console

from benchmarks.federated import frontier, papers, results
from benchmarks.federated.settings import Settings
from benchmarks.federated.tables import FORMATS, SUFFIXES, build, unknown_metrics
from benchmarks.output.page import SuiteView, write_suite_html
from benchmarks.output.terminal import say
from oblivionis.files import read_json, write_atomic
from oblivionis.runs.directory import RunDirectory
from oblivionis.version import __version__

NODES = "nodes.json"
TABLES = "tables"


class _Run(TypedDict):
    error: str
    shared: bool


class _Nodes(TypedDict):
    seconds: float | None
    nodes: list[_Run]


def write_report(settings: Settings, folder: Path, console: Console) -> None:
    """Print the tables of the results in `folder`; write each into `tables/` in every format, and `suite.html`."""
    found, axes = results.read(folder)
    tables = []
    for layout in settings.layouts():
        table = build(found, axes, layout)
        for name, render in FORMATS.items():
            write_atomic(folder / TABLES / f"{layout.name}.{SUFFIXES[name]}", render(table))
        console.print()
        console.print(table.rich())
        for problem in unknown_metrics(found, layout):
            say(console, f"warning: {problem}", "yellow")
        tables.append(table)
    frame = found.to_pandas()
    points = frontier.points(found, axes) if settings.against_never_saw else []
    view = SuiteView(
        title=settings.title or folder.name,
        description=settings.description,
        folder=folder,
        cells=frame,
        axes=axes,
        tables=tables,
        paper=_published(settings),
        facts=dict(_facts(settings, folder, frame)),
        frontier=frontier.figure(points, folder) if points else None,
    )
    page = write_suite_html(folder, view)
    say(console, f"report: {page}; tables as Markdown, LaTeX, CSV and HTML: {folder / TABLES}")
    if points:
        say(console, f"cost against utility: {folder / frontier.FILE}")


def _published(settings: Settings) -> pd.DataFrame | None:
    """The papers' numbers behind the tables, by our names of the metrics and, where these say so, for our labels."""
    found = []
    for layout in settings.layouts():
        if layout.paper is None:
            continue
        table = pd.DataFrame(papers.read(layout.paper))
        for axis, label in layout.paper_axes.items():
            table = table.loc[table[axis] == label].drop(columns=axis)
        named = {measure.name: measure.metric for measure in layout.measures}
        table = table.loc[table["metric"].isin(list(named))]
        found.append(table.assign(metric=[named[name] for name in table["metric"]]))
    if not found:
        return None
    joined = pd.concat(found, ignore_index=True)
    return joined.drop_duplicates([column for column in joined.columns if column != "value"])


def _facts(settings: Settings, folder: Path, frame: pd.DataFrame) -> Iterator[tuple[str, str]]:
    yield "Experiment", settings.experiment
    yield "Stages", ", ".join(settings.stages)
    runs = [run for run in dict.fromkeys(frame["run"]) if run]
    if runs:
        environment = RunDirectory(folder / runs[0]).environment()
        yield "Program", f"oblivionis {environment.get('oblivionis', __version__)}"
        yield "Machine", f"{environment.get('platform', '')}, {environment.get('cpus', '')} CPU cores"
    nodes = read_json(folder / NODES, _Nodes)
    done = [node for node in nodes["nodes"] if not node["error"]]
    if nodes["seconds"] is None:
        yield "Runs", f"{len(done)}, done by others and collected"
        return
    shared = [node for node in done if node["shared"]]
    yield "Runs", f"{len(done)}, of which {len(shared)} were there before this suite was started or resumed"
    yield "Last start took", f"{nodes['seconds']:.0f} s"
