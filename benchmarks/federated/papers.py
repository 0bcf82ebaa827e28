"""The numbers that papers published, as data: one CSV per table in `benchmarks/papers/`.

Columns: axes of a suite (`model`, `strategy`, `unlearning` …), `stage` (whose model), `metric` (the column's name in
the paper), `value`. `sources.yaml` says where each table stands.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

FOLDER = Path(__file__).resolve().parents[1] / "papers"


def names() -> list[str]:
    """The tables that there are."""
    return sorted(file.stem for file in FOLDER.glob("*.csv"))


@functools.cache
def read(name: str) -> list[dict[str, Any]]:
    """The rows of a published table in tidy form; every column but `value` holds text."""
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return [{**row, "value": float(row["value"])} for row in csv.DictReader(file)]


def source(name: str) -> str:
    """Paper and table."""
    return str(OmegaConf.select(OmegaConf.load(FOLDER / "sources.yaml"), name))
