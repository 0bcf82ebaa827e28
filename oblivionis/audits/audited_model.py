"""What a user names to be audited, found before the libraries that load it are imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oblivionis.config import compose as configuration
from oblivionis.config.adapter_folder import is_adapter, read_adapter
from oblivionis.config.schema import Config
from oblivionis.errors import OblivionisError
from oblivionis.models.errors import ModelError
from oblivionis.models.fingerprint import fingerprint_model
from oblivionis.models.source import base_of, check_adapter_folder, located
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
    """Whether `target` names a model, and not a run or a file of one: a folder with a model or an adapter, a name in
    `conf/model`, or, where no such folder is begun here, a name on the hub."""
    path = Path(target).expanduser()
    if path.exists():
        holds = is_adapter(path) or (path / "config.json").is_file()
        return path.is_dir() and not (path / "config.yaml").is_file() and holds
    return target in configuration.list_choices()["model"] or (target.count("/") == 1 and not path.parent.exists())


def find_target(target: str, stage: str | None, overrides: Sequence[str]) -> Target:
    """A run directory (its last finished stage, or `stage`), a checkpoint file, a name in `conf/model`, a folder with a
    model or an adapter, or a name on the hub. Raises OblivionisError when `target` is none of these."""
    path = Path(target).expanduser()
    if path.is_file() or (path / "config.yaml").is_file():
        run, checkpoint, config, fingerprint = find_checkpoint(path, stage, overrides)
        name = f"{run.name}, {checkpoint.stage} (round {checkpoint.round})"
        return Target(name, config, fingerprint, run, checkpoint)
    if stage is not None:
        raise AuditError(f"--stage chooses a stage of a run, but {target} is no run directory")
    config = configuration.compose("default", [*_model(target, path, overrides), *overrides])
    return Target(target, config, fingerprint_model(config.model))


def _model(target: str, path: Path, overrides: Sequence[str]) -> list[str]:
    """The overrides that choose what `target` names; those that the user gave may replace them."""
    known = configuration.list_choices()["model"]
    if target in known and not path.is_dir():
        return [f"model={target}"]
    given = dict(each.split("=", 1) for each in overrides if "=" in each)
    on_hub = target.count("/") == 1 and not target.startswith((".", "/", "~")) and not path.exists()
    folder = located(target, given.get("model.revision")) if on_hub else path
    if not is_adapter(folder):
        return [f"model.source={target}", f"model.name={path.name}"]
    check_adapter_folder(folder)
    adapter = f"model.adapter={folder}"
    if "model" in given:
        return [adapter]
    base = given.get("model.source") or base_of(folder)
    if base in known:
        return [f"model={base}", adapter]
    revision = read_adapter(folder).get("revision")
    if "model.source" not in given:
        try:
            located(base, revision)
        except ModelError as error:
            raise AuditError(
                f"the base model {base!r} of {folder} is not here; name its folder: model.source=FOLDER"
            ) from error
    return [
        f"model.source={base}",
        f"model.name={path.name}",
        adapter,
        *([f"model.revision={revision}"] if revision else []),
    ]
