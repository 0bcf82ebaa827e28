"""Which training records are about a person, and which of them state a given fact.

A record is about a person when it has the person's name as its subject, or mentions it: the whole name, between word
boundaries. Some corpora number their subjects instead of naming them (TOFU's `author-000`); the person is then the
subject that most of the records with the name belong to, and all records of that subject are about the person.

A record with triples states a fact when one of its triples does. Without triples it must contain a value:

- as whole words, in any letter case and with any white space between them; of a date the words in any order, 8th for 8;
- or, for a value of at least `FUZZY_FROM` characters, nearly so: from the beginning of a word, with a partial ratio
  (rapidfuzz) of at least `LEAST_SIMILARITY`, and with all numbers of the value in the text.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

from rapidfuzz import fuzz

from evaluation.wikimem.canaries import SUBJECT, VALUE
from evaluation.wikimem.facts import Fact
from evaluation.wikimem.properties import Property, properties
from oblivionis.data.person_facts import PROPERTY_OF
from oblivionis.data.records import Corpus, Record
from oblivionis.naming import subject_key

FUZZY_FROM = 5
LEAST_SIMILARITY = 90.0
_NUMBER = re.compile(r"\d+")
_ORDINAL = re.compile(r"(\d)(?:st|nd|rd|th)\b")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class About:
    """The records about a person, in the order of the corpus.

    subject: the subject of the corpus that the person is, None where that is ambiguous; named: how many of the
    records have the name in their text.
    """

    subject: str | None
    records: tuple[Record, ...]
    named: int


class PersonRecords:
    """Finds people in the training records of a corpus, whose texts are prepared once.

    A name is searched for only where its rarest word stands: a corpus of thousands of people is not read for each.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._records = corpus.train
        self._texts = [subject_key(f"{record.question} {record.answer}") for record in corpus.train]
        self._subjects = [subject_key(record.subject) for record in corpus.train]
        self._of_subject: dict[str, list[int]] = {}
        self._with_word: dict[str, list[int]] = {}
        for place, (text, subject) in enumerate(zip(self._texts, self._subjects, strict=True)):
            self._of_subject.setdefault(subject, []).append(place)
            for word in set(_WORD.findall(text)):
                self._with_word.setdefault(word, []).append(place)
        self._known: dict[str, About] = {}

    def about(self, name: str) -> About:
        """The records about `name`."""
        key = subject_key(name)
        if key not in self._known:
            self._known[key] = self._about(key)
        return self._known[key]

    def _about(self, key: str) -> About:
        words = set(_WORD.findall(key))
        places = min((self._with_word.get(word, []) for word in words), key=len, default=range(len(self._texts)))
        mentions = {i for i in places if _has_words(key, self._texts[i])}
        own = key if key in self._of_subject else self._subject_of(mentions)
        of_own = self._of_subject.get(own, []) if own is not None else []
        found = sorted(mentions.union(of_own))
        subject = next((self._records[i].subject for i in found if self._subjects[i] == own), None)
        return About(subject, tuple(self._records[i] for i in found), len(mentions))

    def _subject_of(self, mentions: set[int]) -> str | None:
        """The subject of more than half of these records."""
        for subject, count in Counter(self._subjects[i] for i in mentions).most_common(1):
            if 2 * count > len(mentions):
                return subject
        return None


def states(record: Record, name: str, prop: str, values: tuple[str, ...]) -> bool:
    """Whether a record about the person `name` states one of the `values` of `property` (an id such as P19)."""
    if record.triples:
        wanted = {subject_key(value) for value in values}
        return any(
            subject_key(t.subject) == subject_key(name)
            and PROPERTY_OF.get(t.property) == prop
            and subject_key(t.value) in wanted
            for t in record.triples
        )
    text = f"{record.question} {record.answer}"
    is_date = prop in properties() and properties()[prop].kind == "date"
    return any(contains(text, value, any_order=is_date) for value in values)


def as_canary(text: str, name: str, values: tuple[str, ...]) -> str | None:
    """`text` with placeholders for the name and for the first of the `values` that it contains word for word.

    None where the text contains no name, or none of the values.
    """
    canary = _with(SUBJECT, text, _places(name, text))
    if canary is None:
        return None
    found = (_with(VALUE, canary, islice(_places(value, canary), 1)) for value in values)
    return next((changed for changed in found if changed is not None), None)


def as_trained(fact: Fact, records: PersonRecords, text_of: Callable[[Record], str]) -> Property | None:
    """The property of `fact` with canaries made from the records that state it, each text once; None without any.

    text_of: a record as the model was trained on it. The kind is neutral: the records' own words need no article.
    """
    found = [
        as_canary(text_of(record), fact.subject, fact.values)
        for record in records.about(fact.subject).records
        if states(record, fact.subject, fact.property, fact.values)
    ]
    texts = list(dict.fromkeys(text for text in found if text is not None))
    if not texts:
        return None
    return replace(properties()[fact.property], base=texts[0], paraphrases=tuple(texts[1:]), kind="name")


def contains(text: str, value: str, *, any_order: bool = False) -> bool:
    """Whether `text` contains `value`, exactly or nearly, as the module says; `any_order`: its words in any order."""
    text, value = subject_key(text), subject_key(value)
    if any_order:
        words, others = (set(_WORD.findall(_ORDINAL.sub(r"\1", part))) for part in (value, text))
        return bool(words) and words <= others
    if _has_words(value, text):
        return True
    if not FUZZY_FROM <= len(value) <= len(text) or not set(_NUMBER.findall(value)) <= set(_NUMBER.findall(text)):
        return False
    found = fuzz.partial_ratio_alignment(value, text, score_cutoff=LEAST_SIMILARITY)
    return found is not None and _begins_a_word(text, found.dest_start)


def _places(words: str, text: str) -> Iterator[tuple[int, int]]:
    """Where `words` stand in `text` between word boundaries, in any letter case and with any white space between them.

    ASCII is searched without a pattern: compiling one for each of a run's thousands of names and values takes longer.
    """
    parts = words.lower().split()
    if not (parts and words.isascii() and text.isascii()):
        yield from (match.span() for match in _whole(words).finditer(text))
        return
    lower, begin = text.lower(), 0
    while (begin := lower.find(parts[0], begin)) >= 0:
        *before, rest = lower[begin:].split(None, len(parts) - 1)
        end = len(lower) - len(rest) + len(parts[-1])
        if before == parts[:-1] and rest.startswith(parts[-1]) and _is_bounded(begin, end, lower):
            yield begin, end
            begin = end
        else:
            begin += 1


@functools.lru_cache(maxsize=256)
def _whole(words: str) -> re.Pattern[str]:
    spaced = r"\s+".join(map(re.escape, words.split()))
    return re.compile(rf"(?<!\w){spaced}(?!\w)", re.IGNORECASE)


def _with(sign: str, text: str, places: Iterable[tuple[int, int]]) -> str | None:
    """`text` with a sign at these places; None without any."""
    cuts = [0, *chain(*places), len(text)]
    return sign.join(text[i:j] for i, j in zip(cuts[::2], cuts[1::2], strict=True)) if len(cuts) > 2 else None


def _has_words(value: str, text: str) -> bool:
    place = text.find(value)
    while place >= 0 and not _is_bounded(place, place + len(value), text):
        place = text.find(value, place + 1)
    return place >= 0


def _is_bounded(begin: int, end: int, text: str) -> bool:
    """Whether no word goes on before or after this part of `text`."""
    beside = text[max(begin - 1, 0) : begin] + text[end : end + 1]
    return not any(sign.isalnum() or sign == "_" for sign in beside)


def _begins_a_word(text: str, place: int) -> bool:
    return place == 0 or not (text[place - 1].isalnum() and text[place].isalnum())
