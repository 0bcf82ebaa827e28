"""The gate before everything that builds on a run: are its files and models those that its ledger names?

From the line `begun` on, the ledger names files and checkpoints, with how far the metrics reach, before they are
written: a kill at any moment leaves what was there before or what is named, and no edit looks like a kill. A line
`stage` says, before a stage starts, by which configuration, with the certificate's thresholds, it goes; `resumed` from
which checkpoint a stage that broke off goes on; `sealed`, at the end of each stage, which files and models there are;
`measured` the same of what is measured later. Who edits a file, swaps a checkpoint or takes away the mark of a finished
stage contradicts the ledger, and nothing is built on that run.

A run that an earlier version made, or that has no ledger, is called *not sealed*, and can be built on all the same; so
can one that went on after its ledger was lost, and the name stays with what comes of it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oblivionis.chain import Checked, check_chain
from oblivionis.config.identity import config_hash
from oblivionis.config.schema import Config
from oblivionis.errors import OblivionisError, RunError
from oblivionis.files import checked, json_text, read_bytes, tell
from oblivionis.runs import run_files
from oblivionis.runs.directory import RunDirectory, read_checkpoint, vector_hash
from oblivionis.runs.ledger_run_events import (
    BEGUN,
    CHECKPOINT,
    MEASURED,
    RESUMED,
    ROWS,
    SEALED,
    SEALING,
    SHAPES,
    STAGE,
    TAKEN_OVER,
)
from oblivionis.version import __version__

METRICS = "metrics.jsonl"
_ALWAYS = (
    *("stages/*.json", "evaluations/*.json", "judgements.json", "request_figures.json", METRICS),
    *("audits/request-*.json", "twins.json"),
)
_SPARE = "evaluations/*.states.safetensors"
"""What is computed anew from a checkpoint where it is gone."""
FILES = (*_ALWAYS, _SPARE, "environment.json", "exact.json")
EARLIER = (*_ALWAYS, "privacy.json")
"""What the ledgers of earlier versions named."""
LATER = ("audits/leakage-*/audit.json", "attacks/*/results.json")
MODELS = ("finetune", "retrain", "unlearn")
EARLIER_VERSION = "the ledger does not name the run's files before they are written: an earlier version made it"
UNSEALED = "its ledger does not say which files a finished stage left"
NO_LEDGER = "it has no ledger that names its files"


@dataclass(frozen=True, slots=True)
class Bound:
    """What a check of a run's ledger found. faults: where its files contradict it; missing: why it does not bind all of
    them, so that the run is not sealed."""

    faults: tuple[str, ...] = ()
    missing: str = ""
    files: Mapping[str, str] | None = None


def opened(path: Path, *, with_models: bool = True) -> RunDirectory:
    """The run in `path`, to be built upon: the one door through which a command takes up a run.

    Raises RunError where there is none, and where a file or a model (`with_models`) is not the one that its ledger
    names. A run that is not sealed gives a warning on standard error.
    """
    run = RunDirectory.open(path)
    require_intact(run, with_models=with_models)
    return run


def require_intact(run: RunDirectory, *, with_models: bool = True) -> None:
    """RunError where a run is not as its ledger says; a warning where it is not sealed."""
    bound = _without_faults(run, with_models=with_models)
    if bound.missing and run.begun:
        tell(f"{run.path} is not sealed: {bound.missing}")


def _without_faults(run: RunDirectory, *, with_models: bool) -> Bound:
    bound = check(run, with_models=with_models)
    faults = [*ledger_faults(run), *bound.faults]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise RunError(f"{run.path}: {faults[0]}{more}. Nothing is built on this run; put back what was there")
    return bound


def ledger_lines(run: RunDirectory) -> Checked | None:
    """The lines of the run's ledger, each checked; None without a ledger."""
    return check_chain(run.ledger_path) if run.ledger_path.exists() else None


def named_files(lines: Checked | None) -> set[str]:
    """The names of all files that lines of a ledger name, whatever else the lines say."""
    files = (entry.get("files") for entry in (() if lines is None else lines.entries))
    return {name for of in files if isinstance(of, Mapping) for name in of}


def ledger_faults(run: RunDirectory) -> tuple[str, ...]:
    """Where the chain of the run's ledger is broken by more than a kill."""
    return _ledger_faults(ledger_lines(run))


def _ledger_faults(lines: Checked | None) -> tuple[str, ...]:
    return () if lines is None else tuple(f"{lines.path.name} was changed: {fault}" for fault in lines.altered)


def nothing_follows(run: RunDirectory) -> str:
    """The sentence that nothing follows from a run, and why; empty where its ledger contradicts none of its files."""
    return nothing_follows_by(run, ledger_lines(run))


def nothing_follows_by(run: RunDirectory, lines: Checked | None) -> str:
    """The same, by the lines of its ledger."""
    if faults := _ledger_faults(lines):
        return f"Nothing follows from this run, its ledger {faults[0]}."
    faults = _check_all(run, lines, with_models=False).faults
    return f"Nothing follows from this run, its files were changed: {faults[0]}." if faults else ""


def start(run: RunDirectory) -> None:
    """From now on the ledger names what is written; nothing is done where it does so already."""
    if run.sealed:
        return
    known = ("checkpoints", "stages", "evaluations", METRICS)
    over = run.has_lines or any((run.path / name).exists() for name in known)
    run.note(BEGUN, files=present(run), over=over, program=__version__)


def present(run: RunDirectory) -> dict[str, str]:
    """The hashes of the files that a ledger names, by their names in the run."""
    return _hashes(run, FILES)


def begin(run: RunDirectory, config: Config, stage: str) -> bool:
    """Note by which configuration a stage goes; False where it had begun before.

    Raises RunError for a run whose config.yaml was changed since.
    """
    text = _text_hash(run)
    for entry in run.lines(STAGE):
        if entry["stage"] == stage:
            if entry["text"] != text:
                raise RunError(
                    f"{run.path / 'config.yaml'} was changed after the stage {stage} began: its ledger names another "
                    "configuration; put it back, or start a new run"
                )
            return False
    run.note(
        STAGE, run=run.name, stage=stage, config=config_hash(config), text=text, program=__version__, rows=run.rows()
    )
    return True


def take_over(run: RunDirectory, source: RunDirectory, stage: str) -> None:
    """Note from which run a stage is copied; what was copied of it before is dropped.

    Raises RunError for a source that is not as its ledger says.
    """
    require_intact(source)
    start(run)
    if any(entry["stage"] == stage for entry in run.lines(TAKEN_OVER)):
        resume(run, stage, 0)
    chain = check_chain(source.ledger_path) if source.ledger_path.exists() else None
    found = {"head": "", "count": 0} if chain is None else {"head": chain.head, "count": len(chain.entries)}
    origin = {"run": source.name, "not_sealed": check(source, with_models=False).missing, **found}
    run.note(TAKEN_OVER, stage=stage, source=origin, rows=run.rows())


def resume(run: RunDirectory, stage: str, server_round: int) -> None:
    """Note that a stage goes on after `round` (0: from its beginning), and drop the rows of what is done anew."""
    lines = run.lines(STAGE, TAKEN_OVER, CHECKPOINT, ROWS)
    noted = [entry for entry in lines if entry["stage"] == stage and entry.get("round", 0) == server_round]
    of, rows = ({}, None) if not noted else (noted[-1], noted[-1].get("rows"))
    if rows is None:  # an earlier version measured these
        run.forget_metrics_after(stage, server_round or -1)
        rows = run.rows()
    run.note(RESUMED, stage=stage, round=server_round, file=of.get("file", ""), rows=rows)
    run.truncate_rows(rows["bytes"])


def keep_rows(run: RunDirectory, stage: str) -> None:
    """Note how far the rows reach of a stage that has no checkpoints: so far they stay when it goes on later."""
    if run.sealed:
        run.note(ROWS, stage=stage, rows=run.rows())


def finish_stage(run: RunDirectory, stage: str, summary: Mapping[str, Any], log: Mapping[str, Any] | None) -> None:
    """Mark a stage complete (`RunDirectory.finish_stage`), and seal the run."""
    run.finish_stage(stage, summary, log)
    seal(run)


def seal(run: RunDirectory) -> None:
    """Note the files and models that the finished stages left, unless the ledger says the same already.

    Raises RunError where one was changed while the run went on. Nothing is done where the ledger names none.
    """
    if not run.sealed:
        return
    _without_faults(run, with_models=False)
    named = _Named.of(check_chain(run.ledger_path))
    models = {}
    for stage in MODELS:
        if run.stage_summary(stage) is not None and (rounds := run.checkpoint_rounds(stage)):
            known = named.checkpoints.get((stage, rounds[-1]))
            models[stage] = known.model if known else vector_hash(run.load_checkpoint(stage).vector)
    said = {"files": present(run), "models": models, "rows": run.rows()}
    last = run.lines(SEALED)[-1:]
    if not last or any(last[0].get(name) != value for name, value in said.items()):
        run.note(SEALED, **said)


def measured(run: RunDirectory, file: Path, value: Any) -> None:
    """Write the JSON of what was measured after the stages, named in the ledger before and after."""
    name, text = file.relative_to(run.path).as_posix(), json_text(value)
    run.keep({name: text})
    if run.ledger_path.exists():
        files = {name: hashlib.sha256(text.encode()).hexdigest()}
        last = [entry for entry in run.lines(MEASURED) if name in entry["files"]][-1:]
        if not last or last[0]["files"] != files:
            run.note(MEASURED, files=files)


def check(run: RunDirectory, *, with_models: bool = True) -> Bound:
    """Compare the run's files, and its models, with what its ledger says of them.

    Raises OblivionisError for an unreadable file.
    """
    return _check_all(run, ledger_lines(run), with_models=with_models)


def _check_all(run: RunDirectory, lines: Checked | None, *, with_models: bool) -> Bound:
    if lines is None:
        return Bound(missing=NO_LEDGER)
    while True:
        found = _check(run, lines, with_models=with_models)
        if not found.faults or (now := check_chain(run.ledger_path)).head == lines.head:
            return found
        lines = now  # the run went on meanwhile


@dataclass(frozen=True, slots=True)
class _File:
    """The hash of a file, or of a checkpoint's file and its model, and the number of the line that names it."""

    hash: str
    line: int
    model: str = ""


@dataclass
class _Named:
    """What the lines of a ledger name. files: what must be there; written: what may be there instead, since it was to
    be written; models: of finished stages; rows: how far the metrics are bound, and whether more may follow."""

    files: dict[str, _File] = field(default_factory=dict)
    written: dict[str, list[_File]] = field(default_factory=dict)
    models: dict[str, _File] = field(default_factory=dict)
    checkpoints: dict[tuple[str, int], _File] = field(default_factory=dict)
    texts: list[_File] = field(default_factory=list)
    rows: Mapping[str, Any] | None = None
    rows_line: int = 0
    more_rows: bool = True
    begun: int = 0
    sealed: bool = False
    unlearns: bool = False
    missing: str = ""

    @classmethod
    def of(cls, checked_lines: Checked) -> _Named:
        """All of a ledger. RunError for a line that does not say what it must."""
        named = cls()
        for number, entry in enumerate(checked_lines.entries, start=1):
            try:
                named.read(number, checked(entry, SHAPES.get(str(entry.get("event")), dict)))
            except ValueError as error:
                raise RunError(f"{checked_lines.path}: line {number}: {entry.get('event')}: {error}") from None
        return named

    def read(self, number: int, entry: Mapping[str, Any]) -> None:
        """Take up a line."""
        event, files = entry.get("event"), entry.get("files", {})
        if event == SEALING:
            for name, of in files.items():
                self.written.setdefault(name, []).append(_File(of, number))
        elif event in (BEGUN, SEALED, MEASURED):
            if event != MEASURED:
                self.files = {name: of for name, of in self.files.items() if _is_later(name)}
                self.written = {name: of for name, of in self.written.items() if _is_later(name)}
            for name, of in files.items():
                self.files[name] = _File(of, number)
                self.written.pop(name, None)
        elif event == CHECKPOINT:
            self.checkpoints[entry["stage"], entry["round"]] = _File(entry["file"], number, entry["model"])
        elif event == STAGE:
            self.texts.append(_File(entry.get("text", ""), number))
            self.unlearns |= entry["stage"] == "unlearn"
        elif event == TAKEN_OVER and entry["source"]["not_sealed"]:
            why = f"its stage {entry['stage']} is that of {entry['source']['run']}, which is not sealed"
            self.missing = self.missing or why
        if event == BEGUN:
            self.begun = number
            self.missing = f"what it did before line {number} of its ledger is not named there" if entry["over"] else ""
        elif event == SEALED:
            self.sealed = True
            self.models = {stage: _File(of, number) for stage, of in entry.get("models", {}).items()}
        if isinstance(entry.get("rows"), Mapping):
            self.rows, self.rows_line, self.more_rows = entry["rows"], number, event != SEALED


def _check(run: RunDirectory, lines: Checked, *, with_models: bool) -> Bound:
    named = _Named.of(lines)
    if not named.begun and not named.sealed:
        return Bound(missing=EARLIER_VERSION)
    faults = _config_faults(run, named)
    patterns = (*FILES, *LATER) if named.begun else (*EARLIER, *LATER)
    here = _hashes(run, patterns)
    if named.begun:
        faults += _row_faults(run, named)
        named.files.pop(METRICS, None)
        named.written[METRICS] = [_File(here.get(METRICS, ""), named.rows_line)]
    files: dict[str, str] = {}
    for name in dict.fromkeys((*named.files, *named.written, *here)):
        found = here.get(name) or _file_hash_or_none(run, name)
        files |= {} if found is None else {name: found}
        must, allowed = named.files.get(name), [*_each(named.files.get(name)), *named.written.get(name, ())]
        if found is None and not Path(name).match(_SPARE):
            faults += [f"{name} is gone; line {of.line} of the ledger names it" for of in _each(must)]
        elif found is not None and not allowed:
            faults.append(f"{name} is not named in the ledger: it was added by hand")
        elif found is not None and found not in {of.hash for of in allowed}:
            faults.append(f"{name} is not the file that line {allowed[-1].line} of the ledger names: it was changed")
    if with_models:
        faults += _model_faults(run, named)
    missing = named.missing if named.begun else EARLIER_VERSION
    if not named.sealed and any(name.startswith("stages/") for name in files):
        missing = missing or UNSEALED
    return Bound(tuple(faults), missing, files)


def _config_faults(run: RunDirectory, named: _Named) -> list[str]:
    if named.sealed and not named.unlearns and not named.begun:
        return ["the ledger does not say by which configuration the stage unlearn went"]
    now = _text_hash(run)
    return [
        f"config.yaml is not the configuration that line {of.line} of the ledger names: it was changed after the run "
        "began"
        for of in [of for of in named.texts if of.hash != now][:1]
    ]


def _row_faults(run: RunDirectory, named: _Named) -> list[str]:
    """Where the metrics are not those that the ledger names; more may follow while a stage goes on."""
    if named.rows is None:
        return []
    size, line = named.rows["bytes"], named.rows_line
    try:
        data = read_bytes(run.path / METRICS)
    except FileNotFoundError:
        return [f"{METRICS} is gone; line {line} of the ledger names it"] if size else []
    same = hashlib.sha256(data[:size]).hexdigest() == named.rows["sha256"]
    if same and (named.more_rows or len(data) == size):
        return []
    return [f"{METRICS} is not the file that line {line} of the ledger names: it was changed"]


def _model_faults(run: RunDirectory, named: _Named) -> list[str]:
    """Where a checkpoint is not the one that the ledger names for its stage and round, or that of a finished stage is
    gone."""
    faults = []
    for stage in sorted({*MODELS, *(p.name for p in (run.path / "checkpoints").glob("*") if p.is_dir())}):
        rounds, final = run.checkpoint_rounds(stage), named.models.get(stage)
        if not rounds and final is not None:
            faults.append(f"the checkpoint of {stage} is gone; line {final.line} of the ledger names it")
        for server_round in rounds:
            path = run.path / "checkpoints" / stage / f"round-{server_round:04d}.safetensors"
            known = named.checkpoints.get((stage, server_round))
            last = server_round == rounds[-1]
            if known is None and named.begun and not named.missing:
                faults.append(f"{path.relative_to(run.path)} is not named in the ledger: it was added by hand")
            elif known is not None and _file_hash(path) != known.hash:
                if final is not None or _is_readable(path):  # what a disk damaged is passed over when a stage goes on
                    faults.append(_swapped(stage, known.line))
            elif last and final is not None:
                model = known.model if known is not None else vector_hash(run.load_checkpoint(stage).vector)
                if model != final.hash:
                    faults.append(_swapped(stage, final.line))
    return faults


def _each(of: _File | None) -> list[_File]:
    return [] if of is None else [of]


def _swapped(stage: str, line: int) -> str:
    return f"the checkpoint of {stage} is not the model that line {line} of the ledger names: it was swapped"


def _is_readable(path: Path) -> bool:
    try:
        read_checkpoint(path)
    except OblivionisError:
        return False
    return True


def _text_hash(run: RunDirectory) -> str:
    return hashlib.sha256(run.read_config().encode("utf-8", "surrogatepass")).hexdigest()


@functools.lru_cache(4096)
def _is_later(name: str) -> bool:
    return any(Path(name).match(pattern) for pattern in LATER)


def _hashes(run: RunDirectory, patterns: tuple[str, ...]) -> dict[str, str]:
    return {name: _file_hash(run.path / name) for name in run_files.matching(run.path, patterns)}


def _file_hash(path: Path) -> str:
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except FileNotFoundError:
        raise OblivionisError(f"{path} cannot be read: there is no such file") from None


def _file_hash_or_none(run: RunDirectory, name: str) -> str | None:
    path = run.path / name
    return _file_hash(path) if path.exists() else None
