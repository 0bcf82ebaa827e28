"""Names that look like a given one but belong to no person: S(h) of WikiMem, section 5.

How a variant is made ("Jane Doe" gives "Enaj Doe" and "Jane Eod"):

- A name is read in Unicode's NFC form and split at white space into words, a word at hyphens, apostrophes and other
  characters that are no letters into runs of letters. A letter with the marks upon it is one unit, in any script.
- One word at a time is turned: its runs are reversed in place ("Jean-Luc" gives "Naej-Cul"). A run that began with a
  capital does so again and goes on in small letters, one of capitals only stays so; scripts without case are left.
- First the first word is turned, then the last, then those between from left to right. Initials, generational suffixes
  (Jr., III) and particles in small letters (van, de) are turned only when nothing else is left.
- When that does not give enough, words are turned together (all of them), and then the letters of each word, in the
  same order, are rotated instead of reversed, by one, two, ... places ("Pele" gives "Elep", then "Elep" again, which is
  passed over, then "Lepe").

No variant equals the name or another variant, letter case aside. Nothing is random.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from functools import partial

VARIANTS = 2
_SUFFIXES = frozenset({"jr", "sr", "ii", "iii", "iv", "v"})
_JOINERS = "‌‍"

Turn = Callable[[list[str]], list[str]]


def name_variants(name: str, count: int = VARIANTS) -> tuple[str, ...]:
    """Look-alikes of a name, the same on every call.

    Parameters
    ----------
    name : str
    count : int, at least 1

    Returns
    -------
    tuple of str
        At most `count`; fewer where the name's letters allow no more.

    Raises
    ------
    ValueError
        For a name that has no look-alike (no two different letters in any word), or a count out of range.
    """
    if count < 1:
        raise ValueError(f"count is {count}; expected at least 1")
    words = unicodedata.normalize("NFC", name).split()
    seen = {" ".join(words).casefold()}
    found: list[str] = []
    for variant in _all_variants(words):
        if len(found) == count:
            break
        if variant.casefold() not in seen:
            seen.add(variant.casefold())
            found.append(variant)
    if not found:
        raise ValueError(f"the name {name!r} has no look-alike: expected a word with two different letters")
    return tuple(found)


def _all_variants(words: list[str]) -> Iterator[str]:
    """All variants in order, some of them more than once."""
    order = _order(words)
    for index in order:
        yield _turned(words, [index], _reverse)
    yield _turned(words, order, _reverse)
    longest = max((len(_units(word)) for word in words), default=0)
    for places in range(1, longest):
        for index in order:
            yield _turned(words, [index], partial(_rotate, places))


def _order(words: list[str]) -> list[int]:
    """Indices of the words in the order in which they are turned."""
    main = [i for i, word in enumerate(words) if not _minor(word)]
    rest = [i for i in range(len(words)) if i not in main]
    if len(main) > 2:
        main = [main[0], main[-1], *main[1:-1]]
    return main + rest


def _minor(word: str) -> bool:
    """Whether a word is an initial, a suffix or a particle."""
    letters = "".join(c for c in word if c.isalpha())
    particle = letters.islower()
    return particle or len(letters) < 2 or letters.casefold() in _SUFFIXES


def _turned(words: list[str], indices: list[int], turn: Turn) -> str:
    """The name with these words turned."""
    return " ".join(_turned_word(word, turn) if i in indices else word for i, word in enumerate(words))


def _turned_word(word: str, turn: Turn) -> str:
    """A word with each of its runs of letters turned."""
    turned: list[str] = []
    run: list[str] = []
    for unit in [*_units(word), ""]:
        if unit[:1].isalpha():
            run.append(unit)
            continue
        turned += [_with_case_of("".join(run), "".join(turn(run))) if run else "", unit]
        run = []
    return "".join(turned)


def _units(word: str) -> list[str]:
    """The units of a word: every character with the marks and joiners that follow it."""
    units: list[str] = []
    for character in word:
        attached = unicodedata.category(character).startswith("M") or character in _JOINERS
        if attached and units:
            units[-1] += character
        else:
            units.append(character)
    return units


def _with_case_of(model: str, text: str) -> str:
    """`text` with the case of `model`."""
    if len(model) > 1 and model.isupper():
        return text
    if model[:1].isupper() or model[:1].istitle():
        return text[:1].upper() + text[1:].lower()
    return text


def _reverse(run: list[str]) -> list[str]:
    """The letters in reverse."""
    return run[::-1]


def _rotate(places: int, run: list[str]) -> list[str]:
    """The letters rotated."""
    places %= len(run)
    return run[places:] + run[:places]
