"""Whom the records are about, and which clients hold records about whom."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from oblivionis.data.partition import Partition
from oblivionis.data.records import Corpus, Record
from oblivionis.data.similar_names import Texts, look_alike, same_letters
from oblivionis.naming import subject_key


@dataclass(frozen=True, slots=True)
class Subject:
    """A person with the ids of all records about them, by the client that holds them (ascending)."""

    name: str
    records: Mapping[int, tuple[str, ...]]

    @property
    def count(self) -> int:
        return sum(len(ids) for ids in self.records.values())


@dataclass(frozen=True, slots=True)
class Alike:
    """A record that is not about a person for certain, but may be; how: what of it is named alike, in words."""

    client: int
    record_id: str
    how: str


class Subjects:
    """The subjects of records by name, where names of one `subject_key` are one name.

    held: each record with the client that holds it.
    """

    def __init__(self, held: Iterable[tuple[int, Record]]) -> None:
        self._held: Sequence[tuple[int, Record]] = tuple(held)
        self._keys = [subject_key(record.subject) for _, record in self._held]

    @classmethod
    def of(cls, corpus: Corpus, partition: Partition) -> Subjects:
        """Those of a corpus, in the order in which they first occur in it."""
        return cls((partition.holder[record.id], record) for record in corpus.train)

    @cached_property
    def _by_key(self) -> Mapping[str, Subject]:
        """A name is shown as it is written first."""
        names: dict[str, str] = {}
        found: dict[str, dict[int, list[str]]] = {}
        for key, (client, record) in zip(self._keys, self._held, strict=True):
            names.setdefault(key, " ".join(record.subject.split()))
            found.setdefault(key, {}).setdefault(client, []).append(record.id)
        return {k: Subject(names[k], {c: tuple(ids) for c, ids in sorted(held.items())}) for k, held in found.items()}

    @cached_property
    def _texts(self) -> Texts:
        return Texts([record for _, record in self._held])

    def __iter__(self) -> Iterator[Subject]:
        return iter(self._by_key.values())

    def find(self, name: str) -> Subject | None:
        """The subject of that name, None when no record is about it."""
        return self._by_key.get(subject_key(name))

    def alike(self, name: str) -> list[Alike]:
        """The records that `find` leaves out and that may be about the person all the same, in order.

        Their subject looks like the name, or their text names the person (`oblivionis.data.similar_names`).
        """
        key, named, near = subject_key(name), self._texts.naming(name), dict[str, bool]()
        found = []
        for place, (client, record) in enumerate(self._held):
            if (subject := self._keys[place]) == key:
                continue
            if record.subject != record.id and subject not in near:
                near[subject] = look_alike(name, record.subject)
            if near.get(subject):
                found.append(Alike(client, record.id, _called(record.subject, name)))
            elif place in named:
                found.append(Alike(client, record.id, "in its text"))
        return found

    def unknown(self, name: str) -> str:
        """What is wrong with a name that `find` does not know, with the nearest ones that it does."""
        near = difflib.get_close_matches(subject_key(name), self._by_key, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(self._by_key[k].name for k in near)}?" if near else ""
        return f"no record is about {name!r}; {hint or '`oblivionis data describe --subjects` lists all names'}"


def _called(subject: str, name: str) -> str:
    """A subject that looks like a name, in words; other letters than the name's are spelled out."""
    said = f"subject {' '.join(subject.split())!r}"
    return said if same_letters(name, subject) else f"{said}, in other letters: {subject!a}"
