"""A run at a glance: what it is, how far it came and its final numbers, read without composing its configuration.

Composing one takes 40 ms, and a folder may hold hundreds of runs.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import yaml

from oblivionis.config import method_traits
from oblivionis.config.schema import STAGES
from oblivionis.config.yaml_files import LOADER
from oblivionis.errors import FileError, OblivionisError
from oblivionis.files import checked, parse_json, read_bytes
from oblivionis.runs import artifact_binding, run_files
from oblivionis.runs.directory import RunDirectory

RUNNING, FINISHED, STOPPED, DAMAGED = "running", "finished", "stopped", "damaged"
STATES = (RUNNING, FINISHED, STOPPED, DAMAGED)
BLOCK = re.compile(r"^(?=[A-Za-z_]\w*:)", re.MULTILINE)
_BY_ITSELF = re.compile(r"\w+:[^\n\r\x85\u2028\u2029]*\n(?:(?: |- |#)[^\n\r\x85\u2028\u2029]*\n|\n)*")
"""A block whose lines cannot end its mapping or its document, and which no other block can continue."""
_SHORT, _LARGEST = 10_000, 1_000_000
_RUNNING = b"running.json"
_NAME, _IS_LINK, _WRITTEN, _CHANGED = map(operator.attrgetter, ("name", "is_link", "written", "changed"))
_READ = (
    *("config.yaml", "requests.jsonl", _RUNNING.decode(), "stages", "checkpoints/*"),
    *(*artifact_binding.FILES, *artifact_binding.EARLIER, *artifact_binding.LATER),
)
"""What a run is read from; further files may be named by its ledger."""
LOCAL = "local"
"""The stage that counts clients, not rounds."""
UNLEARNING = frozenset({"unlearn", LOCAL})
"""Stages in which anything is unlearned."""
CURVE = "forget_prob"
"""The metric whose way through the stage unlearn is part of a glance."""
POINTS = 100
"""So many points of it at most; of more, some that lie evenly between the first and the last."""


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


class _Values(msgspec.Struct):
    forget_prob: float | None = None


class _Row(msgspec.Struct):
    """What is read of a line of metrics.jsonl."""

    stage: str
    round: int
    evaluator: str
    metrics: _Values
    moment: str = ""


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
    follows from the run, and why (`oblivionis.runs.artifact_binding`), else empty; `metrics` and `curve` are left out
    then. curve: round and value of `CURVE` in the stage unlearn; right after FedTU it stands half a round early."""

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
    curve: tuple[tuple[float, float], ...] = ()

    @property
    def current(self) -> Progress | None:
        """The stage that comes next or is under way; None where all are finished."""
        return next((stage for stage in self.stages if not stage.finished), None)

    def value(self, stage: str, metric: str) -> float | None:
        """A final metric of a stage, None where it was not measured."""
        return self.metrics.get(stage, {}).get(metric)


@dataclass(frozen=True, slots=True)
class Look:
    """What the files of a run are like, without reading one: `digest` is another one as soon as the content of a
    `Reading` would be; latest: when one was last changed in any way, in ns since the epoch; held: there is a
    running.json; links: some of them are links."""

    digest: bytes
    changed: float
    latest: int
    held: bool
    links: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """A run as its files say: a glance that is never `RUNNING`, and without time; others: what its ledger names beside
    the usual files, and it was read from, too."""

    glance: Glance
    others: tuple[str, ...] = ()


_DECODER = msgspec.json.Decoder(_Row)


def glance(path: Path) -> Glance:
    """Read the state of the run in `path`; one that cannot be read is `DAMAGED`, and the note says why."""
    return glance_of(path, look(path), read(path))


def look(path: Path, others: Iterable[str] = ()) -> Look:
    """Look at the files of a run; others: those of its `Reading`."""
    files = run_files.seen(path, _READ)
    content = [one for one in files if one.name != _RUNNING]
    content += [run_files.at(path, name) for name in others]
    return Look(
        run_files.digest(content),
        max([one.written for one in files if one.wanted], default=0) / 1e9,
        max([*map(_WRITTEN, content), *map(_CHANGED, content)], default=0),
        _RUNNING in map(_NAME, files),
        any(map(_IS_LINK, files)) or any(map(_IS_LINK, content)),
    )


def read(path: Path) -> Reading:
    """Read a run in `path`."""
    run = RunDirectory(path, read_only=True)
    others: tuple[str, ...] = ()
    try:
        config = _read(run)
        stages = config.get("stages", [])
        summaries = {stage: run.stage_summary(stage) for stage in stages}
        metrics = {stage: found["metrics"] for stage, found in summaries.items() if found is not None}
        progress = tuple(_progress(run, config, stage, summaries[stage] is not None) for stage in stages)
        lines = artifact_binding.ledger_lines(run)
        named = artifact_binding.named_files(lines)
        others = tuple(sorted(n for n in named if n == _RUNNING.decode() or not run_files.covered(n, _READ)))
        nothing = artifact_binding.nothing_follows_by(run, lines)
        curve = () if nothing else _curve(run)
    except OblivionisError as error:
        return Reading(Glance(DAMAGED, 0.0, str(error)), others)
    unlearning: Mapping[str, Any] = config.get("unlearning", {})
    entropy = unlearning.get("entropy", {})
    found = Glance(
        FINISHED if all(stage.finished for stage in progress) else STOPPED,
        0.0,
        "",
        config.get("model", {}).get("name", ""),
        config.get("data", {}).get("name", ""),
        config.get("strategy", {}).get("name", ""),
        method_words(
            method_traits.label(unlearning.get("method", "")),
            entropy.get("forget", 0.0),
            entropy.get("retain", 0.0),
            config["stages"],
        ),
        config.get("seed"),
        progress,
        {} if nothing else metrics,
        nothing,
        curve,
    )
    return Reading(found, others)


def glance_of(path: Path, looked: Look, reading: Reading) -> Glance:
    """What is read of a run, with its time, and who runs it, which no other file tells."""
    found = replace(reading.glance, changed=looked.changed)
    if not looked.held or found.state == DAMAGED:
        return found
    run = RunDirectory(path, read_only=True)
    if (pid := run.held_by()) is not None:
        return replace(found, state=RUNNING, note=f"process {pid}")
    if (host := run.locked_by_other()) is not None:
        return replace(found, state=RUNNING, note=f"on the machine {host}, as far as its running.json tells")
    return found


def rounds_done(run: RunDirectory, stage: str) -> int:
    """Complete rounds of a stage, of `local` the clients that are done."""
    if stage == LOCAL:
        return len({row["round"] for row in run.metrics() if row["stage"] == stage})
    return max(run.checkpoint_rounds(stage), default=0)


def _curve(run: RunDirectory) -> tuple[tuple[float, float], ...]:
    """The curve of a glance. Lines that make no sense are left out: the run's own page tells of them."""
    try:
        lines = read_bytes(run.path / "metrics.jsonl").split(b"\n")
    except FileNotFoundError:
        return ()
    rows = [_row(line) for line in lines if b'"tofu"' in line and b'"unlearn"' in line]
    points = [
        (row.round - 0.5 * (row.moment == "after_unlearn"), row.metrics.forget_prob)
        for row in rows
        if row is not None and (row.evaluator, row.stage) == ("tofu", "unlearn")
    ]
    known = sorted([(x, y) for x, y in points if y is not None and math.isfinite(y)], key=operator.itemgetter(0))
    if len(known) > POINTS:
        known = [known[i * (len(known) - 1) // (POINTS - 1)] for i in range(POINTS)]
    return tuple(known)


def _row(line: bytes) -> _Row | None:
    """A line of metrics.jsonl; None for one that is none."""
    with contextlib.suppress(msgspec.MsgspecError):
        return _DECODER.decode(line)
    with contextlib.suppress(msgspec.MsgspecError, ValueError):  # some other number of the line is not finite
        return msgspec.convert(parse_json(line, finite=False), _Row)
    return None


def method_words(method: str, forget: float, retain: float, stages: Collection[str]) -> str:
    """An unlearning method, with the weights of an entropy term on top of it; that there is none where no stage
    unlearns."""
    if UNLEARNING.isdisjoint(stages):
        return "no unlearning"
    return method + (f" + entropy({forget:g}, {retain:g})" if forget or retain else "")


def _read(run: RunDirectory) -> Mapping[str, Any]:
    """The part of the configuration that a glance needs. FileError for one that is damaged."""
    text = run.read_config()
    if len(text) > _LARGEST:
        raise FileError(f"{run.config_place}: it is larger than a configuration")
    blocks = [block for block in BLOCK.split(text) if block.partition(":")[0] in _Config.__annotations__]
    try:
        found = checked(mapping_of(blocks), _Config)
        if not found.get("stages"):
            raise ValueError("it names no stages")
        if unknown := set(found.get("stages", ())) - set(STAGES):
            raise ValueError(f"stages: unknown stage {min(unknown)!r}")
        return found
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FileError(f"{run.config_place}: {str(error).splitlines()[0]}") from None


def mapping_of(blocks: Sequence[str]) -> Any:
    """What the blocks of a YAML text say together.

    Many runs share a block: each is read once where it stands by itself, without anchors that others may name.
    """
    found: dict[str, Any] = {}
    for block in blocks:
        own = _block(block) if len(block) < _SHORT and "&" not in block and _BY_ITSELF.fullmatch(block) else None
        if own is None:
            return yaml.load("".join(blocks), LOADER) or {}
        found |= own
    return found


@functools.lru_cache(1024)
def _block(text: str) -> dict[str, Any] | None:
    """The mapping that a block is; None where it is none by itself."""
    try:
        found = yaml.load(text, LOADER)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _progress(run: RunDirectory, config: Mapping[str, Any], stage: str, finished: bool) -> Progress:
    federation = config.get("federation", {})
    if stage == LOCAL:
        clients = federation.get("clients", 0)
        total = min(federation.get("local_clients") or clients, clients)
    else:
        total = federation.get("rounds", {}).get(stage, 0)
    return Progress(stage, total if finished else rounds_done(run, stage), total, finished)
