"""Build the data of WikiMem from a Wikidata dump: into a folder, with a checkpoint from which it can go on.

Files of the folder:

| file                   | content                                                                              |
| ---------------------- | ------------------------------------------------------------------------------------ |
| `counterfactuals.json` | distinct values of other people by property id                                       |
| `pairs.jsonl`          | whose value each of them is: property, human, name, value                            |
| `properties.json`      | properties that enough people use, with their numbers of people                      |
| `subjects.jsonl`       | true values of well-known and lesser-known people, as `data.person_facts` reads them |
| `summary.json`         | the dump, the options, counts, and the lines that were rejected                      |
| `checkpoint.json`      | while unfinished: what the pass under way knows, and where in the dump it is         |
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from evaluation.wikimem.properties import COUNTERFACTUALS_FILE
from oblivionis.data.wikidata.reader import Labels, Options, Survey, wanted_labels
from oblivionis.data.wikidata.stream import BEGINNING, Batch, DamagedDump, Dump, DumpError, Position
from oblivionis.data.wikidata.tables import tables
from oblivionis.errors import FileError, OblivionisError, RunFailed
from oblivionis.files import read_json, remove_torn, write_atomic, write_json
from oblivionis.version import __version__

CHECKPOINT, SUMMARY = "checkpoint.json", "summary.json"
STAGES = ("people", "labels")
_FORMAT = 1
_HEAD = 1 << 20


@dataclass(frozen=True)
class BuildProgress:
    """Where a build is. stage: one of `STAGES`; read: bytes of the dump file read in this stage; survey: what the first
    stage has counted so far; saved: whether a checkpoint has just been written."""

    stage: str
    read: int
    survey: Survey
    saved: bool


@dataclass(frozen=True)
class _Build:
    dump: Dump
    fingerprint: str
    out: Path
    options: Options
    every: float
    listen: Callable[[BuildProgress], None]


def build(
    source: Path,
    out: Path,
    options: Options,
    *,
    resume: bool = False,
    every: float = 60.0,
    listen: Callable[[BuildProgress], None] = lambda progress: None,
) -> dict[str, Any]:
    """Write the files above from the dump `source` into `out`, and return the summary.

    resume: go on from the checkpoint of `out`, or begin where there is nothing; every: seconds between checkpoints;
    listen: called after every batch of lines. Raises OblivionisError where dump, folder or checkpoint cannot be used,
    and RunFailed, with the checkpoint kept, where the dump cannot be read to its end.
    """
    try:
        dump = Dump.open(source)
        job = _Build(dump, dump.fingerprint(_HEAD), out, options, every, listen)
        saved = _saved(job) if resume else None
    except DumpError as error:
        raise OblivionisError(str(error)) from error
    if saved is None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        hint = "there is no unfinished build in it" if resume else "or continue the build in it with --resume"
        raise OblivionisError(f"{out} is not an empty folder; choose another --out ({hint})")
    try:
        survey, labels = _read(job, saved or {"stage": STAGES[0], "position": BEGINNING})
        return _write(job, survey, labels)
    except DamagedDump as error:
        raise RunFailed(f"{error}\nwhat was read up to there is kept: continue with --resume") from error
    except DumpError as error:
        (out / CHECKPOINT).unlink(missing_ok=True)
        raise OblivionisError(f"{source}: {error}") from error
    except OSError as error:
        raise RunFailed(f"{out} cannot be written ({error.strerror or error}); mend that and use --resume") from error


def _read(job: _Build, saved: Mapping[str, Any]) -> tuple[Survey, Labels]:
    """Both passes, or what is left of them. Raises DumpError."""
    stage, start = saved["stage"], Position(*saved["position"])
    survey = Survey.restored(job.options, saved["survey"]) if "survey" in saved else Survey(job.options)
    if stage == STAGES[0]:
        _run(job, stage, start, survey, survey.read, lambda: {"survey": survey.state()})
        survey.finish()
        stage, start = STAGES[1], BEGINNING
    labels = Labels(wanted_labels(survey), job.options.language, saved.get("labels"))
    if not labels.complete:
        counted = survey.state()
        _run(
            job,
            stage,
            start,
            survey,
            labels.read,
            lambda: {"survey": counted, "labels": labels.found},
            done=lambda: labels.complete,
        )
    return survey, labels


def _run(
    job: _Build,
    stage: str,
    start: Position,
    survey: Survey,
    read: Callable[[Batch], None],
    state: Callable[[], dict[str, Any]],
    done: Callable[[], bool] = lambda: False,
) -> None:
    """Give the lines from `start` on to `read`, with checkpoints of `state` at the beginning and as time goes by."""

    def save() -> float:
        value = {"format": _FORMAT, "size": job.dump.size, "fingerprint": job.fingerprint, "options": options}
        value |= {"stage": stage, "position": position} | state()
        write_atomic(job.out / CHECKPOINT, json.dumps(value, ensure_ascii=False))
        return time.monotonic()

    options, position = asdict(job.options), start
    last = save()
    try:
        for batch in job.dump.batches(start):
            read(batch)
            position = batch.end
            due = time.monotonic() - last >= job.every
            if due:
                last = save()
            job.listen(BuildProgress(stage, batch.read, survey, due))
            if done():
                return
    except DamagedDump:
        save()
        raise


def _saved(job: _Build) -> dict[str, Any] | None:
    """The checkpoint of the folder, None without one. Raises OblivionisError where it does not fit.

    The dump may be longer than it was, where it was cut off before.
    """
    path = job.out / CHECKPOINT
    remove_torn(job.out)
    try:
        saved = read_json(path)
        same_dump = saved["fingerprint"] == job.dump.fingerprint(min(saved["size"], _HEAD))
        before = dict(saved["options"])
    except FileNotFoundError:
        if (job.out / SUMMARY).exists():
            raise OblivionisError(f"{job.out} is finished; there is nothing to continue") from None
        return None
    except DumpError:
        raise
    except FileError as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise OblivionisError(f"{path} cannot be read ({reason}); build into another --out") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OblivionisError(f"{path} cannot be read ({error}); build into another --out") from error
    if not same_dump or saved["format"] != _FORMAT:
        what = "another version of oblivionis" if same_dump else "another dump"
        raise OblivionisError(f"{path} belongs to {what}; build into another --out")
    for name, value in asdict(job.options).items():
        if before.get(name) != value:
            option = "--" + name.replace("_", "-")
            raise OblivionisError(
                f"{job.out} was begun with {option} {before.get(name)}, not {value}; repeat its options"
            )
    return saved


def _write(job: _Build, survey: Survey, labels: Labels) -> dict[str, Any]:
    found = tables(survey, labels.found)
    dump = {"name": job.dump.path.name, "bytes": job.dump.size, "format": job.dump.format}
    versions = {"oblivionis": __version__, "python": platform.python_version(), "orjson": version("orjson")}
    summary = {"dump": dump, "versions": versions} | found.summary
    write_json(job.out / COUNTERFACTUALS_FILE, found.counterfactuals)
    write_json(job.out / "properties.json", found.properties)
    for name, rows in (("pairs.jsonl", found.pairs), ("subjects.jsonl", found.subjects)):
        write_atomic(job.out / name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    write_json(job.out / SUMMARY, summary)
    (job.out / CHECKPOINT).unlink(missing_ok=True)
    return summary
