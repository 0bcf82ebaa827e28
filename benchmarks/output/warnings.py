"""What a reader of a suite must know before believing its tables, collected from its cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from oblivionis.config import compose as configuration
from oblivionis.errors import RunError
from oblivionis.reports.warnings import ONE_ORACLE, find_warnings
from oblivionis.runs.directory import RunDirectory

NAMED = 6
KINDS = {
    "unfinished": "did not come to the end",
    "over-unlearned": "over-unlearned: they know the forget answers far less than the retrained model",
    "still known": "under-unlearned: they know the forget answers far better than the retrained model",
    "collapsed utility": "utility collapsed: less than half of the finetuned model's",
    "missing oracle": "without a retrained model: no forget quality and no word on over-unlearning",
    "nothing to forget": "nothing to forget: the finetuned model cannot be told from the retrained one",
    "pending requests": "deletion requests still pending",
    "rejected requests": "deletion requests rejected",
    "failed verification": "served requests that failed their verification",
    "records not deleted": "forget questions about records whose deletion was not served",
    "failed evaluator": "an evaluator failed",
    "failed replies": "replies of clients failed",
}
"""The warnings of a run, as they are worded for many runs; the limits of one run's claims are named once for all."""


def found_warnings(cells: pd.DataFrame, axes: Sequence[str], folder: Path) -> tuple[list[str], list[str]]:
    """Sentences: what went wrong, and how far the claims reach. The arguments are those of `SuiteView`."""
    names = list(dict.fromkeys(cells.cell))
    failed = [name for name in names if (cells[cells.cell == name].status == "failed").any()]
    found = [f"{_of(failed, names)} failed: {_listed(failed)}."] if failed else []
    by_kind, limits = _of_runs(cells, folder)
    found += [
        f"{_of(by_kind[kind], names)}, {text}: {_listed(by_kind[kind])}."
        for kind, text in KINDS.items()
        if kind in by_kind
    ]
    seeds = cells.seed.nunique() if "seed" in axes else 1
    if names and seeds < 2:
        limits.insert(0, "One seed only: there is no standard deviation, and small differences may be chance.")
    return found, limits


def _of_runs(cells: Any, folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Cells by kind of warning, and each limit of the claims once; from the directories of the unlearned models."""
    unlearned = cells[(cells.stage == "unlearn") & (cells.status == "done")].drop_duplicates("cell")
    by_kind: dict[str, list[str]] = {}
    limits: dict[str, None] = {}
    for cell, run in zip(unlearned.cell, unlearned.run, strict=True):
        try:
            directory = RunDirectory.open(folder / str(run))
            config = configuration.from_yaml(directory.read_config(), directory.config_place)
        except (RunError, configuration.ConfigError, OSError):
            continue
        for warning in find_warnings(directory, config):
            if warning.limit and warning.kind != ONE_ORACLE:
                limits[warning.text] = None
            elif not warning.limit and cell not in by_kind.setdefault(warning.kind, []):
                by_kind[warning.kind].append(cell)
    return by_kind, list(limits)


def _of(some: Sequence[str], all_: Sequence[str]) -> str:
    return f"{len(some)} of {len(all_)} cells"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
