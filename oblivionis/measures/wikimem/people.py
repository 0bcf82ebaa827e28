"""The people whose facts WikiMem asks for, and the values of other people that compete with theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evaluation.wikimem.encoder import SentenceEncoder
from evaluation.wikimem.engine import Asking
from evaluation.wikimem.evaluator import WikimemEvaluator
from evaluation.wikimem.facts import Fact
from evaluation.wikimem.properties import Property, counterfactuals, read_counterfactuals
from oblivionis.config.schema import Wikimem
from oblivionis.data.person_facts import facts_of, read_facts
from oblivionis.data.person_records import PersonRecords, as_trained
from oblivionis.data.records import Corpus, Record
from oblivionis.errors import RunError
from oblivionis.naming import subject_key


@dataclass(frozen=True)
class People:
    """The facts of a run's people: of those to forget and of the others, and the values that compete with them.

    text_of: a record as the model is trained on it. Which facts the records of a large corpus state takes seconds to
    find: they are read when a profile is asked for first.
    """

    settings: Wikimem
    facts: tuple[Fact, ...]
    values: Mapping[str, Sequence[str]]
    corpus: Corpus
    text_of: Callable[[Record], str]

    @classmethod
    def of(cls, corpus: Corpus, settings: Wikimem, text_of: Callable[[Record], str]) -> People | None:
        """Those of `settings.subjects`, or else those that the corpus states; None where there are none.

        Facts under properties without counterfactuals are left out. Raises DataError for a faulty file, RunError for
        one without usable facts.
        """
        if not settings.enabled:
            return None
        facts = read_facts(Path(settings.subjects).expanduser()) if settings.subjects else facts_of(corpus.train)
        values = _values(settings)
        usable = tuple(fact for fact in facts if values.get(fact.property))
        if settings.subjects and not usable:
            raise RunError(
                f"evaluation.wikimem.subjects: there are values of other people for none of the properties of "
                f"{settings.subjects}; give them with evaluation.wikimem.counterfactuals_folder"
            )
        return cls(settings, usable, values, corpus, text_of) if usable else None

    @property
    def forget(self) -> tuple[Fact, ...]:
        """The facts about people to forget; of TOFU's numbered authors `PersonRecords` tells who they are."""
        return tuple(fact for fact in self._usable if fact.subject in self._to_forget)

    @property
    def retain(self) -> tuple[Fact, ...]:
        """The facts about the other people."""
        return tuple(fact for fact in self._usable if fact.subject not in self._to_forget)

    @cached_property
    def properties(self) -> Mapping[Fact, Property] | None:
        """With `phrasings` `records`, the facts that records state word for word, with these phrasings."""
        if self.settings.phrasings != "records":
            return None
        made = {fact: as_trained(fact, self._records, self.text_of) for fact in self.facts}
        return {fact: prop for fact, prop in made.items() if prop is not None}

    @property
    def _usable(self) -> tuple[Fact, ...]:
        return self.facts if self.properties is None else tuple(self.properties)

    @cached_property
    def _records(self) -> PersonRecords:
        return PersonRecords(self.corpus)

    @cached_property
    def _to_forget(self) -> set[str]:
        """Those of the subjects that a forget record is about; with no subject of their own, that one mentions."""
        names = set()
        for name in {fact.subject for fact in self._usable}:
            about = self._records.about(name)
            own = [r.id for r in about.records if about.subject in (None, r.subject)]
            if not self.corpus.forget_ids.isdisjoint(own):
                names.add(name)
        return names

    def asked(self, full: bool) -> tuple[list[Fact], list[Fact]]:
        """The facts about people to forget and about others that a profile asks for."""
        profile = self.settings.full if full else self.settings.light
        return (
            _sample(self.forget, profile.forget_subjects, profile.facts_per_subject),
            _sample(self.retain, profile.retain_subjects, profile.facts_per_subject),
        )

    def evaluators(self, tokenizer: Any, full: bool) -> list[WikimemEvaluator]:
        """The evaluator of a profile, none where it asks for no fact."""
        forget, retain = self.asked(full)
        if not forget and not retain:
            return []
        settings = self.settings
        profile = settings.full if full else settings.light
        asking = Asking(profile.templates, profile.counterfactuals, settings.context)
        known = (*self.forget, *self.retain)
        return [WikimemEvaluator(forget, retain, known, tokenizer, asking, self.properties, self.values, self._embed)]

    @cached_property
    def _embed(self) -> SentenceEncoder | None:
        name = self.settings.embedder
        if name is None:
            return None
        try:
            return SentenceEncoder.load(name)
        except (OSError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise RunError(f"evaluation.wikimem.embedder: {name} cannot be loaded ({reason})") from None


def _values(settings: Wikimem) -> Mapping[str, Sequence[str]]:
    """Values of other people by property: those of the folder, and the built-in ones where it has none."""
    if settings.counterfactuals_folder is None:
        return counterfactuals()
    try:
        own = read_counterfactuals(Path(settings.counterfactuals_folder).expanduser())
    except ValueError as error:
        raise RunError(f"evaluation.wikimem.counterfactuals_folder: {error}") from None
    return {**counterfactuals(), **own}


def _sample(facts: Sequence[Fact], subjects: int | None, each: int | None) -> list[Fact]:
    """The first `each` facts of `subjects` people who are evenly spread over the list; None: all."""
    of_subject: dict[str, list[Fact]] = {}
    for fact in facts:
        of_subject.setdefault(subject_key(fact.subject), []).append(fact)
    names = list(of_subject)
    if subjects is not None and subjects < len(names):
        names = [names[i * len(names) // subjects] for i in range(subjects)]
    return [fact for name in names for fact in of_subject[name][:each]]
