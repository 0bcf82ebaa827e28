"""Which models a model comes of, by their hashes: where it lies, and what its folder is called, says nothing.

The hash of a model is that of its trained parameters (`oblivionis.runs.directory.vector_hash`). A run that begins with
a model that others made says so in one line `descends` of its ledger; an exported model in `lineage.json` of its
folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from oblivionis.config.schema import Config
from oblivionis.files import read_json, write_json
from oblivionis.runs.directory import Checkpoint, RunDirectory, vector_hash
from oblivionis.runs.ledger_run_events import CHECKPOINT, DESCENDS, SEALED, STAGE, run_name

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


def descents(run: RunDirectory) -> dict[str, Descent]:
    """By finished stage what the model comes of that it left.

    By the run's ledger, or, where an earlier version named no model there, by the checkpoint. FileError for a ledger
    that cannot be read, RunError for such a checkpoint that is gone.
    """
    lines = run.lines(CHECKPOINT, SEALED, DESCENDS, "opened", STAGE)
    name, begun = run_name(lines) or run.name, _begun_with(lines)
    found = {}
    for stage, before in _LEADING_TO.items():
        if run.stage_summary(stage) is not None:
            rounds = tuple(e["model"] for e in lines if e["event"] == CHECKPOINT and e["stage"] in before)
            final = _final(lines, stage) or vector_hash(run.load_checkpoint(stage).vector)
            of_others = begun is not None and begun.model == final
            found[stage] = begun if of_others else Descent(final, (*rounds, final), (name,)).and_of(begun)
    return found


def descent_of(run: RunDirectory, checkpoint: Checkpoint) -> Descent:
    """What the model of a checkpoint of a run comes of: of none that came later. Raises as `descents`."""
    model = vector_hash(checkpoint.vector)
    finished = descents(run).get(checkpoint.stage)
    if finished is not None and finished.model == model:
        return finished
    lines = run.lines(CHECKPOINT, "opened", STAGE)
    before = [
        entry["model"]
        for entry in lines
        if entry["event"] == CHECKPOINT
        and entry["stage"] in _LEADING_TO.get(checkpoint.stage, ())
        and (entry["stage"] != checkpoint.stage or entry["round"] <= checkpoint.round)
    ]
    return Descent(model, (*before, model), (run_name(lines) or run.name,)).and_of(begun_with(run))


def _final(lines: Sequence[Mapping[str, Any]], stage: str) -> str | None:
    """The hash of the model that a stage left, by the lines of a ledger."""
    for entry in reversed(lines):
        if entry["event"] == SEALED and stage in entry.get("models", {}):
            return entry["models"][stage]
        if entry["event"] == CHECKPOINT and entry["stage"] == stage:
            return entry["model"]
    return None


def begun_with(run: RunDirectory) -> Descent | None:
    """What the model comes of that a run began with; None where nobody trained it before."""
    return _begun_with(run.lines(DESCENDS))


def _begun_with(lines: Sequence[Mapping[str, Any]]) -> Descent | None:
    said = [entry for entry in lines if entry["event"] == DESCENDS][-1:]
    return Descent(said[0]["model"], *(tuple(said[0][name]) for name in ("models", "runs"))) if said else None


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
