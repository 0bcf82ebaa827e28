"""The numbers that papers published, as data: one CSV per table in `benchmarks/papers/`.

Columns: axes of a suite (`model`, `strategy`, `unlearning` …), `stage` (whose model), `metric` (the column's name in
the paper), `value`. `sources.yaml` says where each table stands.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path(__file__).resolve().parents[1] / "papers"


def names() -> list[str]:
    """The tables that there are."""
    return sorted(file.stem for file in FOLDER.glob("*.csv"))


@functools.cache
def read(name: str) -> pd.DataFrame:
    """A published table in tidy form; every column but `value` holds text."""
    import pandas as pd

    frame = pd.read_csv(FOLDER / f"{name}.csv", dtype=str, keep_default_na=False)
    return frame.assign(value=pd.to_numeric(frame["value"]))


def source(name: str) -> str:
    """Paper and table."""
    return str(OmegaConf.select(OmegaConf.load(FOLDER / "sources.yaml"), name))
