"""The run directory: configuration, environment, metrics, checkpoints and the marks of finished stages.

Layout of `runs/<name>/`:

- `config.yaml` (resolved), `environment.json` (versions, seed, base-model fingerprint)
- `metrics.jsonl`, a line per stage, round, moment and evaluator
- `requests.jsonl`, the ledger: what was asked, and, before it is written, the hash of each file that follows
- `checkpoints/<stage>/round-0007.safetensors`: global adapter and strategy state, with what is needed to resume
- `stages/<stage>.json`: written when a stage is complete
- `evaluations/<stage>.json`: the per-question log of the full evaluation at the end of a stage
- `evaluations/<stage>.states.safetensors`: representations of the questions, for RULER (finetune and retrain)
- `verdicts.json`: is the model over- or under-unlearned, compared with the retrained one?
- `figures.json`: what tests say of the finished stages, kept so that showing the run needs none of them
- `nodes/<partition>/tombstones.jsonl`: what each simulated client will never train on again; `left.json`: it left
- `privacy.json`: with `privacy.level`, what the ledger's releases add up to, for people; nothing reads it
- `report.html`, `requests/<id>.html`: a page per deletion request
- `tensorboard/`, `wandb/`, `tracking.json`, `tracking.jsonl`: with `tracking`

Only JSON, YAML and safetensors: nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
from filelock import FileLock, Timeout

from oblivionis.array_files import arrays_bytes, read_arrays
from oblivionis.chain import Chain
from oblivionis.config.problems import ConfigError, Problem
from oblivionis.errors import FileError, RunError
from oblivionis.files import (
    append_lines,
    checked,
    json_text,
    parse_json,
    read_bytes,
    read_json,
    read_lines,
    write_atomic,
    write_json,
)
from oblivionis.runs import file_schemas
from oblivionis.runs.ledger_run_events import BEGUN, CHECKPOINT, SEALING, SHAPES, STAGE
from oblivionis.version import __version__

_ROUND = re.compile(r"round-(\d{4,})\.safetensors$")
_PACKAGES = (
    "flwr",
    "torch",
    "transformers",
    "peft",
    "datasets",
    "numpy",
    "scipy",
    "omegaconf",
    "dp-accounting",
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after one complete round: global model (flat float32), strategy state, and bookkeeping."""

    stage: str
    round: int
    vector: np.ndarray
    strategy_state: dict[str, np.ndarray]
    info: dict[str, Any]


class RunDirectory:
    """One run on disk. Every file is written atomically or appended to line by line, so a kill never corrupts it.

    read_only: results that could be kept for the next time are not written.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self._listeners: list[Callable[[Sequence[Mapping[str, Any]]], None]] = []
        self._chain: Chain | None = None
        self._sealed = False

    @classmethod
    def create(cls, output: Path, name: str | None) -> RunDirectory:
        """A new run directory under `output`; without a name one is made from the date and a counter."""
        stem = name or time.strftime("%Y%m%d-%H%M%S")
        for attempt in range(1, 1000):
            candidate = output / (stem if attempt == 1 else f"{stem}-{attempt}")
            try:
                candidate.mkdir(parents=True)
                return cls(candidate.resolve())
            except FileExistsError:
                if name is not None:
                    raise RunError(f"{candidate} exists already{_instead(candidate)}") from None
        raise RunError(f"no free run name under {output}")

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run directory; RunError when `path` is none."""
        if not (path / "config.yaml").is_file():
            raise RunError(f"{path} is no run directory: it holds no config.yaml")
        return cls(path.resolve())

    @property
    def begun(self) -> bool:
        """Whether there is anything yet that a resumed run would go on from."""
        kept = ("metrics.jsonl", "checkpoints", "stages")
        return any((self.path / name).exists() for name in kept) or bool(self.lines(STAGE))

    def remove(self) -> None:
        """Leave nothing of the run."""
        shutil.rmtree(self.path)

    @contextmanager
    def lock(self):
        """Hold the run for this process: a second process on the same directory is refused while this one lives.

        The operating system holds the lock and lets it go when the process ends, however it ends; `running.json` says
        who it is, for people and for `held_by`.
        """
        path = self.path / "running.json"
        held = FileLock(self.path / "running.lock")
        try:
            held.acquire(timeout=0)
        except Timeout:
            holder = _holder(path).get("pid", "another")
            raise RunError(f"{self.path} is in use by process {holder}; wait for it or stop it") from None
        try:
            if (pid := self.held_by()) is not None:
                raise RunError(f"{self.path} is in use by process {pid}; wait for it or stop it")
            me = {"pid": os.getpid(), "host": socket.gethostname(), "started": _process_start(os.getpid())}
            write_json(path, me)
            try:
                yield self
            finally:
                path.unlink(missing_ok=True)
        finally:
            held.release()

    def held_by(self) -> int | None:
        """The id of the other process of this machine that holds the run with `lock`; None where none does."""
        holder = _holder(self.path / "running.json")
        return holder["pid"] if holder.get("host") == socket.gethostname() and _alive(holder) else None

    def locked_by_other(self) -> str | None:
        """The other machine whose process holds the run, as far as its file tells; None where none does."""
        host = _holder(self.path / "running.json").get("host")
        return host if isinstance(host, str) and host != socket.gethostname() else None

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def ledger_path(self) -> Path:
        return self.path / "requests.jsonl"

    @property
    def nodes_path(self) -> Path:
        return self.path / "nodes"

    # -- the ledger and what it names ----------------------------------------------------------------------------

    def note(self, event: str, **said: Any) -> None:
        """Append a line to the ledger that is about no request, durably."""
        self._chain = self._chain or Chain(self.ledger_path)
        self._chain.append([{"event": event, "time": time.time(), **said}])

    def lines(self, *events: str) -> list[dict[str, Any]]:
        """The lines of these events, in their order. FileError for one that does not say what it must."""
        found = []
        for number, entry in enumerate(read_lines(self.ledger_path), start=1):
            if (event := entry.get("event")) in events:
                try:
                    found.append(checked(entry, SHAPES.get(str(event), dict)))
                except ValueError as error:
                    raise FileError(f"{self.ledger_path}: line {number}: {event}: {error}") from None
        return found

    @property
    def has_lines(self) -> bool:
        """Whether there is a whole line in the ledger."""
        return bool(read_lines(self.ledger_path))

    @property
    def sealed(self) -> bool:
        """Whether the ledger names every file before it is written: it does from a line `begun` on."""
        self._sealed = self._sealed or bool(self.lines(BEGUN))
        return self._sealed

    def keep(self, files: Mapping[str, bytes | str], **said: Any) -> None:
        """Write files, by their names in the run, atomically and in this order; the ledger has their hashes first, and
        what else is `said`.

        A kill between the two leaves a file as it was, or none: both are no fault
        (`oblivionis.runs.artifact_binding.check`).
        """
        data = {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}
        data = {name: of for name, of in data.items() if not _is_there(self.path / name, of)}
        if self.sealed and (data or said):
            self.note(SEALING, files={name: hashlib.sha256(of).hexdigest() for name, of in data.items()}, **said)
        for name, of in data.items():
            write_atomic(self.path / name, of)

    # -- configuration and environment ---------------------------------------------------------------------------

    def write_config(self, yaml: str) -> None:
        write_atomic(self.path / "config.yaml", yaml)

    @property
    def config_place(self) -> str:
        """How problems of the run's configuration name it."""
        return str(self.path / "config.yaml")

    def read_config(self) -> str:
        path = self.path / "config.yaml"
        try:
            return read_bytes(path).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise FileError(f"{path}: it is not UTF-8 text") from None
        except FileNotFoundError:
            raise FileError(f"{path}: there is no such file") from None

    def write_environment(self, **facts: Any) -> None:
        """Versions, machine and the given facts (seed, base-model fingerprint, …)."""
        found = {
            "oblivionis": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "packages": package_versions(),
            **facts,
        }
        self.keep({"environment.json": json_text(found)})

    def environment(self) -> dict[str, Any]:
        """What `write_environment` wrote, {} before. FileError for a file that is damaged."""
        return _read(self.path / "environment.json", file_schemas.Environment) or {}

    # -- metrics -------------------------------------------------------------------------------------------------

    def append_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append metric rows; each has at least `stage`, `round`, `moment`, `evaluator`, `metrics`."""
        append_lines(self.path / "metrics.jsonl", rows)
        for listener in self._listeners:
            listener(rows)

    def on_metrics(self, listener: Callable[[Sequence[Mapping[str, Any]]], None]) -> None:
        """Call `listener` with all rows that are appended from now on, once they are on disk."""
        self._listeners.append(listener)

    def metrics(self) -> list[dict[str, Any]]:
        """All rows. FileError, with the line and the key, for one that is damaged; see `read_lines` for a torn one."""
        return read_lines(self.path / "metrics.jsonl", file_schemas.MetricsRow)

    def rows(self) -> dict[str, Any]:
        """How many bytes of rows there are, and their SHA-256."""
        try:
            data = read_bytes(self.path / "metrics.jsonl")
        except FileNotFoundError:
            data = b""
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def truncate_rows(self, size: int) -> None:
        """Drop the rows beyond the first `size` bytes, which end a line."""
        path = self.path / "metrics.jsonl"
        if path.exists() and path.stat().st_size > size:
            write_atomic(path, read_bytes(path)[:size])

    def forget_metrics_after(self, stage: str, server_round: int) -> None:
        """Drop the rows of `stage` beyond `round`, and of its two ends, of a run whose ledger does not say which."""
        rows = self.metrics()
        kept = [r for r in rows if r["stage"] != stage or (r["round"] <= server_round and not _at_an_end(r))]
        if len(kept) != len(rows):
            lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in kept)
            write_atomic(self.path / "metrics.jsonl", lines)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint: Checkpoint, keep: int) -> Path:
        """Write a checkpoint atomically, named in the ledger first, and delete all but the newest `keep` of its stage.

        All rows of metrics that belong to its round must be there.
        """
        folder = self.path / "checkpoints" / checkpoint.stage
        path = folder / f"round-{checkpoint.round:04d}.safetensors"
        state = {f"strategy/{name}": array for name, array in checkpoint.strategy_state.items()}
        info = {"stage": checkpoint.stage, "round": checkpoint.round, **checkpoint.info}
        data = arrays_bytes({"adapter": checkpoint.vector, **state}, info)
        if self.sealed:
            of = {"file": hashlib.sha256(data).hexdigest(), "model": vector_hash(checkpoint.vector)}
            self.note(CHECKPOINT, stage=checkpoint.stage, round=checkpoint.round, **of, rows=self.rows())
        write_atomic(path, data)
        rounds = self.checkpoint_rounds(checkpoint.stage)
        for old in rounds[: max(0, len(rounds) - keep)]:
            (folder / f"round-{old:04d}.safetensors").unlink(missing_ok=True)
        return path

    def checkpoint_rounds(self, stage: str) -> list[int]:
        """Rounds of `stage` that have a checkpoint, ascending."""
        folder = self.path / "checkpoints" / stage
        if not folder.is_dir():
            return []
        return sorted(int(m.group(1)) for p in folder.iterdir() if (m := _ROUND.search(p.name)))

    def load_checkpoint(self, stage: str, server_round: int | None = None) -> Checkpoint:
        """The checkpoint of `round`, or the newest readable one; RunError when there is none.

        Of a finished stage the newest must be readable: the stage's metrics are not those of an earlier round's model.
        """
        finished = self.stage_summary(stage) is not None
        rounds = [server_round] if server_round is not None else list(reversed(self.checkpoint_rounds(stage)))
        for candidate in rounds:
            path = self.path / "checkpoints" / stage / f"round-{candidate:04d}.safetensors"
            try:
                return read_checkpoint(path)
            except RunError:
                if finished or server_round is not None:
                    raise
        raise RunError(f"{self.path} holds no readable checkpoint of stage {stage}")

    # -- stages --------------------------------------------------------------------------------------------------

    def finish_stage(self, stage: str, summary: Mapping[str, Any], log: Mapping[str, Any] | None) -> None:
        """Mark `stage` complete with its summary, after writing the per-question log of its full evaluation."""
        files = {} if log is None else {f"evaluations/{stage}.json": json_text(log)}
        self.keep({**files, f"stages/{stage}.json": json_text(dict(summary))}, rows=self.rows())

    def stage_summary(self, stage: str) -> dict[str, Any] | None:
        """What `finish_stage` wrote; None while the stage is unfinished. FileError for a damaged file."""
        return _read(self.path / "stages" / f"{stage}.json", file_schemas.Summary)

    def evaluation_log(self, stage: str) -> dict[str, Any] | None:
        """The per-question log of the stage's end; None where there is none. FileError for a damaged one."""
        path = self.path / "evaluations" / f"{stage}.json"
        log = _read(path, file_schemas.Log)
        if log is not None and (fault := file_schemas.uneven(log)):
            raise FileError(f"{path}: {fault}")
        return log


def check_output(output: Path, name: str | None) -> None:
    """ConfigError for an `output` in which no run directory (called `name`) can be made. Nothing is left there."""
    try:
        if "\0" in str(output):
            raise ValueError("there is a null character in it")
        place = next(p for p in (output, *output.absolute().parents) if os.path.lexists(p))
        if not place.is_dir():
            raise NotADirectoryError(f"{place} is no folder")
        limit = os.pathconf(place, "PC_NAME_MAX") if hasattr(os, "pathconf") else 255
        if long := next((part for part in (*output.parts, name or "") if len(os.fsencode(part)) > limit), None):
            raise OSError(f"{long[:20]}… has {len(os.fsencode(long))} bytes, a name has {limit} at most")
        os.rmdir(tempfile.mkdtemp(dir=place, prefix=".oblivionis-"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        shown = str(output) if len(str(output)) <= 80 else f"{str(output)[:79]}…"
        message = f"no run directory can be made in {shown!r}: {reason}"
        raise ConfigError([Problem("output", message, "a folder that can be written to")]) from None


def _is_there(path: Path, data: bytes) -> bool:
    try:
        return read_bytes(path) == data
    except (FileNotFoundError, FileError):
        return False


def _at_an_end(row: Mapping[str, Any]) -> bool:
    return row.get("moment") in ("before", "end")


def named_metrics(evaluator: str, metrics: Mapping[str, T]) -> dict[str, T]:
    """Metrics by names that no two evaluators share: those of TOFU by their own, others behind the evaluator's name."""
    return dict(metrics) if evaluator == "tofu" else {f"{evaluator}_{name}": v for name, v in metrics.items()}


def package_versions() -> dict[str, str | None]:
    """The installed versions of the packages that results depend on; None for one that is not there."""
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def vector_hash(vector: np.ndarray) -> str:
    """SHA-256 of a flat vector of trained parameters."""
    return hashlib.sha256(vector.tobytes()).hexdigest()


def part_hashes(vector: np.ndarray, shards: int) -> list[str]:
    """SHA-256 of each of `shards` equal parts of a flat vector."""
    return [vector_hash(part) for part in np.split(vector, shards)]


def read_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint file; RunError when it is missing, torn or no checkpoint of ours."""
    arrays, info = read_arrays(path, "checkpoint")
    state = {k.removeprefix("strategy/"): v for k, v in arrays.items() if k.startswith("strategy/")}
    if not isinstance(info.get("stage"), str) or type(info.get("round")) is not int or "adapter" not in arrays:
        raise RunError(f"{path} is no readable checkpoint: it does not say of which stage and round, or has no model")
    return Checkpoint(info.pop("stage"), info.pop("round"), arrays["adapter"], state, info)


def _instead(taken: Path) -> str:
    """What to do where a run cannot be called `taken`, which is there already."""
    if not (taken / "config.yaml").is_file():
        return " and is no run; choose another name"
    if (taken / "report.html").is_file():
        return " and is finished; choose another name"
    return f"; choose another name, or continue that run, by its own settings, with --resume {taken}"


def list_runs(output: Path) -> list[RunDirectory]:
    """The runs under `output`, oldest first."""
    if not output.is_dir():
        return []
    found = [RunDirectory(p.resolve()) for p in output.iterdir() if (p / "config.yaml").is_file()]
    return sorted(found, key=lambda r: (r.path / "config.yaml").stat().st_mtime)


def _read(path: Path, shape: Any) -> dict[str, Any] | None:
    try:
        return read_json(path, shape, finite=False)  # an evaluation of a ruined model may hold infinity
    except FileNotFoundError:
        return None


def _holder(path: Path) -> dict[str, Any]:
    """Who holds the run, as far as its file can be read: the lock itself is the operating system's."""
    try:
        found = parse_json(read_bytes(path))
    except (OSError, ValueError, FileError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("pid"), int) else {}


def _process_start(pid: int) -> float | None:
    try:
        return psutil.Process(pid).create_time()
    except (psutil.Error, ValueError, OverflowError):  # a number that no process has
        return None


def _alive(holder: Mapping[str, Any]) -> bool:
    """Whether the process that wrote `holder` still runs (a reused pid has another start time)."""
    started = holder.get("started")
    return started is not None and holder["pid"] != os.getpid() and _process_start(holder["pid"]) == started
