"""Whom the records are about, and which clients hold records about whom."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from oblivionis.data.partition import Partition
from oblivionis.data.records import Corpus
from oblivionis.naming import subject_key


@dataclass(frozen=True, slots=True)
class Subject:
    """A person with the ids of all records about them, by the client that holds them (ascending)."""

    name: str
    records: Mapping[int, tuple[str, ...]]

    @property
    def count(self) -> int:
        return sum(len(ids) for ids in self.records.values())


class Subjects:
    """The subjects of a corpus by name; letter case and the width of white space in a name do not matter."""

    def __init__(self, subjects: Iterable[Subject]) -> None:
        self._by_name = {subject_key(subject.name): subject for subject in subjects}

    @classmethod
    def of(cls, corpus: Corpus, partition: Partition) -> Subjects:
        """In the order in which they first occur in the corpus; a name is shown as it is written there first."""
        names: dict[str, str] = {}
        found: dict[str, dict[int, list[str]]] = {}
        for record in corpus.train:
            key = subject_key(record.subject)
            names.setdefault(key, " ".join(record.subject.split()))
            found.setdefault(key, {}).setdefault(partition.holder[record.id], []).append(record.id)
        return cls(Subject(names[k], {c: tuple(ids) for c, ids in sorted(held.items())}) for k, held in found.items())

    def __iter__(self) -> Iterator[Subject]:
        return iter(self._by_name.values())

    def find(self, name: str) -> Subject | None:
        """The subject of that name, None when no record is about it."""
        return self._by_name.get(subject_key(name))

    def unknown(self, name: str) -> str:
        """What is wrong with a name that `find` does not know, with the nearest ones that it does."""
        near = difflib.get_close_matches(subject_key(name), self._by_name, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(self._by_name[k].name for k in near)}?" if near else ""
        return f"no record is about {name!r}; {hint or '`oblivionis data describe --subjects` lists all names'}"
