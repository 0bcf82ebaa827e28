"""The ledger binds what a run's figures rest on: configuration, models and files are named by their SHA-256.

A line `stage` says, before a stage starts, by which configuration, with the certificate's thresholds, it goes. A
line `sealed` says, when the stages are done, which models and files they left; a line `measured` the same of what is
measured later. Who edits a file afterwards, or swaps a checkpoint, contradicts the ledger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oblivionis.chain import check_chain
from oblivionis.config.identity import config_hash
from oblivionis.config.schema import Config
from oblivionis.errors import OblivionisError, RunError
from oblivionis.files import read_bytes
from oblivionis.requests.ledger import Ledger
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.version import __version__

STAGE, SEALED, MEASURED = "stage", "sealed", "measured"
FILES = (
    *("stages/*.json", "evaluations/*.json", "judgements.json", "request_figures.json", "metrics.jsonl"),
    *("audits/request-*.json", "privacy.json", "twins.json"),
)
LATER = ("audits/leakage-*/audit.json", "attacks/*/results.json")
MODELS = ("finetune", "retrain", "unlearn")


@dataclass(frozen=True, slots=True)
class Bound:
    """What a look at a run's ledger found. faults: where its files contradict it; missing: why it binds nothing."""

    faults: tuple[str, ...] = ()
    missing: str = ""
    files: Mapping[str, str] | None = None


def begin(run: RunDirectory, config: Config, stage: str, ledger: Ledger) -> None:
    """Note by which configuration a stage goes. Raises RunError for a run whose config.yaml was changed since."""
    text = _text_hash(run)
    for entry in ledger.notes(STAGE):
        if entry["stage"] == stage:
            if entry["text"] != text:
                raise RunError(
                    f"{run.path / 'config.yaml'} was changed after the stage {stage} began: its ledger names another "
                    "configuration; put it back, or start a new run"
                )
            return
    ledger.note(STAGE, run=run.name, stage=stage, config=config_hash(config), text=text, program=__version__)


def seal(run: RunDirectory) -> None:
    """Note the models and the files that the finished stages left, unless the ledger says the same already."""
    models = {s: vector_hash(run.load_checkpoint(s).vector) for s in MODELS if run.stage_summary(s) is not None}
    _note(run, SEALED, files=_hashes(run, FILES), models=models)


def measured(run: RunDirectory, file: Path) -> None:
    """Note a file that was measured after the stages, if there is a ledger of requests."""
    _note(run, MEASURED, files={file.relative_to(run.path).as_posix(): _file_hash(file)})


def check(run: RunDirectory, *, with_models: bool = True) -> Bound:
    """Compare the run's files, and its models, with what its ledger says of them.

    Raises OblivionisError for an unreadable file.
    """
    entries = check_chain(run.ledger_path).entries
    if not any(e.get("event") == SEALED for e in entries):
        return Bound(missing="the ledger does not name the run's files: an earlier version made it")
    files: dict[str, str] = {}
    models: dict[str, str] = {}
    line_of: dict[str, int] = {}
    faults: list[str] = []
    for number, entry in enumerate(entries, start=1):
        if entry.get("event") in (SEALED, MEASURED):
            if entry["event"] == SEALED:
                files = {name: of for name, of in files.items() if _is_later(name)}
                models = dict(entry.get("models", {}))
            files |= entry.get("files", {})
            line_of |= dict.fromkeys(entry.get("files", {}), number)
    faults += _config_faults(run, entries)
    present = _hashes(run, (*FILES, *LATER))
    for name, expected in files.items():
        if name not in present:
            faults.append(f"{name} is gone; line {line_of[name]} of the ledger names it")
        elif present[name] != expected:
            faults.append(f"{name} is not the file that line {line_of[name]} of the ledger names: it was changed")
    faults += [f"{name} is not named in the ledger: it was added by hand" for name in present if name not in files]
    for stage, expected in models.items() if with_models else ():
        if vector_hash(run.load_checkpoint(stage).vector) != expected:
            faults.append(f"the checkpoint of {stage} is not the model that the ledger names: it was swapped")
    return Bound(tuple(faults), files=files)


def _config_faults(run: RunDirectory, entries: Iterable[Mapping[str, Any]]) -> list[str]:
    found = [(n, e) for n, e in enumerate(entries, start=1) if e.get("event") == STAGE and e.get("stage") == "unlearn"]
    if not found:
        return ["the ledger does not say by which configuration the stage unlearn went"]
    now = _text_hash(run)
    return [
        f"config.yaml is not the configuration that line {n} of the ledger names: it was changed after the run began"
        for n, entry in found
        if entry.get("text") != now
    ]


def _text_hash(run: RunDirectory) -> str:
    return hashlib.sha256(run.read_config().encode("utf-8", "surrogatepass")).hexdigest()


def _note(run: RunDirectory, event: str, **said: Mapping[str, str]) -> None:
    """Append a line, unless the last of its kind says the same; a run without requests has no ledger."""
    if not run.ledger_path.exists():
        return
    ledger = Ledger(run.ledger_path)
    last = ledger.notes(event)[-1:]
    if not last or any(last[0].get(name) != values for name, values in said.items()):
        ledger.note(event, **said)


def _is_later(name: str) -> bool:
    return any(Path(name).match(pattern) for pattern in LATER)


def _hashes(run: RunDirectory, patterns: Iterable[str]) -> dict[str, str]:
    found = sorted({path for pattern in patterns for path in run.path.glob(pattern)})
    return {path.relative_to(run.path).as_posix(): _file_hash(path) for path in found}


def _file_hash(path: Path) -> str:
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except FileNotFoundError:
        raise OblivionisError(f"{path} cannot be read: there is no such file") from None
