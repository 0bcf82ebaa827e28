"""The keys of a suite of the kind `federated`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.federated import papers
from benchmarks.federated.matrix import SEED, Axis, Cell, MatrixError, axes_of, cells_of, experiments
from oblivionis.config.checks import LEAST_ORACLES
from oblivionis.config.limits import about
from oblivionis.config.problems import Problem, did_you_mean
from oblivionis.config.schema import STAGES
from oblivionis.measures import registry

OURS, PAPER, DIFFERENCE = "ours", "paper", "difference"
SHOWN = (OURS, PAPER, DIFFERENCE)
STYLES = ("bold", "underline", "none")
MEASURED = ("base", *STAGES, "local_unlearned")
"""Which models a table can show: the base model, the stages' final ones, the clients' own after they forgot alone."""


@dataclass
class Settings:
    """Everything that a suite of this kind says, but its `kind`."""

    title: str = field(default="", metadata=about("Headline of tables and report."))
    description: str = field(default="", metadata=about("What the suite is for, in a sentence or two."))
    experiment: str = field(default="default", metadata=about("A name in `conf/`, or a YAML file.", at_least=1))
    base: dict[str, Any] = field(
        default_factory=dict, metadata=about("Keys of the configuration that every cell has, e.g. `data.path`.")
    )
    matrix: dict[str, Any] = field(
        default_factory=dict,
        metadata=about(
            "Axes: a key of the configuration with the list of its values. A value that sets several keys is a "
            "mapping of a `label` and those keys, or of a `label` and `tuned`, the file that `oblivionis tune` wrote."
        ),
    )
    stages: list[str] = field(
        default_factory=lambda: ["finetune", "retrain", "unlearn"],
        metadata=about("Stages of every cell.", choices=STAGES, at_least=1),
    )
    oracles: int = field(
        default=0,
        metadata=about(
            "Further retrained models for each cell, of the seeds that follow its own, for RULER's noise bands: none, "
            "or three and more.",
            at_least=0,
        ),
    )
    against_never_saw: bool = field(
        default=False,
        metadata=about(
            "Compare each model of an exact erasure with that of a federation that never had the records: as much work "
            "as the erasures themselves. A cell in which one is not equal to the last bit fails."
        ),
    )
    tables: dict[str, Any] = field(
        default_factory=dict,
        metadata=about("By name of the layout: title, rows, columns, groups, models, metrics, paper, show, note."),
    )

    def axes(self) -> list[Axis]:
        """The axes of the matrix, in the suite's order. Raises MatrixError."""
        return axes_of(self.matrix)

    def cells(self) -> list[Cell]:
        """Every combination of the axes' values, the last axis fastest. Raises MatrixError."""
        return cells_of(self.axes(), self.base, self.experiment, self.stages)

    def layouts(self) -> list[Layout]:
        """The tables, in the suite's order; `problems` has found nothing wrong with them."""
        return [_layout(name, entry) for name, entry in self.tables.items() if entry is not None]


@dataclass(frozen=True)
class Measure:
    """A column of a table: its `name` there, the `metric` of the evaluation, and how the best value is marked.

    best: max, min, or None for no mark (a suite that names a style alone means the metric's own direction); style: how;
    digits: after the point, None for two significant places as the papers print them.
    """

    name: str
    metric: str
    best: str | None = None
    style: str = "bold"
    runner_up: str = "none"
    scale: float = 1.0
    digits: int | None = None


@dataclass(frozen=True)
class Layout:
    """A table: which axis makes its rows, columns and groups of rows, and what stands in the cells.

    rows, columns: axes; groups: axes whose values start blocks of rows; models: stages whose final models have a row
    each (finetune and retrain have one per block, unlearn one per value of `rows`); mark_over: whether the best is
    chosen in a row over the columns, or in a column over the rows; paper: a table of `benchmarks/papers/`;
    paper_axes: labels to look up there in place of ours.
    """

    name: str
    title: str
    measures: tuple[Measure, ...]
    rows: str | None = None
    columns: str | None = None
    groups: tuple[str, ...] = ()
    models: tuple[str, ...] = ("finetune", "unlearn", "retrain")
    mark_over: str = "columns"
    paper: str | None = None
    paper_axes: Mapping[str, str] = field(default_factory=dict)
    show: tuple[str, ...] = (OURS,)
    note: str = ""


def _layout(name: str, entry: Mapping[str, Any]) -> Layout:
    measures = []
    for label, given in entry["metrics"].items():
        own: dict[str, Any] = {"metric": given} if isinstance(given, str) else dict(given)
        if any(key in own for key in _MARKS):
            own.setdefault("best", best_of(own["metric"]))
        measures.append(Measure(str(label), **own))
    lists = {key: tuple(_listed(entry[key])) for key in ("groups", "models", "show") if key in entry}
    rest = {key: entry[key] for key in ("rows", "columns", "mark_over", "paper", "paper_axes", "note") if key in entry}
    return Layout(name, str(entry.get("title", name)), tuple(measures), **lists, **rest)


def best_of(metric: str) -> str | None:
    """Which value of a metric is best: max, min, or None where that is the retrained model's, or nobody says."""
    known = registry.catalogue().get(metric)
    return {"higher": "max", "lower": "min"}.get(known.direction or "") if known else None


def _listed(value: Any) -> list[str]:
    return [str(v) for v in value] if isinstance(value, Sequence) and not isinstance(value, str) else [str(value)]


def problems(settings: Settings, places: Mapping[str, str]) -> list[Problem]:
    """What is wrong with a suite beyond types: its axes, every cell's configuration, its tables."""
    found: list[Problem] = []
    try:
        axes, cells = settings.axes(), settings.cells()
    except MatrixError as error:
        return [Problem(error.path, str(error), error.expected, "", _place(places, error.path))]
    ordered = [stage for stage in STAGES if stage in settings.stages]
    if settings.stages != ordered:
        message = f"{settings.stages} is out of order"
        found.append(Problem("stages", message, f"the order {', '.join(ordered)}", "", _place(places, "stages")))
    if "unlearn" in settings.stages and "finetune" not in settings.stages:
        message = "unlearn has no finetuned model to start from"
        found.append(Problem("stages", message, "finetune in stages", "", _place(places, "stages")))
    if settings.oracles:
        place = _place(places, "oracles")
        if settings.oracles < LEAST_ORACLES:
            expected = f"at least {LEAST_ORACLES}, or none"
            found.append(Problem("oracles", f"{settings.oracles} say too little of a spread", expected, "", place))
        if not {"retrain", "unlearn"} <= set(settings.stages):
            found.append(Problem("oracles", "nothing reads them", "retrain and unlearn in stages", "", place))
    for name, entry in settings.tables.items():
        if entry is not None:
            found += _layout_problems(name, entry, axes, places)
    found = found or experiments(cells)
    if not found and settings.oracles and any(not cell.config.evaluation.ruler.enabled for cell in cells):
        expected = "base.evaluation.ruler.enabled=true, or oracles=0"
        found.append(Problem("oracles", "RULER, which reads them, is off", expected, "", _place(places, "oracles")))
    return found


_LAYOUT_KEYS = (
    *("title", "rows", "columns", "groups", "models", "metrics", "mark_over", "paper", "paper_axes", "show", "note"),
)
_MEASURE_KEYS = ("metric", "best", "style", "runner_up", "scale", "digits")
_MARKS = ("style", "runner_up")


def _layout_problems(name: str, entry: Any, axes: Sequence[Axis], places: Mapping[str, str]) -> Iterator[Problem]:
    head = f"tables.{name}"

    def problem(key: str, message: str, expected: str = "", hint: str = "") -> Problem:
        return Problem(f"{head}.{key}" if key else head, message, expected, hint, _place(places, f"{head}.{key}"))

    if not isinstance(entry, Mapping):
        yield problem("", f"{entry!r} is no mapping", f"a mapping with {', '.join(_LAYOUT_KEYS)}")
        return
    for key in entry:
        if key not in _LAYOUT_KEYS:
            yield problem(key, "unknown key", f"one of {', '.join(_LAYOUT_KEYS)}", did_you_mean(key, _LAYOUT_KEYS))
    names = [axis.name for axis in axes]
    for key in ("rows", "columns", "groups"):
        for axis in _listed(entry.get(key) or []):
            if axis not in names:
                yield problem(
                    key, f"there is no axis {axis!r}", f"one of {', '.join(names)}", did_you_mean(axis, names)
                )
            elif axis == SEED:
                yield problem(key, "runs of several seeds are one entry, their mean", "another axis")
    for key, known in (("models", MEASURED), ("show", SHOWN), ("mark_over", ("columns", "rows"))):
        for value in _listed(entry.get(key) or []):
            if value not in known:
                yield problem(key, f"unknown choice {value!r}", f"of {', '.join(known)}", did_you_mean(value, known))
    paper = entry.get("paper")
    if paper is not None and paper not in papers.names():
        yield problem("paper", f"there is no {paper!r}", f"one of {', '.join(papers.names())}")
    if paper is None and set(_listed(entry.get("show") or [])) & {PAPER, DIFFERENCE}:
        yield problem("show", "there is nothing to show beside ours", "`paper` with the name of a published table")
    if not isinstance(entry.get("paper_axes", {}), Mapping):
        yield problem("paper_axes", f"{entry['paper_axes']!r} is no mapping", "a mapping from an axis to a label")
    measures = entry.get("metrics")
    if not isinstance(measures, Mapping) or not measures:
        yield problem("metrics", "a value must be given", "a mapping from a column's name to a metric")
        return
    for label, given in measures.items():
        yield from (problem(f"metrics.{label}{key}", *rest) for key, *rest in _measure_problems(given))


def _measure_problems(given: Any) -> Iterator[tuple[str, ...]]:
    if isinstance(given, str):
        return
    if not isinstance(given, Mapping) or not isinstance(given.get("metric"), str):
        yield "", f"{given!r} names no metric", "a metric, or a mapping with `metric`"
        return
    for key, value in given.items():
        if key not in _MEASURE_KEYS:
            yield f".{key}", "unknown key", f"one of {', '.join(_MEASURE_KEYS)}", did_you_mean(key, _MEASURE_KEYS)
        elif key == "best" and value not in ("max", "min", None):
            yield ".best", f"unknown choice {value!r}", "max, min or null"
        elif key in _MARKS and value not in STYLES:
            yield f".{key}", f"unknown choice {value!r}", f"one of {', '.join(STYLES)}"
        elif key in _MARKS and value != "none" and "best" not in given and best_of(given["metric"]) is None:
            yield f".{key}", f"which value of {given['metric']} is best is not known", "best: max, min or null"
        elif key == "scale" and not (isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0):
            yield ".scale", f"{value!r} is no positive number", "a number > 0"
        elif key == "digits" and not (value is None or (isinstance(value, int) and 0 <= value <= 12)):
            yield ".digits", f"{value!r} is no count of digits", "0 to 12, or null"


def _place(places: Mapping[str, str], path: str) -> str:
    while path and path not in places:
        path = path.rpartition(".")[0]
    return places.get(path, "")
