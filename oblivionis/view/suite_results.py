"""The results of a suite of runs as they lie in its folder: a tidy table, a row per cell, model and metric."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from oblivionis.errors import FileError
from oblivionis.files import checked, read_bytes
from oblivionis.view.library import RESULTS

FIXED = ("cell", "stage", "status", "error", "run", "metric", "value")
"""The columns that every suite has; between them stand its axes."""
DONE = "done"


class _Row(TypedDict):
    cell: str
    stage: str
    status: str
    error: str
    run: str
    metric: str
    value: float | None


@dataclass
class Cell:
    """A combination of the suite's axes: values by axis, metrics by stage, the run of each stage by its place from the
    suite's folder, and what failed."""

    name: str
    labels: Mapping[str, str]
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    error: str = ""

    def value(self, stage: str, metric: str) -> float | None:
        """A finite metric of a stage, else None."""
        value = self.metrics.get(stage, {}).get(metric)
        return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Results:
    """The axes of a suite, its cells in their order, and the rows that they were read from."""

    axes: tuple[str, ...]
    cells: tuple[Cell, ...]
    rows: Sequence[Mapping[str, Any]]


def read_results(folder: Path) -> Results | None:
    """The results in a suite's folder, None where there are none of federated runs. FileError for a damaged file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = folder / RESULTS
    try:
        table = pq.ParquetFile(io.BytesIO(read_bytes(file))).read()
        if not set(FIXED) <= set(table.column_names):
            return None
        rows = table.to_pylist()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileError(f"{file} cannot be read as results of a suite: {reason}") from None
    try:
        checked(rows, list[_Row])
    except ValueError as error:
        raise FileError(f"{file} cannot be read as results of a suite: {error}") from None
    axes = tuple(name for name in (rows[0] if rows else ()) if name not in FIXED)
    return Results(axes, tuple(_cells(rows, axes)), rows)


def _cells(rows: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> list[Cell]:
    found: dict[str, Cell] = {}
    for row in rows:
        cell = found.setdefault(row["cell"], Cell(row["cell"], {axis: str(row[axis]) for axis in axes}))
        if row["status"] != DONE:
            what = f"{row['metric']} in {row['stage']} failed: " if row["metric"] else ""
            cell.error = cell.error or f"{what}{row['error']}" or "failed"
            continue
        if row["run"]:
            cell.runs[row["stage"]] = row["run"]
        if row["value"] is not None:
            cell.metrics.setdefault(row["stage"], {})[row["metric"]] = row["value"]
    return list(found.values())


@dataclass(frozen=True)
class Point:
    """A cell between forgetting and utility. x: how far from what should be (0 is best); y: the higher the better."""

    place: int
    cell: Cell
    x: float
    y: float


def points(cells: Sequence[Cell], forgetting: str, utility: str) -> list[Point]:
    """The finished cells. x: the distance of the unlearned model's `forgetting` from the retrained one's, of this cell;
    y: the unlearned model's `utility`. Places count from 1."""
    found = []
    for place, cell in enumerate(cells, start=1):
        values = cell.value("unlearn", forgetting), cell.value("retrain", forgetting), cell.value("unlearn", utility)
        ours, oracle, useful = values
        if ours is not None and oracle is not None and useful is not None:
            found.append(Point(place, cell, abs(ours - oracle), useful))
    return found


def frontier(found: Sequence[Point]) -> list[Point]:
    """The points that no other beats: none is as near and more useful, or nearer and as useful. In order of x."""
    best: list[Point] = []
    for point in sorted(found, key=lambda p: (p.x, -p.y)):
        if not best or point.y > best[-1].y or (point.x, point.y) == (best[-1].x, best[-1].y):
            best.append(point)
    return best
