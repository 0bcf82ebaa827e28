"""Names that look like another: what `subject_key` tells apart, and a reader may not.

Two words look alike where they have the same skeleton (UTS #39, by the library confusable-homoglyphs) in small or in
capital letters, marks left aside: "Маra", written in Cyrillic at first, and "Mara", "İpek" and "IPEK", "Γιώργος" and
"ΓΙΩΡΓΟΣ". Names look alike where their words do, in any order and cut in any way, or where all words of the one are
among those of the other: "Voss, Mara", "Dr. Mara Voss", "Mara". A misspelt or declined name is another name.
"""

from __future__ import annotations

import functools
import itertools
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from evaluation.metrics.word_matching import words
from oblivionis.data.records import Record
from oblivionis.naming import subject_key


def skeleton(text: str) -> str:
    """The skeleton of UTS #39, section 4, without combining marks: equal for texts that look alike."""
    prototypes = _prototypes()
    plain = (prototypes.get(c, c) for c in _unmarked(text))
    return _unmarked("".join(plain))


def _unmarked(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))


@functools.cache
def _prototypes() -> Mapping[str, str]:
    """By character what it looks like, from Unicode's confusables.txt.

    The library has each pair in both directions, with marks of direction around what is written from right to left. A
    character of several others, or of other than one character, is the prototype; of two single ones either may be.
    """
    from confusable_homoglyphs.confusables import confusables_data

    near: dict[str, set[str]] = {}
    for text, others in confusables_data.items():
        near.setdefault(text.strip("\u200e"), set()).update(other["c"].strip("\u200e") for other in others)
    found = {}
    for text, others in near.items():
        if len(text) == len(others) == 1:
            (other,) = others
            found[text] = min(text, other) if len(other) == len(near[other]) == 1 else other
    return found


@functools.lru_cache(maxsize=1 << 16)
def _forms(word: str) -> tuple[str, str]:
    return skeleton(word), skeleton(word.upper())


def _written(text: str) -> list[tuple[str, ...]]:
    """The words of a text as skeletons, once in small and once in capital letters."""
    forms = [_forms(word) for word in words(subject_key(text))]
    return [tuple(form[i] for form in forms) for i in (0, 1)]


def look_alike(name: str, other: str) -> bool:
    """Whether two names look alike, or one may be the other's longer form."""
    return any(
        bool(a and b) and (set(a) <= set(b) or set(b) <= set(a) or "".join(a) == "".join(b))
        for a, b in zip(_written(name), _written(other), strict=True)
    )


def same_letters(name: str, other: str) -> bool:
    """Whether the words of one name are those of the other, or among them, and do not only look like them."""
    a, b = (set(words(subject_key(text))) for text in (name, other))
    return a <= b or b <= a


class Texts:
    """The texts of records, by their words: question and answer of each."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._texts: list[list[tuple[str, ...]]] = [_written(f"{r.question} {r.answer}") for r in records]
        self._with_word: tuple[dict[str, set[int]], ...] = ({}, {})
        for place, written in enumerate(self._texts):
            for index, text in zip(self._with_word, written, strict=True):
                for word in set(text):
                    index.setdefault(word, set()).add(place)

    def naming(self, name: str) -> set[int]:
        """The places of the records whose text has the words of a name, or what looks like them, side by side."""
        found = set[int]()
        for form, wanted in enumerate(_written(name)):
            index, whole = self._with_word[form], "".join(wanted)
            if not wanted:
                continue
            together = set.intersection(*(index.get(word, set()) for word in wanted))
            starts = (index.get(whole[:end], set()) for end in range(1, len(whole) + 1))
            for place in together.union(*starts) - found:
                text = self._texts[place][form]
                if _side_by_side(wanted, text) or _in_a_row(whole, text):
                    found.add(place)
        return found


def _side_by_side(wanted: tuple[str, ...], text: tuple[str, ...]) -> bool:
    """Whether the words stand next to each other, in any order."""
    size, ordered = len(wanted), sorted(wanted)
    return any(sorted(text[i : i + size]) == ordered for i in range(len(text) - size + 1) if text[i] in wanted)


def _in_a_row(whole: str, text: tuple[str, ...]) -> bool:
    """Whether words one after another make up `whole`, wherever it is cut."""
    return any(whole in _growing(text, i, len(whole)) for i, word in enumerate(text) if whole.startswith(word))


def _growing(text: tuple[str, ...], start: int, length: int) -> Iterator[str]:
    return itertools.takewhile(lambda grown: len(grown) <= length, itertools.accumulate(text[start:]))
