"""What a Wikidata dump knows about people, in two passes over its lines and in bounded memory (WikiMem, section 4).

`Survey`, the first pass, counts which property how many people use and draws samples: for every property pairs of a
person and a value, and people with what is true of them. Values are kept with the ids of the items and units in them.
`Labels`, the second, reads those ids alone, almost all lines by their first bytes. `dump_tables` puts both together.

Why a second pass, and not labels kept from the first: which ids the samples end with is known on the last line only, so
the labels of all items would have to be kept (more than a hundred million, some GB on disk) and read out of entities
that need not be parsed otherwise. That costs more than decompressing the file again.

Memory: 4 x `counterfactuals` pairs per property that people use, a bit per id up to that of the youngest person (17 MB
for Wikidata of 2024), and the labels of the sampled values. What comes out depends on the dump and the options only: a
pass that goes on from its `state` ends like one that was never interrupted.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from evaluation.wikimem.facts import COUNTERFACTUALS
from evaluation.wikimem.properties import properties
from oblivionis.data.wikidata.entities import (
    FoundProperty,
    Human,
    Rejected,
    entity_of,
    human_of,
    is_utf8,
    label_of,
    property_of,
)
from oblivionis.data.wikidata.reservoir_sampling import IdSet, Reservoir
from oblivionis.data.wikidata.stream import Batch, DumpError

COHORTS = ("well-known", "lesser-known")
OVERSAMPLING = 4
"""Pairs drawn per counterfactual that is wanted: values repeat, and some have no label."""
SHOWN_LINES = 5
"""Numbers of rejected lines that are kept of each kind."""
_HOPELESS = 1000
"""Lines rejected without any entity before them from which on a file is taken for something else."""
_PLAIN_ITEM = re.compile(rb'\{"type":"item","id":"Q[1-9][0-9]*",')
_HUMAN = b'"id":"Q5"'
_ENTITY = re.compile(rb'\{"type":"(?:item|property)",(?:"datatype":"[a-z-]+",)?"id":"([QP][1-9][0-9]*)",')


@dataclass(frozen=True)
class Options:
    """What is drawn from a dump.

    seed: of the samples, >= 0; language: of labels; counterfactuals: distinct values wanted per property; min_humans:
    people who must use a property; subjects: people to draw, half of each cohort; well_known: Wikipedias with an
    article from which on a person is well-known; lesser_known: up to which, from 1 on, lesser-known; every_line: parse
    also the lines whose bytes show that they are no person's. Raises ValueError for impossible values.
    """

    seed: int = 0
    language: str = "en"
    counterfactuals: int = COUNTERFACTUALS
    min_humans: int = 100
    subjects: int = 200
    well_known: int = 20
    lesser_known: int = 3
    every_line: bool = False

    def __post_init__(self) -> None:
        least = {"seed": 0, "counterfactuals": 1, "min_humans": 1, "subjects": 0, "lesser_known": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {bound}")
        if self.well_known <= self.lesser_known:
            raise ValueError(f"well_known is {self.well_known}; expected more than lesser_known, {self.lesser_known}")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", self.language):
            raise ValueError(f"language is {self.language!r}; expected a code of Wikidata, such as en or pt-br")

    def cohort_sizes(self) -> dict[str, int]:
        """Subjects to draw by cohort; of an odd number the larger part is well-known."""
        return {COHORTS[0]: (self.subjects + 1) // 2, COHORTS[1]: self.subjects // 2}

    def cohort(self, editions: int) -> str | None:
        """The cohort of a person with articles in so many Wikipedias, None between and outside the two."""
        if editions >= self.well_known:
            return COHORTS[0]
        return COHORTS[1] if 1 <= editions <= self.lesser_known else None


class Survey:
    """The first pass: counts and samples.

    counts: entities, humans, repeated (lines of people already counted), unnamed (people without a label, who are not
    drawn); rejected, rejected_lines: lines by kind (`REJECTED`), and the numbers of the first; left_out: values of
    people that give no text, by kind (`LEFT_OUT`); users: distinct people by property; datatypes: by property; pairs:
    per property a sample of [person's id, name, text and entity of a `Value`]; subjects: per cohort a sample of [id,
    name, editions, {property: values}]; found: the properties that are entities of the dump; closed: whether the array
    around all entities was closed.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.counts = Counter(entities=0, humans=0, repeated=0, unnamed=0)
        self.rejected: Counter[str] = Counter()
        self.rejected_lines: dict[str, list[int]] = {}
        self.left_out: Counter[str] = Counter()
        self.users: Counter[str] = Counter()
        self.datatypes: dict[str, str] = {}
        self.pairs: dict[str, Reservoir] = {}
        sizes = options.cohort_sizes()
        self.subjects = {cohort: Reservoir(size + size // 4 + 10) for cohort, size in sizes.items() if size}
        self.found: dict[str, FoundProperty] = {}
        self.closed = False
        self._humans = IdSet()
        self._rng = random.Random(options.seed)

    def read(self, batch: Batch) -> None:
        """The next lines. Raises DumpError where the file proves to be no Wikidata dump."""
        first = batch.end.line - len(batch.lines) + 1
        every_line = self.options.every_line
        passed = 0
        for number, line in enumerate(batch.lines, first):
            if line is None:
                self._reject("too_long", number)
            elif not every_line and _is_plainly_no_human(line):
                passed += 1
            else:
                self._read_line(line, number, batch.unterminated)
        self.counts["entities"] += passed
        if not self.counts["entities"] and self.rejected.total() >= _HOPELESS:
            raise DumpError(f"this is no Wikidata JSON dump: none of its first {batch.end.line} lines is an entity")

    def finish(self) -> None:
        """Check that there is something to go on with. Raises DumpError where no line was an entity, or a person."""
        if not self.counts["entities"]:
            raise DumpError("this is no Wikidata JSON dump: none of its lines is an entity")
        if not self.counts["humans"]:
            raise DumpError(f"none of the {self.counts['entities']} entities is a human (P31 = Q5)")

    def kept(self) -> list[str]:
        """The properties that enough people use, from the most used on."""
        names = (name for name, users in self.users.items() if users >= self.options.min_humans)
        return sorted(names, key=lambda name: (-self.users[name], int(name[1:])))

    def state(self) -> dict[str, Any]:
        """As JSON; `restored` brings it back."""
        version, numbers, gauss = self._rng.getstate()
        return {
            "counts": dict(self.counts),
            "rejected": dict(self.rejected),
            "rejected_lines": self.rejected_lines,
            "left_out": dict(self.left_out),
            "users": dict(self.users),
            "datatypes": self.datatypes,
            "pairs": {name: reservoir.state() for name, reservoir in self.pairs.items()},
            "subjects": {cohort: reservoir.state() for cohort, reservoir in self.subjects.items()},
            "found": {n: [p.datatype, p.label, p.description, p.aliases] for n, p in self.found.items()},
            "closed": self.closed,
            "humans": self._humans.state(),
            "rng": [version, numbers, gauss],
        }

    @classmethod
    def restored(cls, options: Options, state: Mapping[str, Any]) -> Survey:
        """The survey with `options` whose `state` this is."""
        survey = cls(options)
        for name in ("counts", "rejected", "left_out", "users"):
            getattr(survey, name).update(state[name])
        survey.rejected_lines = {kind: list(lines) for kind, lines in state["rejected_lines"].items()}
        survey.datatypes = dict(state["datatypes"])
        survey.pairs = {name: Reservoir(*reservoir) for name, reservoir in state["pairs"].items()}
        survey.subjects = {cohort: Reservoir(*reservoir) for cohort, reservoir in state["subjects"].items()}
        for name, (datatype, label, description, aliases) in state["found"].items():
            survey.found[name] = FoundProperty(datatype, label, description, tuple(aliases))
        survey.closed = state["closed"]
        survey._humans = IdSet(state["humans"])
        version, numbers, gauss = state["rng"]
        survey._rng.setstate((version, tuple(numbers), gauss))
        return survey

    def _read_line(self, line: bytes, number: int, unterminated: bool) -> None:
        human = found = None
        try:
            entity = entity_of(line)
            if entity is not None:
                human = human_of(entity, self.options.language)
                found = property_of(entity, self.options.language)
        except Rejected as reason:
            torn = unterminated and reason.kind in ("not_json", "not_utf8")
            self._reject("cut_off" if torn else reason.kind, number)
            return
        self.closed |= line.rstrip().endswith(b"]")
        self.counts["entities"] += entity is not None
        if entity is not None and found is not None:
            self.found[entity["id"]] = found
        if human is not None:
            self._count(human)

    def _count(self, human: Human) -> None:
        if not self._humans.add(int(human.id[1:])):
            self.counts["repeated"] += 1
            return
        self.counts["humans"] += 1
        self.left_out.update(human.left_out)
        for name, usage in human.usages.items():
            self.users[name] += 1
            self.datatypes.setdefault(name, usage.datatype)
        if human.name is None:
            self.counts["unnamed"] += 1
            return
        for name, usage in human.usages.items():
            reservoir = self.pairs.get(name)
            if reservoir is None:
                reservoir = self.pairs[name] = Reservoir(OVERSAMPLING * self.options.counterfactuals)
            for text, entity in usage.values:
                reservoir.offer([human.id, human.name, text, entity], self._rng)
        cohort = self.options.cohort(human.editions)
        facts = {name: list(human.usages[name].values) for name in human.usages if name in properties()}
        if cohort in self.subjects and any(facts.values()):
            self.subjects[cohort].offer([human.id, human.name, human.editions, facts], self._rng)

    def _reject(self, kind: str, number: int) -> None:
        self.rejected[kind] += 1
        lines = self.rejected_lines.setdefault(kind, [])
        if len(lines) < SHOWN_LINES:
            lines.append(number)


class Labels:
    """The second pass: the labels of `wanted` ids in `language`.

    found: label or None by id, of those whose lines have been read.
    """

    def __init__(self, wanted: frozenset[str], language: str, found: Mapping[str, str | None] | None = None) -> None:
        self.found = dict(found or {})
        self._language = language
        self._pending = {identifier.encode() for identifier in wanted.difference(self.found)}

    @property
    def complete(self) -> bool:
        """Whether every id was found."""
        return not self._pending

    def read(self, batch: Batch) -> None:
        """The next lines; rejected ones, which the first pass counts, are passed over."""
        for line in batch.lines:
            match = line and _ENTITY.match(line)
            if line is None or (match and match[1] not in self._pending):
                continue
            try:
                entity = entity_of(line)
                if entity is not None and (identifier := entity["id"].encode()) in self._pending:
                    self.found[entity["id"]] = label_of(entity, self._language)
                    self._pending.remove(identifier)
            except Rejected:
                continue


def wanted_labels(survey: Survey) -> frozenset[str]:
    """The ids of items and units in the values that `survey` drew, of the properties that it kept."""
    kept = set(survey.kept())
    pairs = (pair[3] for name in kept if name in survey.pairs for pair in survey.pairs[name].items)
    people = (person for reservoir in survey.subjects.values() for person in reservoir.items)
    facts = (value[1] for person in people for name in person[3] if name in kept for value in person[3][name])
    return frozenset(entity for entity in chain(pairs, facts) if entity)


def _is_plainly_no_human(line: bytes) -> bool:
    """Whether the bytes of a line show an item, whole at both ends, that nowhere names Q5."""
    return _PLAIN_ITEM.match(line) is not None and _HUMAN not in line and line.endswith((b"},", b"}")) and is_utf8(line)
