"""The file of results: a row per dataset, forget fraction, seed and model."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.tabular.experiment import COLUMNS, KEYS, ORACLE, ORIGINAL, PAIR, TWIN
from oblivionis.errors import RunError
from oblivionis.files import read_bytes, write_atomic

FILE = "results.parquet"
LABELS = {
    ORIGINAL: "original",
    ORACLE: "oracle",
    TWIN: "oracle again",
    PAIR: "oracle, new seed",
    "grad_ascent": "gradient ascent",
    "neg_grad": "NegGrad",
    "fine_tune": "fine-tuning",
    "scrub": "SCRUB",
    "bad_teacher": "bad teacher",
}
"""Models and methods as readers know them."""
Cell = tuple[str, float, int]
"""Dataset, forget fraction, seed."""


def label(method: str) -> str:
    """The method as a reader knows it."""
    return LABELS.get(method, method.replace("_", " "))


def _read(path: Path) -> pd.DataFrame:
    """The file that an earlier run left. RunError for one that is no such file."""
    try:
        frame = pq.read_table(io.BytesIO(read_bytes(path)), columns=list(COLUMNS)).to_pandas()
        texts = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise RunError(f"{path} is no file of results: {error}") from error
    missing = [name for name in COLUMNS if name not in frame.columns]
    wrong = [name for name in texts if name not in ("dataset", "method")]
    if missing or wrong:
        why = f"it has no column {missing[0]}" if missing else f"the column {wrong[0]} does not hold numbers"
        raise RunError(f"{path} is no file of results: {why}")
    return frame


@dataclass(frozen=True)
class Rows:
    """Results with what a reader is to see of them, in order. titles: of the datasets; methods: those that unlearn."""

    frame: pd.DataFrame
    titles: Mapping[str, str]
    fractions: Sequence[float]
    methods: Sequence[str]

    def values(self, fraction: float, method: str, column: str, dataset: str | None = None) -> np.ndarray:
        """A column of a method at a fraction, of all datasets or one, in the order of the frame: dataset, then seed."""
        chosen = (self.frame["fraction"] == fraction) & (self.frame["method"] == method)
        if dataset is not None:
            chosen &= self.frame["dataset"] == dataset
        return np.asarray(self.frame[column])[np.asarray(chosen)]

    def mean(self, fraction: float, method: str, column: str) -> float:
        """The mean of `values`, NaN where these are."""
        return float(self.values(fraction, method, column).mean())

    def alone(self, dataset: str) -> Rows:
        """The rows of one dataset."""
        return replace(self, frame=self.frame[self.frame["dataset"] == dataset], titles={dataset: self.titles[dataset]})


class Results:
    """`COLUMNS` of every finished cell, on disk after each."""

    def __init__(self, folder: Path) -> None:
        """Goes on with the file in `folder` if there is one. Raises RunError for one that is no such file."""
        self._path = folder / FILE
        self.frame = pd.DataFrame(columns=list(COLUMNS))
        if self._path.exists():
            self.frame = _read(self._path)
        self.finished: set[Cell] = set(zip(*(self.frame[key] for key in KEYS[:3]), strict=True))

    def add(self, cell: Cell, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append the rows of a cell and write the file, whole or not at all; rows are sorted by cell."""
        new = pd.DataFrame(list(rows), columns=list(COLUMNS))
        joined = new if self.frame.empty else pd.concat([self.frame, new])
        self.frame = cast(pd.DataFrame, joined.sort_values(by=list(KEYS[:3]), kind="stable", ignore_index=True))
        buffer = io.BytesIO()
        self.frame.to_parquet(buffer, index=False)
        write_atomic(self._path, buffer.getvalue())
        self.finished.add(cell)
