"""What a suite leaves on disk: a file per model, one per measurement, and all measurements as one table.

models/SEED/MODEL.safetensors           the global vector
measurements/SEED/MODEL-STATE.json      every metric that is defined
results.parquet                         a row per federation, model, state and metric
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
import pandas as pd

from benchmarks.meta.metrics import JUDGES
from benchmarks.meta.models import JUDGED, STATES
from oblivionis.array_files import read_arrays, write_arrays
from oblivionis.errors import FileError
from oblivionis.files import read_json, write_atomic, write_json

FILE = "results.parquet"
COLUMNS = ("federation", "model", "state", "metric", "value")


class _Measurement(TypedDict):
    metrics: dict[str, float]


def model_file(folder: Path, seed: int, model: str) -> Path:
    """Where the global vector of a federation's model lies."""
    return folder / "models" / str(seed) / f"{model}.safetensors"


def measurement_file(folder: Path, seed: int, model: str, state: str) -> Path:
    """Where the metrics of a model in a state lie."""
    return folder / "measurements" / str(seed) / f"{model}-{state}.json"


def read_model(path: Path, size: int) -> np.ndarray | None:
    """The global vector (size,) in a file; None without one. Raises FileError for any other file."""
    if not path.exists():
        return None
    arrays, _ = read_arrays(path, "model of a federation")
    vector = arrays.get("vector", np.empty(0))
    if vector.shape != (size,):
        raise FileError(f"{path} is another model's: it has {vector.size} numbers, expected {size}; delete it")
    return vector


def write_model(path: Path, vector: np.ndarray) -> None:
    """Write a global vector, whole or not at all."""
    write_arrays(path, {"vector": vector}, {})


def write_measurement(path: Path, metrics: dict[str, float]) -> None:
    """Write the metrics of a model in a state, whole or not at all."""
    write_json(path, {"metrics": metrics})


def pending(folder: Path, seed: int) -> list[tuple[str, str]]:
    """Model and state of what is not measured in a federation."""
    every = [(model, state) for model in JUDGED for state in STATES]
    return [which for which in every if not measurement_file(folder, seed, *which).exists()]


def collect(folder: Path, seeds: Sequence[int]) -> pd.DataFrame:
    """All measurements of the federations, also written as results.parquet. Raises FileError for a spoilt one."""
    frame = pd.DataFrame(list(_rows(folder, seeds)), columns=list(COLUMNS))
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    write_atomic(folder / FILE, buffer.getvalue())
    return frame


def _rows(folder: Path, seeds: Sequence[int]) -> Iterator[tuple[int, str, str, str, float]]:
    for seed in sorted(seeds):
        for model in JUDGED:
            for state in STATES:
                found = read_json(measurement_file(folder, seed, model, state), _Measurement)["metrics"]
                for metric, value in found.items():
                    yield seed, model, state, metric, value


def values_of(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """(federations, models, states) of each metric, in the order of the seeds, of `JUDGED` and of `STATES`.

    NaN where a metric is undefined; a metric of `JUDGES` that no model has is NaN throughout.
    """
    seeds = sorted(frame["federation"].unique())
    index = pd.MultiIndex.from_product([seeds, JUDGED, STATES], names=list(COLUMNS[:3]))
    wide = frame.pivot(index=list(COLUMNS[:3]), columns="metric", values="value").reindex(index)
    shape = (len(seeds), len(JUDGED), len(STATES))
    names = dict.fromkeys([*(judge.key for judge in JUDGES), *wide.columns])
    nothing = np.full(shape, np.nan)
    return {name: wide[name].to_numpy(float).reshape(shape) if name in wide else nothing for name in names}
