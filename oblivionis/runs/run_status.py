"""A run at a glance: what it is, how far it came and its final numbers, read without composing its configuration.

Composing one takes 40 ms, and a folder may hold hundreds of runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import yaml

from oblivionis.config import method_traits
from oblivionis.config.schema import STAGES
from oblivionis.errors import FileError, OblivionisError
from oblivionis.files import checked
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory

RUNNING, FINISHED, STOPPED, DAMAGED = "running", "finished", "stopped", "damaged"
STATES = (RUNNING, FINISHED, STOPPED, DAMAGED)
_BLOCK = re.compile(r"^(?=[A-Za-z_]\w*:)", re.MULTILINE)
_LARGEST = 1_000_000
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
LOCAL = "local"
"""The stage that counts clients, not rounds."""


class _Named(TypedDict, total=False):
    name: str


class _Entropy(TypedDict, total=False):
    forget: float
    retain: float


class _Unlearning(TypedDict, total=False):
    method: str
    entropy: _Entropy


class _Federation(TypedDict, total=False):
    clients: int
    rounds: dict[str, int]
    local_clients: int | None


class _Config(TypedDict, total=False):
    """What is read of a config.yaml."""

    seed: int
    stages: list[str]
    model: _Named
    data: _Named
    strategy: _Named
    unlearning: _Unlearning
    federation: _Federation


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage came: rounds that are complete (of the stage `local`: clients), of so many."""

    stage: str
    done: int
    total: int
    finished: bool

    def as_text(self) -> str:
        """`unlearn 3/10`, with a tick where the stage is finished."""
        return f"{self.stage} ✓" if self.finished else f"{self.stage} {self.done}/{self.total}"


@dataclass(frozen=True, slots=True)
class Glance:
    """state: one of `STATES`; note: who runs it, or what is damaged; metrics: final ones by finished stage; changed:
    when something was last written, in seconds since the epoch. A damaged run has nothing else. nothing: that nothing
    follows from the run, and why (`oblivionis.runs.artifact_binding`), else empty; `metrics` are left out then."""

    state: str
    changed: float
    note: str = ""
    model: str = ""
    data: str = ""
    strategy: str = ""
    method: str = ""
    seed: int | None = None
    stages: tuple[Progress, ...] = ()
    metrics: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    nothing: str = ""

    @property
    def current(self) -> Progress | None:
        """The stage that comes next or is under way; None where all are finished."""
        return next((stage for stage in self.stages if not stage.finished), None)

    def value(self, stage: str, metric: str) -> float | None:
        """A final metric of a stage, None where it was not measured."""
        return self.metrics.get(stage, {}).get(metric)


def glance(path: Path) -> Glance:
    """Read the state of the run in `path`; one that cannot be read is `DAMAGED`, and the note says why."""
    run = RunDirectory(path, read_only=True)
    changed = max((p.stat().st_mtime for p in watched(path)), default=0.0)
    try:
        config = _read(run)
        stages = config.get("stages", [])
        summaries = {stage: run.stage_summary(stage) for stage in stages}
        metrics = {stage: found["metrics"] for stage, found in summaries.items() if found is not None}
        progress = tuple(_progress(run, config, stage, summaries[stage] is not None) for stage in stages)
        nothing = artifact_binding.nothing_follows(run)
    except OblivionisError as error:
        return Glance(DAMAGED, changed, str(error))
    state, note = _state(run, all(stage.finished for stage in progress))
    unlearning: Mapping[str, Any] = config.get("unlearning", {})
    entropy = unlearning.get("entropy", {})
    return Glance(
        state,
        changed,
        note,
        config.get("model", {}).get("name", ""),
        config.get("data", {}).get("name", ""),
        config.get("strategy", {}).get("name", ""),
        method_words(
            method_traits.label(unlearning.get("method", "")), entropy.get("forget", 0.0), entropy.get("retain", 0.0)
        ),
        config.get("seed"),
        progress,
        {} if nothing else metrics,
        nothing,
    )


def watched(path: Path) -> list[Path]:
    """The files and folders of a run whose times of change tell whether a glance at it would find something new."""
    checkpoints = path / "checkpoints"
    names = ("config.yaml", "requests.jsonl", "running.json", "stages")
    folders = checkpoints.iterdir() if checkpoints.is_dir() else ()
    bound = (file for pattern in (*artifact_binding.FILES, *artifact_binding.LATER) for file in path.glob(pattern))
    return [p for p in (*(path / name for name in names), *folders, *bound) if p.exists()]


def rounds_done(run: RunDirectory, stage: str) -> int:
    """Complete rounds of a stage, of `local` the clients that are done."""
    if stage == LOCAL:
        return len({row["round"] for row in run.metrics() if row["stage"] == stage})
    return max(run.checkpoint_rounds(stage), default=0)


def method_words(method: str, forget: float, retain: float) -> str:
    """An unlearning method, with the weights of an entropy term on top of it."""
    return method + (f" + entropy({forget:g}, {retain:g})" if forget or retain else "")


def _read(run: RunDirectory) -> Mapping[str, Any]:
    """The part of the configuration that a glance needs. FileError for one that is damaged."""
    text = run.read_config()
    if len(text) > _LARGEST:
        raise FileError(f"{run.config_place}: it is larger than a configuration")
    blocks = [block for block in _BLOCK.split(text) if block.partition(":")[0] in _Config.__annotations__]
    try:
        found = checked(yaml.load("".join(blocks), _LOADER) or {}, _Config)
        if not found.get("stages"):
            raise ValueError("it names no stages")
        if unknown := set(found.get("stages", ())) - set(STAGES):
            raise ValueError(f"stages: unknown stage {min(unknown)!r}")
        return found
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FileError(f"{run.config_place}: {str(error).splitlines()[0]}") from None


def _progress(run: RunDirectory, config: Mapping[str, Any], stage: str, finished: bool) -> Progress:
    federation = config.get("federation", {})
    if stage == LOCAL:
        clients = federation.get("clients", 0)
        total = min(federation.get("local_clients") or clients, clients)
    else:
        total = federation.get("rounds", {}).get(stage, 0)
    return Progress(stage, total if finished else rounds_done(run, stage), total, finished)


def _state(run: RunDirectory, finished: bool) -> tuple[str, str]:
    if (pid := run.held_by()) is not None:
        return RUNNING, f"process {pid}"
    if (host := run.locked_by_other()) is not None:
        return RUNNING, f"on the machine {host}, as far as its running.json tells"
    return (FINISHED if finished else STOPPED), ""
