"""How a suite is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """jobs: runs at once; store: folder of the runs, which suites share."""

    jobs: int
    store: Path
