"""The results of a suite as one tidy table: a row per cell, model and metric."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.federated.graph import Graph, Node
from benchmarks.federated.matrix import Axis, Cell
from oblivionis.config.schema import STAGES
from oblivionis.errors import RunError
from oblivionis.files import read_bytes, write_atomic
from oblivionis.reports import summary as report
from oblivionis.runs.directory import RunDirectory, named_metrics

FILE = "results.parquet"
SECONDS = "seconds"
DONE, FAILED = "done", "failed"
FIXED = ("cell", "stage", "status", "error", "run", "metric", "value")
BASE_MODEL = "base"
"""The model before any training."""


def collect(
    axes: Sequence[Axis], cells: Sequence[Cell], graph: Graph, store: Path, folder: Path, failures: Mapping[str, str]
) -> pd.DataFrame:
    """The rows of every cell that is finished or failed, in the order of the cells.

    Columns: `cell`, one text per axis, `stage` (whose final model was measured), `status`, `error`, `run` (that did the
    stage, relative to `folder`), `metric`, `value` (float64; `seconds` among the metrics). A failed cell has one row
    without a metric.
    """
    rows: list[dict[str, Any]] = []
    for cell in cells:
        nodes = graph.of_cell[cell.id]
        head = {"cell": cell.id, **cell.labels}
        if all(node.finished(store) for node in nodes):
            rows += [{**head, **row} for node in nodes for row in _measured(node, store, folder)]
        elif error := "; ".join(failures[node.key] for node in nodes if node.key in failures):
            rows.append({**head, "stage": "", "status": FAILED, "error": error, "run": "", "metric": "", "value": None})
    columns = ["cell", *(axis.name for axis in axes), *FIXED[1:]]
    frame = pd.DataFrame(rows, columns=pd.Index(columns))
    return frame.astype({name: "float64" if name == "value" else "str" for name in columns})


def _measured(node: Node, store: Path, folder: Path) -> Iterator[dict[str, Any]]:
    run = node.run(store)
    evaluation = node.config.evaluation
    known = report.stage_metrics(run, evaluation.truth_ratio, evaluation.membership.confidence)
    sources = {stage: need.run(store) for need in node.needs for stage in need.config.stages}
    for stage in (BASE_MODEL, *STAGES, "local_unlearned"):
        summary = run.stage_summary(stage)
        values = _at_start(run) if stage == BASE_MODEL else {}
        if summary is not None:
            values = {SECONDS: summary["seconds"], **summary["metrics"], **known.get(stage, {})}
        place = Path(os.path.relpath(sources.get(stage, run).path, folder)).as_posix()
        for metric, value in values.items():
            yield {"stage": stage, "status": DONE, "error": "", "run": place, "metric": metric, "value": value}


def _at_start(run: RunDirectory) -> dict[str, float]:
    """The metrics of the base model, where `evaluation.at_start` had them measured before finetune."""
    rows = [r for r in run.metrics() if (r["stage"], r["moment"]) == ("finetune", "start")]
    return {name: value for r in rows for name, value in named_metrics(r["evaluator"], r["metrics"]).items()}


def write(frame: pd.DataFrame, folder: Path) -> None:
    """Write the results, whole or not at all."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    write_atomic(folder / FILE, buffer.getvalue())


def read_parquet(file: Path, what: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The table in `file`. RunError, naming `what` it should be, for a file that is none or lacks a column."""
    try:
        table = pq.read_table(io.BytesIO(read_bytes(file)), columns=None if columns is None else list(columns))
        return table.to_pandas()
    except FileNotFoundError:
        raise RunError(f"{file} cannot be read as {what}: there is no such file") from None
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(f"{file} cannot be read as {what}: {reason}") from error


def read(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """The results in a file or in a suite's folder, and the names of the axes. Raises RunError."""
    file = path / FILE if path.is_dir() else path
    frame = read_parquet(file, "results of a suite")
    lacking = [name for name in FIXED if name not in frame.columns]
    if lacking:
        raise RunError(f"{file} is no file of results: it has no column {', '.join(lacking)}")
    for name in frame.columns:
        kinds = str if name in FIXED else (str, int, float, bool)
        if name != "value" and not all(isinstance(text, kinds) for text in frame[name]):
            raise RunError(f"{file} is no file of results: the column {name} holds something other than texts")
        if name == "value" and not pd.api.types.is_numeric_dtype(frame[name]):
            raise RunError(f"{file} is no file of results: the column {name} holds something other than numbers")
    return frame, [str(name) for name in frame.columns if name not in FIXED]
