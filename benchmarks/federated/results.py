"""The file of a suite's results: a tidy table, a row per cell, model and metric (`collecting.collect` makes it).

Columns: `cell`, one text per axis, `stage` (whose final model was measured), `status`, `error`, `run` (that did the
stage, relative to the suite's folder), `metric`, `value` (float64; `seconds` among the metrics). A metric that is left
out for a reason has no value, and that reason as the error; one that is to be read with care has a note there. A failed
cell has one row without a metric. An evaluator that failed at the end of a stage has a row of its name in the place of
its metrics, `not measured`, with why as the error. It is read without pandas, which takes longer to load than a table
to print.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from oblivionis.errors import RunError
from oblivionis.files import read_bytes, write_atomic

FILE = "results.parquet"
SECONDS = "seconds"
DONE, FAILED, NOT_MEASURED = "done", "failed", "not measured"
FIXED = ("cell", "stage", "status", "error", "run", "metric", "value")
VALUE = "value"
BASE_MODEL = "base"
"""The model before any training."""
Row = Mapping[str, Any]


def table_of(rows: Sequence[Row], axes: Sequence[str]) -> pa.Table:
    """Rows as a table with its columns, also where there are none."""
    names = ["cell", *axes, *FIXED[1:]]
    return pa.Table.from_pylist(
        list(rows), pa.schema([(name, pa.float64() if name == VALUE else pa.large_string()) for name in names])
    )


def write(table: pa.Table, folder: Path) -> None:
    """Write the results, whole or not at all."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    write_atomic(folder / FILE, buffer.getvalue())


def read(path: Path) -> tuple[pa.Table, list[str]]:
    """The results in a file or in a suite's folder, and the names of the axes. Raises RunError."""
    file = path / FILE if path.is_dir() else path
    try:
        table = pq.ParquetFile(io.BytesIO(read_bytes(file))).read()
    except FileNotFoundError:
        raise RunError(f"{file} cannot be read as results of a suite: there is no such file") from None
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(f"{file} cannot be read as results of a suite: {reason}") from error
    missing = [name for name in FIXED if name not in table.column_names]
    if missing:
        raise RunError(f"{file} is no file of results: it has no column {', '.join(missing)}")
    for field in table.schema:
        wrong = not _is_number(field.type) if field.name == VALUE else not _is_text(field.type)
        if wrong or (field.name != VALUE and table.column(field.name).null_count):
            what = "numbers" if field.name == VALUE else "texts"
            raise RunError(f"{file} is no file of results: the column {field.name} holds something other than {what}")
    return table, [name for name in table.column_names if name not in FIXED]


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)
