"""The person audit: what a model has memorised about people, how strongly, and in how many phrasings (WikiMem).

The scores of each person are one Parquet file that is written when they are complete. A repeated audit into the same
folder reads what is there and scores only the people that are missing or were asked for otherwise.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evaluation.engine.fused_lora import fused_lora
from evaluation.wikimem.encoder import SentenceEncoder
from evaluation.wikimem.engine import Asking, score_facts
from evaluation.wikimem.facts import SAME_MEANING, Embed, Fact, candidates
from evaluation.wikimem.names import name_variants
from evaluation.wikimem.properties import Property, counterfactuals, properties, read_counterfactuals
from evaluation.wikimem.score import PairScore, score_pair
from oblivionis.audits.audited_model import AuditError
from oblivionis.audits.loaded_model import AuditedModel
from oblivionis.audits.people_outcomes import Person, PersonAudit, PersonFact, Phrasing, person_slug
from oblivionis.config.problems import did_you_mean
from oblivionis.data.person_facts import facts_of
from oblivionis.data.person_records import PersonRecords, as_trained
from oblivionis.data.records import Record
from oblivionis.data.tokenize import whole_text
from oblivionis.errors import OblivionisError, RunInterrupted
from oblivionis.files import parse_json, read_bytes, write_atomic, write_json
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.naming import subject_key
from oblivionis.runs.directory import package_versions
from oblivionis.runs.failed_evaluators import not_measured, reason_of
from oblivionis.version import __version__

CANARIES, RECORDS = "canaries", "records"
PHRASINGS = (CANARIES, RECORDS)
"""The canaries of a property, which do not occur in the data; or the questions and answers of the training records that
state the fact, in the model's prompt template."""
FORGET, RETAIN = "forget", "retain"
"""Cohorts of the people that a run's own data know."""

Progress = Callable[[float, int], None]
"""Called with how many facts are scored and how many there are."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How people are audited.

    asking: see `evaluation.wikimem.engine`; phrasings: one of `PHRASINGS`; values: of other people by property id, in
    place of the built-in ones or in addition to them; embedder: its name, with `embed`, None: values are compared
    letter by letter; values_from: where `values` were read.
    """

    asking: Asking = field(default_factory=Asking)
    phrasings: str = CANARIES
    values: Mapping[str, Sequence[str]] | None = None
    embedder: str | None = None
    embed: Embed | None = None
    values_from: str | None = None

    @property
    def counterfactuals(self) -> Mapping[str, Sequence[str]]:
        return {**counterfactuals(), **(self.values or {})}


def load_values(folder: Path) -> Mapping[str, tuple[str, ...]]:
    """Values of other people by property id, from a folder with counterfactuals.json. AuditError for any other."""
    try:
        return read_counterfactuals(folder)
    except ValueError as error:
        raise AuditError(f"--counterfactuals: {error}") from None


def load_embedder(name: str) -> Embed:
    """A sentence encoder by folder or name. Raises AuditError when it cannot be loaded."""
    try:
        return SentenceEncoder.load(name)
    except (ValueError, OSError) as error:
        raise AuditError(f"--embedder {name}: {error}") from error


def own_facts(subject: AuditedModel, names: Sequence[str] = ()) -> list[Fact]:
    """What the data of the run that made `subject` say about people: those to forget, then as many others.

    The others are spread evenly over the corpus. With `names`, those people instead. Raises AuditError for a model that
    no run made, for data that state no facts, and for an unknown name.
    """
    hint = "give their names and facts with --subjects FILE (rows with subject, property and values)"
    if subject.run is None:
        raise AuditError(f"{subject.name} is no run, whose data could say whom to ask about: {hint}")
    corpus = corpus_of(subject.config)
    facts = facts_of(corpus.train)
    if not facts:
        raise AuditError(f"the data of {subject.name} ({corpus.name}) do not state facts about people: {hint}")
    to_forget = {subject_key(record.subject) for record in corpus.train if record.id in corpus.forget_ids}
    facts = [replace(f, cohort=FORGET if subject_key(f.subject) in to_forget else RETAIN) for f in facts]
    if names:
        return choose(facts, names)
    people = dict.fromkeys(f.subject for f in facts if f.cohort == FORGET)
    others = list(dict.fromkeys(f.subject for f in facts if f.cohort == RETAIN))
    count = min(len(people) or len(others), len(others))
    people |= dict.fromkeys(others[i * len(others) // count] for i in range(count))
    return [fact for name in people for fact in facts if fact.subject == name]


def choose(facts: Sequence[Fact], names: Sequence[str]) -> list[Fact]:
    """The facts about the people of these names. Raises AuditError for a name that no fact is about."""
    known = {subject_key(fact.subject): fact.subject for fact in facts}
    for name in names:
        if subject_key(name) not in known:
            hint = did_you_mean(name, known.values())
            raise AuditError(f"--person: no fact is about {name!r}{'; ' + hint if hint else ''}")
    return [fact for name in names for fact in facts if subject_key(fact.subject) == subject_key(name)]


def first_people(facts: Sequence[Fact], count: int | None) -> list[Fact]:
    """The facts about the first `count` people, all where it is None."""
    people = list(dict.fromkeys(subject_key(fact.subject) for fact in facts))[:count]
    return [fact for fact in facts if subject_key(fact.subject) in people]


def audit_people(
    subject: AuditedModel,
    facts: Sequence[Fact],
    settings: Settings,
    folder: Path,
    *,
    subjects_file: str | None = None,
    before: PersonAudit | None = None,
    progress: Progress | None = None,
) -> PersonAudit:
    """Audit `subject` on `facts` and write the results to `folder`.

    subjects_file: where the facts were read from; before: an audit of the model that this one is compared with, for the
    facts that both were asked in the same way. Facts that cannot be asked for, because their property has no values of
    other people or no record has the words, are named in `skipped`. Raises AuditError when nothing is left, or for a
    sentence that is too long for the model, and RunInterrupted when the user stops it: what is scored is kept.
    """
    start = time.perf_counter()
    records = None if subject.run is None else PersonRecords(corpus_of(subject.config))
    if settings.phrasings == RECORDS and records is None:
        raise AuditError(f"{subject.name} is no run: there are no training records whose words could be used")
    known, skipped = _askable(subject, facts, settings, records)
    failed: dict[str, str] = {}
    tell = progress or (lambda *_: None)
    found = list(_people(subject, facts, known, settings, folder, records, before, tell, failed))
    if not found:
        raise not_measured([f"{name}: {reason}" for name, reason in failed.items()])
    result = PersonAudit(
        model=subject.name,
        run=None if subject.run is None else str(subject.run.path),
        stage=subject.stage,
        round=subject.round,
        fingerprint=subject.fingerprint,
        adapter=subject.adapter,
        seed=subject.config.seed,
        settings=_described(settings) | {"counterfactuals_from": settings.values_from},
        versions={"oblivionis": __version__, **package_versions()},
        subjects_file=subjects_file,
        against=None if before is None else before.model,
        against_stage=None if before is None else before.stage,
        skipped=skipped,
        people=tuple(found),
        time=time.time(),
        seconds=time.perf_counter() - start,
        failed=failed,
    )
    try:
        write_json(folder / "audit.json", result.to_json())
    except OSError as error:
        raise AuditError(str(error)) from error
    return result


def _people(
    subject: AuditedModel,
    facts: Sequence[Fact],
    known: Sequence[Sequence[_Asked]],
    settings: Settings,
    folder: Path,
    records: PersonRecords | None,
    before: PersonAudit | None,
    progress: Progress,
    failed: dict[str, str],
) -> Iterator[Person]:
    """What is found about each person of `known`; `failed` gets by name why one could not be measured. Errors and other
    arguments as of `audit_people`."""
    earlier = {} if before is None else before.outcomes()
    count, done = sum(map(len, known)), 0
    for number, asked in enumerate(known):
        name, cohort = asked[0].fact.subject, asked[0].fact.cohort
        others = [f for f in facts if subject_key(f.subject) == subject_key(name)]
        share = _Share(progress, done, len(asked), count)
        try:
            rows = _score_person(subject, asked, others, settings, folder, share)
        except (ValueError, OSError) as error:
            raise AuditError(f"{name}: {error}") from error
        except KeyboardInterrupt:
            raise RunInterrupted(
                f"stopped; {number} of {len(known)} people are scored and kept in {folder}; the same command goes "
                "on from there"
            ) from None
        except OblivionisError:
            raise
        except Exception as error:
            failed[name] = reason_of(error)
            continue
        finally:
            done += len(asked)
        about = None if records is None else records.about(name)
        ids = tuple(record.id for record in about.records) if about else ()
        compared = tuple(replace(fact, before=earlier.get(fact.inputs)) for fact in rows)
        yield Person(name, cohort, about.subject if about else None, ids, compared)
    progress(count, count)


@dataclass(frozen=True, slots=True)
class _Share:
    """Tells `progress` how far the facts of one person are, `size` of `count` after the first `done`."""

    progress: Progress
    done: int
    size: int
    count: int

    def __call__(self, part: float) -> None:
        self.progress(self.done + part * self.size, self.count)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A fact, and its property with the phrasings in which it is asked for."""

    fact: Fact
    property: Property


def _askable(
    subject: AuditedModel, facts: Sequence[Fact], settings: Settings, records: PersonRecords | None
) -> tuple[list[list[_Asked]], tuple[str, ...]]:
    """The facts that can be asked for, by person, and the others in words. AuditError when there is none."""
    values = settings.counterfactuals
    found: dict[str, list[_Asked]] = {}
    skipped = []
    for fact in facts:
        prop = properties()[fact.property]
        named = f"{fact.subject}: {prop.label} ({fact.property})"
        if not values.get(fact.property):
            skipped.append(f"{named}: no values of other people to compare with; give some with --counterfactuals")
            continue
        if settings.phrasings == RECORDS:
            assert records is not None
            trained = as_trained(fact, records, partial(_text, subject))
            if trained is None:
                skipped.append(f"{named}: no training record has both the name and the value")
                continue
            prop = trained
        found.setdefault(subject_key(fact.subject), []).append(_Asked(fact, prop))
    if not found:
        raise AuditError(f"none of the {len(facts)} facts can be asked for, the first one is {skipped[0]}")
    return list(found.values()), tuple(skipped)


def _text(subject: AuditedModel, record: Record) -> str:
    return whole_text(subject.tokenizer, subject.template, record.question, record.answer)


def _described(settings: Settings) -> dict[str, Any]:
    return {
        **asdict(settings.asking),
        "phrasings": settings.phrasings,
        "embedder": settings.embedder,
        "same_meaning": SAME_MEANING if settings.embedder else None,
    }


def _inputs(asked: _Asked, about: Sequence[Fact], settings: Settings) -> str:
    """Equal where a fact is asked for in the same words: 16 hexadecimal digits of SHA-256."""
    fact, asking = asked.fact, settings.asking
    words = [
        fact.subject,
        name_variants(fact.subject, asking.variants),
        asked.property.canaries[: asking.templates],
        fact.property,
        fact.values,
        candidates(fact.values, settings.counterfactuals[fact.property], asking.counterfactuals),
        [(f.property, f.values[0]) for f in about] if asking.context else [],
        _described(settings),
    ]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]


def _score_person(
    subject: AuditedModel,
    questions: Sequence[_Asked],
    about: Sequence[Fact],
    settings: Settings,
    folder: Path,
    progress: Callable[[float], None],
) -> list[PersonFact]:
    """The facts about one person, from the file of their scores where it is there and fits; context from `about`."""
    inputs = [_inputs(asked, about, settings) for asked in questions]
    facts = [asked.fact for asked in questions]
    path = folder / "scores" / f"{person_slug(facts[0].subject)}.parquet"
    made_from = {"model": subject.identity, "facts": inputs}
    known = _read(path, made_from, len(questions))
    if known is None:
        with fused_lora(subject.model):
            scored = score_facts(
                subject.model,
                subject.tokenizer,
                facts,
                settings.asking,
                counterfactuals=settings.counterfactuals,
                properties={**properties(), **{asked.property.id: asked.property for asked in questions}},
                known=about,
                embed=settings.embed,
                token_budget=subject.config.evaluation.token_budget,
                progress=lambda part, of: progress(part / of),
            )
        known = [_Scores(s.templates, s.candidates, s.truth, s.scores) for s in scored]
        _write(path, made_from, facts, known)
    return [_fact(fact, key, scores) for fact, key, scores in zip(facts, inputs, known, strict=True)]


@dataclass(frozen=True, eq=False)
class _Scores:
    """Of a fact: templates (T), candidates (C), truth (C,) and scores (T, C)."""

    templates: tuple[str, ...]
    candidates: tuple[str, ...]
    truth: np.ndarray
    scores: np.ndarray


def _fact(fact: Fact, inputs: str, found: _Scores) -> PersonFact:
    pair: PairScore = score_pair(fact.subject, fact.property, found.scores, found.truth, fact.cohort)
    first = found.scores.argmax(axis=1)
    best = found.scores[:, found.truth].max(axis=1, keepdims=True)
    ranks = 1 + (found.scores[:, ~found.truth] >= best).sum(axis=1)
    return PersonFact(
        id=fact.property,
        label=properties()[fact.property].label,
        values=fact.values,
        inputs=inputs,
        phrasings=tuple(
            Phrasing(
                template=template,
                memorized=bool(pair.memorized[t]),
                strength=float(pair.strength[t]) if pair.memorized[t] else None,
                rank=int(ranks[t]),
                first=found.candidates[first[t]],
            )
            for t, template in enumerate(found.templates)
        ),
    )


def _write(path: Path, made_from: Mapping[str, Any], facts: Sequence[Fact], found: Sequence[_Scores]) -> None:
    """One row per fact, template and candidate, in this order."""
    tables = []
    for number, (fact, one) in enumerate(zip(facts, found, strict=True)):
        count, width = one.scores.shape
        tables.append(
            pa.table(
                {
                    "fact": pa.array([number] * (count * width), pa.int32()),
                    "property": [fact.property] * (count * width),
                    "phrasing": pa.array(np.repeat(np.arange(count), width), pa.int32()),
                    "template": [template for template in one.templates for _ in range(width)],
                    "candidate": list(one.candidates) * count,
                    "true": np.tile(one.truth, count),
                    "score": one.scores.ravel(),
                }
            )
        )
    table = pa.concat_tables(tables).replace_schema_metadata({"oblivionis": json.dumps(made_from)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_atomic(path, buffer.getvalue())


def _read(path: Path, made_from: Mapping[str, Any], facts: int) -> list[_Scores] | None:
    """What `_write` wrote; None where the file is missing, torn or of another model or other questions."""
    try:
        table = pq.read_table(io.BytesIO(read_bytes(path)))
        if parse_json((table.schema.metadata or {})[b"oblivionis"]) != dict(made_from):
            return None
        number = table.column("fact").to_numpy()
        return [_one(table.filter(pa.array(number == i))) for i in range(facts)]
    except (OSError, KeyError, ValueError, TypeError, pa.ArrowException):
        return None


def _one(rows: pa.Table) -> _Scores:
    width = int((rows.column("phrasing").to_numpy() == 0).sum())
    templates = tuple(rows.column("template").to_pylist()[::width])
    return _Scores(
        templates,
        tuple(rows.column("candidate").to_pylist()[:width]),
        rows.column("true").to_numpy(zero_copy_only=False)[:width],
        rows.column("score").to_numpy().reshape(len(templates), width),
    )
