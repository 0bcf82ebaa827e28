"""Which models a model comes of, by their hashes: where it lies, and what its folder is called, says nothing.

The hash of a model is that of its trained parameters (`oblivionis.runs.directory.vector_hash`). A run that begins with
a model that others made says so in one line `descends` of its ledger; an exported model in `lineage.json` of its
folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from oblivionis.config.schema import Config
from oblivionis.files import read_json, write_json
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.runs.ledger_run_events import CHECKPOINT, DESCENDS, SEALED, run_name

LINEAGE_FILE = "lineage.json"
_LEADING_TO = {"finetune": ("finetune",), "retrain": ("retrain",), "unlearn": ("finetune", "unlearn")}
"""The stages whose models that of a stage comes of."""


class Descent(msgspec.Struct, frozen=True):
    """What a model comes of.

    Attributes
    ----------
    model : str
        Its hash.
    models : tuple of str
        Hashes of all models that it comes of, itself included, the oldest first.
    runs : tuple of str
        Names of the runs that made them, as their ledgers have them.
    """

    model: str
    models: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    def and_of(self, other: Descent | None) -> Descent:
        """The same with what an older model comes of."""
        older = ((), ()) if other is None else (other.models, other.runs)
        joined = (tuple(dict.fromkeys((*of, *own))) for of, own in zip(older, (self.models, self.runs), strict=True))
        return Descent(self.model, *joined)


def descent_of(run: RunDirectory, stage: str) -> Descent | None:
    """What the model that a finished stage of a run left comes of; None of an unfinished one.

    FileError for a ledger that cannot be read, RunError for a missing model that the ledger does not name.
    """
    if (final := final_model(run, stage)) is None:
        return None
    rounds = [entry["model"] for entry in run.lines(CHECKPOINT) if entry["stage"] in _LEADING_TO[stage]]
    return Descent(final, (*rounds, final), (name_of(run),)).and_of(begun_with(run))


def final_model(run: RunDirectory, stage: str) -> str | None:
    """The hash of the model that a finished stage left, None of an unfinished one; by the run's ledger, or, where an
    earlier version named none, by the checkpoint."""
    if run.stage_summary(stage) is None:
        return None
    for entry in reversed(run.lines(CHECKPOINT, SEALED)):
        if entry["event"] == SEALED and stage in entry.get("models", {}):
            return entry["models"][stage]
        if entry["event"] == CHECKPOINT and entry["stage"] == stage:
            return entry["model"]
    return vector_hash(run.load_checkpoint(stage).vector)


def begun_with(run: RunDirectory) -> Descent | None:
    """What the model comes of that a run began with; None where nobody trained it before."""
    lines = run.lines(DESCENDS)
    return Descent(lines[-1]["model"], *(tuple(lines[-1][name]) for name in ("models", "runs"))) if lines else None


def note_descent(run: RunDirectory, descent: Descent | None) -> None:
    """Enter, once, what the model comes of that a run begins with; nothing for None."""
    if descent is not None and not run.lines(DESCENDS):
        run.note(DESCENDS, **msgspec.to_builtins(descent))


def of_base(config: Config) -> Descent | None:
    """What an exported model comes of that is the configured base model or adapter; None for any other."""
    places = [place for place in (config.model.source, config.model.adapter) if place is not None]
    found = None
    for folder in map(Path, places):
        if (descent := read_lineage(folder.expanduser())) is not None:
            found = descent.and_of(found)
    return found


def write_lineage(folder: Path, descent: Descent) -> None:
    """Leave beside an exported model what it comes of."""
    write_json(folder / LINEAGE_FILE, msgspec.to_builtins(descent))


def read_lineage(folder: Path) -> Descent | None:
    """What `write_lineage` left, None where there is no such file. FileError, with the key, for a damaged one."""
    try:
        content: dict[str, Any] = read_json(folder / LINEAGE_FILE, Descent)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return msgspec.convert(content, Descent)


def name_of(run: RunDirectory) -> str:
    """The name of a run by its ledger, whatever its folder is called now."""
    return run_name(run.lines("opened", "stage")) or run.name

