"""Representations that outlive their stage: what RULER compares later models with.

`evaluations/<stage>.states.safetensors` holds the representations of the forget and retain records that were asked at
the end of finetune and retrain, with the ids, how they were taken, and the seed and base model that they belong to.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from evaluation.ruler.embedded import Embedded
from oblivionis.array_files import arrays_bytes, read_arrays
from oblivionis.config.schema import Config
from oblivionis.errors import RunError
from oblivionis.files import checked, read_bytes
from oblivionis.runs.directory import RunDirectory


@dataclass(frozen=True, eq=False)
class States:
    """The representations of a stage's final model, and where they come from."""

    embedded: Embedded
    pooling: str
    layer: int | None
    seed: int
    fingerprint: str

    def taken_as(self, config: Config) -> bool:
        """Whether `config` asks for such states."""
        settings = config.evaluation.ruler
        return (self.pooling, self.layer) == (settings.pooling, settings.layer)


class _Info(TypedDict):
    pooling: str
    layer: int | None
    seed: int
    fingerprint: str
    forget_ids: list[str]
    retain_ids: list[str]


def states_path(run: RunDirectory, stage: str) -> Path:
    """Where the representations of a stage's final model lie."""
    return run.path / _name(stage)


def _name(stage: str) -> str:
    return f"evaluations/{stage}.states.safetensors"


def write_states(
    run: RunDirectory, stage: str, embedded: Embedded, config: Config, seed: int, fingerprint: str
) -> None:
    """Keep the representations of the final model of `stage`."""
    info = {
        "stage": stage,
        "pooling": config.evaluation.ruler.pooling,
        "layer": config.evaluation.ruler.layer,
        "seed": seed,
        "fingerprint": fingerprint,
        "forget_ids": list(embedded.forget_ids),
        "retain_ids": list(embedded.retain_ids),
    }
    data = arrays_bytes({"forget": embedded.forget, "retain": embedded.retain}, info)
    run.keep({_name(stage): data})


def read_states(run: RunDirectory, stage: str) -> States | None:
    """The representations that `write_states` kept, None where there are none. RunError for any other file."""
    path = states_path(run, stage)
    if not path.exists():
        return None
    arrays, info = read_arrays(path, "file of representations; without the file they are computed anew")
    try:
        embedded = Embedded(tuple(info["forget_ids"]), arrays["forget"], tuple(info["retain_ids"]), arrays["retain"])
        checked(info, _Info)
        return States(embedded, info["pooling"], info["layer"], info["seed"], info["fingerprint"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}); without the file its content is computed anew") from None


def copy_states(source: RunDirectory, run: RunDirectory, stage: str) -> None:
    """Take over the representations of a reused stage, where there are any."""
    path = states_path(source, stage)
    if path.exists():
        run.keep({_name(stage): read_bytes(path)})
