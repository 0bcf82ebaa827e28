"""Runs a suite of the kind `ruler_tabular`: cell by cell into one file, then the tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.output.terminal import say
from benchmarks.tabular import data, report
from benchmarks.tabular.data import Dataset
from benchmarks.tabular.experiment import Cell, models, train_original
from benchmarks.tabular.results import Results
from benchmarks.tabular.settings import Settings
from oblivionis.errors import RunError, RunFailed
from oblivionis.files import read_json, write_json

DATASETS_FILE = "datasets.json"


def plan(settings: Settings) -> list[str]:
    """What `run` would do; nothing is fetched."""
    fetched = [name for name in settings.datasets if isinstance(data.SOURCES[name], data.OpenML)]
    shipped = [name for name in settings.datasets if name not in fetched]
    cells = len(settings.datasets) * len(settings.forget_fractions) * len(settings.seeds)
    return [
        f"datasets from scikit-learn: {', '.join(shipped) or 'none'}",
        f"datasets from OpenML or scikit-learn's cache: {', '.join(fetched) or 'none'}",
        f"forget fractions: {', '.join(map(str, settings.forget_fractions))} (at least {settings.min_forget} records)",
        f"seeds: {', '.join(map(str, settings.seeds))}",
        *(f"{p.method}: {p.epochs} updates at {p.learning_rate:g}{_listed(p.parameters)}" for p in settings.plans()),
        f"{cells} cells (dataset × fraction × seed), {len(models(settings))} models measured in each",
    ]


def _listed(parameters: Any) -> str:
    return "".join(f", {name} {value}" for name, value in parameters.items())


def run(settings: Settings, folder: Path, console: Console) -> None:
    """Compute the cells that are not in `folder` yet, then write and print the report of all of them.

    A dataset that cannot be had is named in the output, in datasets.json and in the report, and left out. Raises
    RunError for a dataset too small for what is to be forgotten, RunFailed if a training diverges or there is no
    dataset at all.
    """
    results = Results(folder)
    pending = {name: _pending(settings, name, results) for name in settings.datasets}
    datasets = _load(settings, [name for name in pending if pending[name]], folder, console)
    work = [(dataset, seed, fraction) for dataset in datasets for seed, fraction in pending[dataset.name]]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("models,"),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(work) * len(models(settings)))
        original, trained_for = None, None
        for dataset, seed, fraction in work:
            progress.update(task, description=f"{dataset.title}, {fraction:.0%} forgotten, seed {seed}")
            try:
                if original is None or trained_for != (dataset.name, seed):
                    original, trained_for = train_original(settings, dataset, seed), (dataset.name, seed)
                rows = Cell(settings, dataset, original, fraction, seed).rows(lambda: progress.advance(task))
            except ValueError as error:
                place = f"{dataset.title}, fraction {fraction}, seed {seed}"
                raise RunFailed(f"{place}: {error}; does a training diverge? see the learning rates") from error
            results.add((dataset.name, fraction, seed), rows)
    if results.frame.empty:
        raise RunFailed("no dataset could be had, so there is nothing to report")
    report.write(settings, results.frame, known_datasets(folder), folder, console)


def known_datasets(folder: Path) -> dict[str, dict[str, Any]]:
    """What datasets.json says of each dataset: its sizes, or why it is `missing`."""
    file = folder / DATASETS_FILE
    try:
        return read_json(file, dict[str, dict[str, Any]])
    except FileNotFoundError:
        return {}


def _pending(settings: Settings, name: str, results: Results) -> list[tuple[int, float]]:
    """Seeds and fractions of the dataset that are not finished, the seed outermost."""
    every = [(seed, fraction) for seed in settings.seeds for fraction in settings.forget_fractions]
    return [(seed, fraction) for seed, fraction in every if (name, fraction, seed) not in results.finished]


def _load(settings: Settings, names: list[str], folder: Path, console: Console) -> list[Dataset]:
    """The datasets that can be had; datasets.json says of each what it is or why it is missing."""
    found, described = [], known_datasets(folder)
    for name in names:
        title = data.SOURCES[name].title
        try:
            with console.status(f"loading {title}"):
                dataset = data.load(name, settings.data_home, settings.test_fraction, settings.split_seed)
        except data.Unavailable as error:
            say(console, f"left out: {title} ({error})", "yellow")
            described[name] = {"title": title, "missing": str(error)}
            continue
        described[name] = _description(settings, dataset)
        found.append(dataset)
    write_json(folder / DATASETS_FILE, described)
    return found


def _description(settings: Settings, dataset: Dataset) -> dict[str, Any]:
    records = len(dataset.train)
    try:
        sizes = [
            len(data.forget_rows(records, fraction, settings.min_forget, settings.split_seed))
            for fraction in settings.forget_fractions
        ]
    except ValueError as error:
        raise RunError(f"{dataset.title}: {error}; lower min_forget or forget_fractions, or leave it out") from error
    return {
        "title": dataset.title,
        "train": records,
        "test": len(dataset.test),
        "features": dataset.features,
        "classes": dataset.classes,
        "in_paper": data.in_paper(dataset.name),
        "forget": dict(zip(map(str, settings.forget_fractions), sizes, strict=True)),
    }
