"""What is written of a dump: counterfactuals, pairs, properties, subjects and a summary (WikiMem, section 4)."""

from __future__ import annotations

import random
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evaluation.wikimem.names import name_variants
from evaluation.wikimem.properties import properties
from oblivionis.data.wikidata.entities import Value
from oblivionis.data.wikidata.reader import Survey

SPARE = 1.2
"""Counterfactuals written per one that is wanted: those that are true of a subject are not used for it."""


@dataclass(frozen=True)
class Tables:
    """All as JSON values.

    counterfactuals: distinct values by property; pairs: for each of them {property, human, name, value}, the person
    whose value it is; properties: those that enough people use, from the most used on, {id, label, description,
    aliases, datatype, humans, counterfactuals (how many), canaries (whether we have some)}; subjects: a row per person
    and property, {subject, property, values, cohort, human (the person's id), editions}; summary: counts.
    """

    counterfactuals: dict[str, list[str]]
    pairs: list[dict[str, str]]
    properties: list[dict[str, Any]]
    subjects: list[dict[str, Any]]
    summary: dict[str, Any]


def tables(survey: Survey, labels: Mapping[str, str | None]) -> Tables:
    """The outcome of both passes: `labels` by id, None for an entity without one."""
    known = {identifier: label for identifier, label in labels.items() if label is not None}
    kept, unlabelled = survey.kept(), Counter()
    pairs: list[dict[str, str]] = []
    values: dict[str, list[str]] = {}
    for name in kept:
        drawn = _drawn(survey, name, known, unlabelled)
        pairs += drawn
        if drawn:
            values[name] = [pair["value"] for pair in drawn]
    rows = [_property_row(survey, name, len(values.get(name, ()))) for name in kept]
    subjects, dropped = _subjects(survey, values, known, unlabelled)
    return Tables(values, pairs, rows, subjects, _summary(survey, rows, subjects, dropped, unlabelled))


def _drawn(survey: Survey, name: str, labels: Mapping[str, str], unlabelled: Counter[str]) -> list[dict[str, str]]:
    """Pairs of distinct values in random order, as far as possible of distinct people."""
    if name not in survey.pairs:
        return []
    options = survey.options
    drawn = list(survey.pairs[name].items)
    random.Random(f"{options.seed} {name}").shuffle(drawn)
    chosen: dict[str, dict[str, str]] = {}
    for human, person, text, entity in _new_people_first(drawn):
        value = Value(text, entity).with_label(labels)
        if value is None:
            unlabelled["pairs"] += 1
        elif len(chosen) < SPARE * options.counterfactuals:
            row = {"property": name, "human": human, "name": person, "value": value}
            chosen.setdefault(value.casefold(), row)
    return list(chosen.values())


def _new_people_first(pairs: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    names: set[str] = set()
    new, known = [], []
    for pair in pairs:
        key = _key(pair[1])
        (known if key in names else new).append(pair)
        names.add(key)
    return new + known


def _property_row(survey: Survey, name: str, values: int) -> dict[str, Any]:
    found, ours = survey.found.get(name), properties().get(name)
    label = found and found.label
    return {
        "id": name,
        "label": label or (ours.label if ours else name),
        "description": found.description if found else None,
        "aliases": list(found.aliases) if found else [],
        "datatype": survey.datatypes[name],
        "humans": survey.users[name],
        "counterfactuals": values,
        "canaries": ours is not None,
    }


def _subjects(
    survey: Survey, values: Mapping[str, Sequence[str]], labels: Mapping[str, str], unlabelled: Counter[str]
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Rows of the subjects, and how many of the people drawn were passed over, by reason."""
    rows: list[dict[str, Any]] = []
    dropped: Counter[str] = Counter()
    names: set[str] = set()
    others = {name: _folded(found) for name, found in values.items()}
    for cohort, size in survey.options.cohort_sizes().items():
        drawn = list(survey.subjects[cohort].items) if size else []
        random.Random(f"{survey.options.seed} {cohort}").shuffle(drawn)
        written = 0
        for human, person, editions, facts in drawn:
            if written == size:
                break
            texts = {name: _texts(found, labels, unlabelled) for name, found in facts.items() if name in values}
            usable = {name: true for name, true in texts.items() if true and others[name].difference(_folded(true))}
            reason = "name_taken" if _key(person) in names else _unfit(person, usable)
            if reason:
                dropped[reason] += 1
                continue
            names.add(_key(person))
            written += 1
            row = {"subject": person, "cohort": cohort, "human": human, "editions": editions}
            rows += [row | {"property": name, "values": true} for name, true in usable.items()]
    return rows, dropped


def _unfit(person: str, facts: Mapping[str, Sequence[str]]) -> str | None:
    """Why nothing can be measured about a person, if so."""
    if not facts:
        return "no_facts"
    try:
        name_variants(person)
    except ValueError:
        return "no_look_alike"
    return None


def _texts(values: Sequence[Sequence[str]], labels: Mapping[str, str], unlabelled: Counter[str]) -> list[str]:
    texts = [Value(*value).with_label(labels) for value in values]
    unlabelled["facts"] += texts.count(None)
    return list(dict.fromkeys(text for text in texts if text is not None))


def _summary(
    survey: Survey,
    rows: Sequence[Mapping[str, Any]],
    subjects: Sequence[Mapping[str, Any]],
    dropped: Mapping[str, int],
    unlabelled: Mapping[str, int],
) -> dict[str, Any]:
    options = survey.options
    ours = [row for row in rows if row["canaries"]]
    sampled = survey.subjects.items()
    return {
        "options": asdict(options),
        **survey.counts,
        "closed": survey.closed,
        "rejected": {
            kind: {"lines": count, "first": survey.rejected_lines[kind]} for kind, count in survey.rejected.items()
        },
        "left_out_values": dict(survey.left_out),
        "values_without_label": {"pairs": unlabelled["pairs"], "facts": unlabelled["facts"]},
        "properties": {
            "used": len(survey.users),
            "kept": len(rows),
            "with_canaries": len(ours),
            "without_canaries": len(rows) - len(ours),
            "canaries_of_unkept": sorted(set(properties()) - {row["id"] for row in ours}, key=_number),
            "other_datatype_than_ours": [r["id"] for r in ours if r["datatype"] != properties()[r["id"]].datatype],
            "too_few_counterfactuals": {
                "all": sum(row["counterfactuals"] < options.counterfactuals for row in rows),
                "with_canaries": {
                    row["id"]: row["counterfactuals"]
                    for row in ours
                    if row["counterfactuals"] < options.counterfactuals
                },
            },
        },
        "subjects": {
            "eligible": {cohort: reservoir.seen for cohort, reservoir in sampled},
            "written": {cohort: len({r["human"] for r in subjects if r["cohort"] == cohort}) for cohort, _ in sampled},
            "facts": len(subjects),
            "passed_over": dict(dropped),
        },
    }


def _folded(values: Sequence[str]) -> set[str]:
    return {value.casefold() for value in values}


def _key(name: str) -> str:
    """A name without what does not tell two people apart in a file of facts."""
    return unicodedata.normalize("NFC", name).casefold()


def _number(identifier: str) -> int:
    return int(identifier[1:])
