"""The file of results: a row per dataset, forget fraction, seed and model."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.tabular.experiment import COLUMNS, KEYS
from oblivionis.errors import RunError
from oblivionis.files import write_atomic

FILE = "results.parquet"
Cell = tuple[str, float, int]
"""Dataset, forget fraction, seed."""


class Results:
    """`COLUMNS` of every finished cell, on disk after each."""

    def __init__(self, folder: Path) -> None:
        """Goes on with the file in `folder` if there is one. Raises RunError for one that is no such file."""
        self._path = folder / FILE
        self.frame = pd.DataFrame(columns=list(COLUMNS))
        if self._path.exists():
            try:
                self.frame = pd.read_parquet(self._path)[list(COLUMNS)]
            except (OSError, ValueError, KeyError) as error:
                raise RunError(f"{self._path} is no file of results: {error}") from error
        self.finished: set[Cell] = set(self.frame[list(KEYS[:3])].itertuples(index=False, name=None))

    def add(self, cell: Cell, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append the rows of a cell and write the file, whole or not at all; rows are sorted by cell."""
        new = pd.DataFrame(list(rows), columns=list(COLUMNS))
        joined = new if self.frame.empty else pd.concat([self.frame, new])
        self.frame = joined.sort_values(list(KEYS[:3]), kind="stable", ignore_index=True)
        buffer = io.BytesIO()
        self.frame.to_parquet(buffer, index=False)
        write_atomic(self._path, buffer.getvalue())
        self.finished.add(cell)
