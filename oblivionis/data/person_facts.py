"""Facts about people whose memorisation is measured: from a file of rows, or from the triples of a corpus.

Fields of a row:

| field      | type                   | meaning                                                            |
| ---------- | ---------------------- | ------------------------------------------------------------------ |
| `subject`  | text, required         | the person's name                                                  |
| `property` | text, required         | an id of `evaluation/wikimem/properties.json`, such as P19         |
| `values`   | list of texts, or text | required: all true values; also read as `value`                    |
| `cohort`   | text                   | the group under which the person is reported, such as `well-known` |

Further fields are ignored. One row per subject and property; a subject has one cohort.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Any

from evaluation.wikimem.facts import Fact
from evaluation.wikimem.names import name_variants
from evaluation.wikimem.properties import properties
from oblivionis.data.errors import raise_if_any
from oblivionis.data.records import Record
from oblivionis.naming import subject_key
from oblivionis.row_files import Row, read_rows

PROPERTY_OF = MappingProxyType(
    {
        "birthplace": "P19",
        "spouse": "P26",
        "university": "P69",
        "first occupation": "P106",
        "genre": "P136",
        "award": "P166",
        "archive": "P485",
        "city of residence": "P551",
        "birth date": "P569",
        "best-known book": "P800",
        "field of study": "P812",
        "first workplace": "P937",
        "mentor": "P1066",
        "pet": "P1429",
        "hobby": "P2650",
        "rival": "P3342",
        "magazine": "P6872",
        "language": "P6886",
        "debut year": "P10673",
    }
)
"""The Wikidata property that a property of the fictitious authors (`data.facts.PROPERTIES`) stands for. Those left out
describe another person (the parents' occupations), another thing (the hero of a series) or have no counterpart."""


def read_facts(path: Path) -> list[Fact]:
    """The facts of a file of rows. Raises DataError with every faulty line."""
    problems: list[str] = []
    found: list[Fact] = []
    lines: dict[tuple[str, str], str] = {}
    cohorts: dict[str, tuple[str | None, str]] = {}
    for row in read_rows(path, problems):
        fact = _fact(row, problems)
        if fact is None:
            continue
        person = subject_key(fact.subject)
        first = lines.setdefault((person, fact.property), row.where)
        if first != row.where:
            problems.append(
                f"{row.where}: {fact.property} of {fact.subject} is already at {first}; put all values there"
            )
            continue
        cohort, where = cohorts.setdefault(person, (fact.cohort, row.where))
        if cohort != fact.cohort:
            problems.append(f"{row.where}: cohort {fact.cohort!r} of {fact.subject} differs from {cohort!r} at {where}")
        found.append(fact)
    if not found and not problems:
        problems.append(f"{path}: expected at least one fact, found none")
    raise_if_any(path, problems)
    return found


def facts_of(records: Iterable[Record]) -> list[Fact]:
    """What the triples of `records` say under the properties of `PROPERTY_OF`, in the order of first mention.

    Values of the same subject and property make one fact. Records without triples give none.
    """
    values: dict[tuple[str, str], dict[str, None]] = {}
    for record in records:
        for triple in record.triples:
            if triple.property in PROPERTY_OF:
                key = (triple.subject, PROPERTY_OF[triple.property])
                values.setdefault(key, {})[triple.value] = None
    return [Fact(subject, prop, tuple(found)) for (subject, prop), found in values.items()]


def _fact(row: Row, problems: list[str]) -> Fact | None:
    before = len(problems)
    row_values = {name: row.value(name) if name in ("value", "values") else value for name, value in row.values.items()}
    if "values" not in row_values and "value" in row_values:
        row_values["values"] = row_values["value"]
    for name in ("subject", "property", "values"):
        if row_values.get(name) is None:
            near = difflib.get_close_matches(name, list(row.values), n=1, cutoff=0.7)
            hint = f" (found {near[0]!r})" if near else ""
            problems.append(f"{row.where}: field {name!r} is missing{hint}")
    for name in ("subject", "property", "cohort"):
        value = row_values.get(name)
        if value is not None and not _is_text(value):
            problems.append(f"{row.where}: {name} must be a non-empty text, found {value!r}")
    values = row_values.get("values")
    values = [values] if isinstance(values, str) else values
    if values is not None and not (isinstance(values, list) and values and all(map(_is_text, values))):
        problems.append(f"{row.where}: values must be a list of one or more non-empty texts, found {values!r}")
    if len(problems) > before or values is None:
        return None
    fact = Fact(
        " ".join(row_values["subject"].split()),
        row_values["property"].strip(),
        tuple(dict.fromkeys(value.strip() for value in values)),
        row_values.get("cohort"),
    )
    problems += [f"{row.where}: {problem}" for problem in _unusable(fact)]
    return fact if len(problems) == before else None


def _unusable(fact: Fact) -> list[str]:
    found = []
    if fact.property not in properties():
        labels = {prop.label: prop.id for prop in properties().values()}
        near = difflib.get_close_matches(fact.property, labels, n=1)
        hint = f"; did you mean {labels[near[0]]} ({near[0]})?" if near else " such as P19"
        found.append(
            f"property {fact.property!r} is unknown; expected an id of evaluation/wikimem/properties.json{hint}"
        )
    try:
        name_variants(fact.subject)
    except ValueError as error:
        found.append(f"subject: {error}")
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and not any(0xD800 <= ord(c) <= 0xDFFF for c in value)
