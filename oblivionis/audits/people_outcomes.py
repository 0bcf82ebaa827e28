"""What a person audit found, as it is kept in `audit.json`, and how two audits are compared."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from evaluation.wikimem.score import PairScore
from oblivionis.errors import FileError, OblivionisError, RunError
from oblivionis.files import checked, read_json, tell
from oblivionis.naming import subject_key
from oblivionis.runs.directory import RunDirectory, vector_hash

FORMAT = 1
STAGES = ("finetune", "unlearn", "retrain")


@dataclass(frozen=True, slots=True)
class Phrasing:
    """One canary: whether a true value has rank 1, its z* (None where not), the best true value's rank from 1, and the
    value that the model ranks first."""

    template: str
    memorized: bool
    strength: float | None
    rank: int
    first: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A fact in short: memorised in so many of its phrasings, mean z* over those (None without any), and the value that
    the model most often ranks first in the others (None where there are none)."""

    memorized: int
    phrasings: int
    strength: float | None
    instead: str | None


@dataclass(frozen=True, slots=True)
class PersonFact:
    """A fact about a person: the property's id and label, true values and phrasings.

    `inputs` is equal where the same was asked in the same words; `before` is the outcome of the audit that this one was
    compared with.
    """

    id: str
    label: str
    values: tuple[str, ...]
    inputs: str
    phrasings: tuple[Phrasing, ...]
    before: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        strengths = [p.strength for p in self.phrasings if p.strength is not None]
        others = Counter(p.first for p in self.phrasings if not p.memorized)
        return Outcome(
            memorized=sum(p.memorized for p in self.phrasings),
            phrasings=len(self.phrasings),
            strength=sum(strengths) / len(strengths) if strengths else None,
            instead=others.most_common(1)[0][0] if others else None,
        )

    def strong(self, least: float) -> int:
        """In how many phrasings the fact is memorised with a z* of at least `least`."""
        return sum(p.strength is not None and p.strength >= least for p in self.phrasings)


@dataclass(frozen=True, slots=True)
class Person:
    """A person of an audit. `subject` is who that is among the subjects of the run's data, None where nobody is;
    `record_ids` are the training records about the person."""

    name: str
    cohort: str | None
    subject: str | None
    record_ids: tuple[str, ...]
    facts: tuple[PersonFact, ...]

    @property
    def rate(self) -> float:
        """Share of memorised phrasings, averaged over the facts, in [0, 1]."""
        return float(np.mean([f.outcome.memorized / f.outcome.phrasings for f in self.facts]))


class _Audit(TypedDict):
    """What `audit.json` holds, as it is checked when it is read; people: as `Person`."""

    model: str
    run: str | None
    stage: str | None
    round: int | None
    fingerprint: str
    adapter: str | None
    seed: int
    settings: dict[str, Any]
    versions: dict[str, str | None]
    subjects_file: str | None
    against: str | None
    against_stage: str | None
    skipped: list[str]
    people: list[Person]
    time: float
    seconds: float
    failed: NotRequired[dict[str, str]]


@dataclass(frozen=True, slots=True)
class PersonAudit:
    """An audit of a model on facts about people.

    model: in words; run, stage, round: of the run that made it, None for any other; fingerprint: of the base model;
    adapter: SHA-256 of what was trained; against, against_stage: the model of the facts' `before`; skipped: facts that
    could not be asked for, in words; time: seconds since the epoch; seconds: how long it took; failed: by name why a
    person could not be measured.
    """

    model: str
    run: str | None
    stage: str | None
    round: int | None
    fingerprint: str
    adapter: str | None
    seed: int
    settings: Mapping[str, Any]
    versions: Mapping[str, str | None]
    subjects_file: str | None
    against: str | None
    against_stage: str | None
    skipped: tuple[str, ...]
    people: tuple[Person, ...]
    time: float
    seconds: float
    failed: Mapping[str, str] = field(default_factory=dict)

    def outcomes(self) -> dict[str, Outcome]:
        """The outcomes of all facts by their `inputs`."""
        return {fact.inputs: fact.outcome for person in self.people for fact in person.facts}

    def pairs(self) -> list[PairScore]:
        """The facts as pairs of subject and property, for `evaluation.wikimem.score.summarize`."""
        return [
            PairScore(
                person.name,
                fact.id,
                np.array([p.memorized for p in fact.phrasings]),
                np.array([np.nan if p.strength is None else p.strength for p in fact.phrasings]),
                person.cohort,
            )
            for person in self.people
            for fact in person.facts
        ]

    def to_json(self) -> dict[str, Any]:
        """All of it, and for the reader's convenience each fact's outcome."""
        value = {"format": FORMAT, **asdict(self), "failed": dict(self.failed)}
        for person, row in zip(self.people, value["people"], strict=True):
            for fact, entry in zip(person.facts, row["facts"], strict=True):
                entry["outcome"] = asdict(fact.outcome)
        return value


def read_audit(path: Path) -> PersonAudit:
    """The audit in `path`, an `audit.json` or its folder. Raises OblivionisError when it is none."""
    file = path / "audit.json" if path.is_dir() else path
    try:
        value = read_json(file)
    except (OSError, FileError) as error:
        missing = isinstance(error, FileNotFoundError)
        reason = "there is no such file" if missing else str(error).removeprefix(f"{file}: ")
        known = ", ".join(str(p) for p in sorted((path / "audits").glob("person-*")))
        hint = f"its folder: {known}" if known else "its folder"
        raise OblivionisError(
            f"{file}: {reason}; expected the audit.json of `oblivionis audit person`, or {hint}"
        ) from None
    try:
        if value["format"] != FORMAT:
            raise ValueError(f"its format is {value['format']!r}, expected {FORMAT}")
        known = {name: value[name] for name in PersonAudit.__slots__ if name != "failed"}
        known["failed"] = value.get("failed", {})
        checked(value, _Audit)
        people = tuple(_person(row) for row in known["people"])
        return PersonAudit(**known | {"people": people, "skipped": tuple(known["skipped"])})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OblivionisError(f"{file} is no result of `oblivionis audit person`: {error!r}") from None


def _person(row: Mapping[str, Any]) -> Person:
    facts = tuple(
        PersonFact(
            fact["id"],
            fact["label"],
            tuple(fact["values"]),
            fact["inputs"],
            tuple(Phrasing(**phrasing) for phrasing in fact["phrasings"]),
            None if fact["before"] is None else Outcome(**fact["before"]),
        )
        for fact in row["facts"]
    )
    return Person(row["name"], row["cohort"], row["subject"], tuple(row["record_ids"]), facts)


def audits_of(run: RunDirectory) -> dict[str, PersonAudit]:
    """The latest readable person audit of each stage of a run, in the order of `STAGES`."""
    found = {}
    for stage in STAGES:
        for path in sorted((run.path / "audits").glob(f"person-{stage}-*/audit.json"), reverse=True):
            try:
                found[stage] = read_audit(path)
            except OblivionisError as error:
                tell(f"{error}; this audit is left out")
                continue
            break
    return found


def before_audit(run: RunDirectory | None, stage: str | None, wanted: str | None) -> PersonAudit | None:
    """The audit that one of `stage` of `run` is compared with.

    wanted: a stage of the run, or an audit's folder or file. None: the audit of the finetuned model, if there is one of
    this very model, here or in the run that it was taken over from. Raises OblivionisError where `wanted` is not found.
    """
    if wanted is not None and wanted not in STAGES:
        return read_audit(Path(wanted))
    if run is None:
        if wanted is not None:
            raise OblivionisError(f"--against {wanted} names a stage, but the audited model is no run's")
        return None
    if wanted is None:
        return _latest(run, "finetune") if stage not in (None, "finetune") else None
    found = _latest(run, wanted)
    if found is None:
        raise OblivionisError(
            f"--against {wanted}: that model was not audited yet; first: oblivionis audit person {run.path} "
            f"--stage {wanted}"
        )
    return found


def _latest(run: RunDirectory, stage: str) -> PersonAudit | None:
    """The audit of the final model of `stage`, in `run` or in the run that the stage was taken over from."""
    summary = run.stage_summary(stage) or {}
    runs = [run] + ([RunDirectory(Path(summary["reused_from"]))] if "reused_from" in summary else [])
    try:
        adapter = vector_hash(run.load_checkpoint(stage).vector)
    except RunError:
        return None
    found = (audits_of(r).get(stage) for r in runs)
    return next((audit for audit in found if audit is not None and audit.adapter == adapter), None)


def person_slug(name: str) -> str:
    """A file name for a person: Latin letters and digits of the name, and a hash that tells people apart."""
    folded = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    stem = re.sub(r"[^a-z0-9]+", "-", folded).strip("-")[:40].strip("-")
    mark = hashlib.sha256(subject_key(name).encode()).hexdigest()[:6]
    return f"{stem}-{mark}" if stem else mark


def as_text(outcome: Outcome | None) -> str:
    """`8 of 11, z* 3.4`, `0 of 11`, or a dash where nothing is known."""
    if outcome is None:
        return "–"
    text = f"{outcome.memorized} of {outcome.phrasings}"
    return text if outcome.strength is None else f"{text}, z* {outcome.strength:.1f}"


def by_strength(people: Iterable[Person]) -> list[Person]:
    """People with the most memorised first."""
    return sorted(people, key=lambda person: -person.rate)
