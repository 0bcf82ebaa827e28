"""The lines of a run's ledger that are about the run itself, and not about a request: see
`oblivionis.runs.artifact_binding`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from oblivionis.runs.file_schemas import AccountFacts, Released, Round

BEGUN = "begun"
"""From here on every file is named before it is written; `files`: what was there, `over`: figures or models too."""
STAGE = "stage"
"""A stage starts, by the configuration with the hash `text`."""
TAKEN_OVER = "taken_over"
"""A stage is copied from another run, `source`."""
DESCENDS = "descends"
"""The run begins with a model that others made; `models` and `runs`: all that it comes of."""
RESUMED = "resumed"
"""A stage goes on after `round`, from the checkpoint with the hash `file`; what was measured later is measured anew."""
CHECKPOINT = "checkpoint"
"""The model after `round` is about to be written; `file`: SHA-256 of its file, `model`: of the model."""
ROWS = "rows"
"""What was measured so far stays on disk if the run breaks off."""
SEALING = "sealing"
"""These `files` are about to be written."""
SEALED = "sealed"
"""These `files` and `models` are all that there is at the end of a stage."""
MEASURED = "measured"
"""These `files` were measured after the stages."""
ACCOUNT, RELEASE, COST, ROLLED_BACK = "privacy", "release", "privacy_cost", "release_undone"
"""Lines of `oblivionis.runs.privacy`."""


class Rows(TypedDict):
    """How far metrics.jsonl reaches, and the SHA-256 of that."""

    bytes: Round
    sha256: str


class _WithRows(TypedDict, total=False):
    rows: Rows


class _Begun(TypedDict):
    files: dict[str, str]
    over: bool


class _Stage(_WithRows):
    stage: str
    text: str


class _Source(TypedDict):
    run: str
    not_sealed: str
    head: str
    count: int


class _TakenOver(TypedDict):
    stage: str
    source: _Source
    rows: Rows


class _Descends(TypedDict):
    model: str
    models: list[str]
    runs: list[str]


class _Resumed(TypedDict):
    stage: str
    round: Round
    file: str
    rows: Rows


class _Checkpoint(TypedDict):
    stage: str
    round: Round
    file: str
    model: str
    rows: Rows


class _Rows(TypedDict):
    stage: str
    rows: Rows


class _Files(_WithRows):
    files: dict[str, str]


class _Sealed(_Files):
    models: dict[str, str]


class _Account(TypedDict):
    account: AccountFacts
    earlier: list[Released]


class _Release(TypedDict):
    release: Released


class _Cost(TypedDict):
    requests: list[str]
    round: Round
    place: Round


class _RolledBack(TypedDict):
    stage: str
    round: Round


SERVED_AGAIN = "served_again"
"""The exchange of a round served earlier requests again."""


def served_again(entries: Iterable[Mapping[str, Any]], stage: str) -> dict[int, Mapping[str, Any]]:
    """The line of each round of a stage whose exchange served earlier requests again, by round.

    Of a round that was held anew it is the last line; an exchange that was undone, since the stage went on from an
    earlier round, has none.
    """
    found: dict[int, Mapping[str, Any]] = {}
    for entry in entries:
        if entry.get("event") == SERVED_AGAIN:
            found[entry["round"]] = entry
        elif (entry.get("event"), entry.get("stage")) == (RESUMED, stage):
            found = {number: line for number, line in found.items() if number <= entry["round"]}
    return found


SHAPES: Mapping[str, Any] = {
    BEGUN: _Begun,
    STAGE: _Stage,
    TAKEN_OVER: _TakenOver,
    DESCENDS: _Descends,
    RESUMED: _Resumed,
    CHECKPOINT: _Checkpoint,
    ROWS: _Rows,
    SEALING: _Files,
    SEALED: _Sealed,
    MEASURED: _Files,
    ACCOUNT: _Account,
    RELEASE: _Release,
    COST: _Cost,
    ROLLED_BACK: _RolledBack,
}
"""What each line must hold, whoever wrote it (`oblivionis.files.checked`)."""


def run_name(lines: Iterable[Mapping[str, Any]]) -> str | None:
    """The name of a run by the lines of its ledger; None where an earlier version wrote none."""
    named = (line.get("run") for line in lines if line.get("event") in ("opened", STAGE))
    return next((name for name in named if isinstance(name, str)), None)
