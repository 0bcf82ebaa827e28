"""What a user names to be audited, found before the libraries that load it are imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.errors import OblivionisError
from oblivionis.models.fingerprint import fingerprint_source
from oblivionis.runs.checkpoints import find_checkpoint
from oblivionis.runs.directory import Checkpoint, RunDirectory


class AuditError(OblivionisError):
    """An audit that cannot be made as asked."""


@dataclass(frozen=True, slots=True)
class Target:
    """A model and its configuration; `run` and `checkpoint` where a run made it, else None. `fingerprint` is that of
    the base model."""

    name: str
    config: Config
    fingerprint: str
    run: RunDirectory | None = None
    checkpoint: Checkpoint | None = None


def is_model(target: str) -> bool:
    """Whether `target` names a model, and not a run or a file of one: a model folder, a name in `conf/model`, or, where
    no such folder is begun here, a name on the hub."""
    path = Path(target).expanduser()
    if path.exists():
        return path.is_dir() and not (path / "config.yaml").is_file() and (path / "config.json").is_file()
    return target in configuration.list_choices()["model"] or (target.count("/") == 1 and not path.parent.exists())


def find_target(target: str, stage: str | None, overrides: Sequence[str]) -> Target:
    """A run directory (its last finished stage, or `stage`), a checkpoint file, a name in `conf/model`, a model folder
    or a name on the hub. Raises OblivionisError when `target` is none of these."""
    path = Path(target).expanduser()
    if path.is_file() or (path / "config.yaml").is_file():
        run, checkpoint, config, fingerprint = find_checkpoint(path, stage, overrides)
        name = f"{run.name}, {checkpoint.stage} (round {checkpoint.round})"
        return Target(name, config, fingerprint, run, checkpoint)
    if stage is not None:
        raise AuditError(f"--stage chooses a stage of a run, but {target} is no run directory")
    known = configuration.list_choices()["model"]
    chosen = [f"model={target}"] if target in known else [f"model.source={target}", f"model.name={path.name}"]
    config = configuration.compose("default", [*chosen, *overrides])
    return Target(target, config, fingerprint_source(config.model.source, config.model.revision))
