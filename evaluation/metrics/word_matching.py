"""Words of a text in any script, for measures of whether a model still recites something.

rouge-score, by which TOFU's published numbers are made, knows a-z and 0-9 alone: two equal texts in Cyrillic have
nothing in common by it. Here a text is split at Unicode's default word boundaries (UAX #29, by the library `regex`).
ASCII is split as rouge-score does, so that on English both give the same. Invisible characters are left out: a text
with a zero-width joiner after each letter says what it says without them.
"""

from __future__ import annotations

import unicodedata

import regex

_ASCII = regex.compile(r"[a-z0-9]+")
_BOUNDARY = regex.compile(r"\b", flags=regex.WORD | regex.VERSION1)
_MEASURABLE = regex.compile(r"[\p{L}\p{N}]")
_RUN = regex.compile(r"[\p{L}\p{M}\p{N}]+")
_GRAPHEME = regex.compile(r"\X")
_WITHOUT_SPACES = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Yi}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}\p{Javanese}"
    r"\p{Balinese}\p{Tai_Le}\p{New_Tai_Lue}\p{Tai_Tham}]"
)
"""Scripts without spaces between words: as their words need a dictionary, a grapheme is the unit."""
_POINTS = regex.compile(r"(?<=[\p{Arabic}\p{Hebrew}]\p{Mn}*)\p{Mn}|\u0640")
"""Vowel points of Arabic and Hebrew, which writers leave out at will, and the stretching of Arabic letters."""
_BLANK = regex.compile(r"[\u115f\u1160\u3164\uffa0]")
"""Fillers of Hangul: letters by their properties, shown as blanks."""
_UNSEEN = regex.compile(r"\p{Default_Ignorable_Code_Point}")
"""Joiners, direction marks, soft hyphens, variation selectors and the like."""


def visible(text: str) -> str:
    """A text as a reader sees it: without invisible characters, and with spaces for those that show as a blank.

    Parameters
    ----------
    text : str

    Returns
    -------
    str
    """
    return text if text.isascii() else _UNSEEN.sub("", _BLANK.sub(" ", text))


def folded(text: str) -> str:
    """A text in a normal form that is equal for texts of the same words.

    As NFKC_Casefold (Unicode, section 3.13): letter case, compatibility forms (full-width letters, ligatures, composed
    and decomposed accents) and what is not `visible` do not matter. In addition, Arabic and Hebrew are without vowel
    points and stretching.

    Parameters
    ----------
    text : str

    Returns
    -------
    str
    """
    if text.isascii():
        return text.lower()
    plain = _POINTS.sub("", unicodedata.normalize("NFKC", visible(text)))
    return unicodedata.normalize("NFKC", plain.casefold())


def words(text: str) -> tuple[str, ...]:
    """Words of a text, `folded`; single graphemes in scripts without spaces.

    Parameters
    ----------
    text : str

    Returns
    -------
    tuple of str
        In order, without punctuation and symbols.
    """
    return _cut(folded(text))


def words_as_written(text: str) -> tuple[str, ...]:
    """As `words`, but only lower-cased: compatibility forms stay what they are.

    Parameters
    ----------
    text : str

    Returns
    -------
    tuple of str
    """
    return _cut(text.lower())


def _cut(text: str) -> tuple[str, ...]:
    """The words of a lower-cased text."""
    if text.isascii():
        return tuple(_ASCII.findall(text))
    return tuple(word for part in _BOUNDARY.split(text) if _MEASURABLE.search(part) for word in _units(part))


def _units(part: str) -> list[str]:
    """The words between two boundaries."""
    if part.isascii():
        return _ASCII.findall(part)
    if not _WITHOUT_SPACES.search(part):
        return _RUN.findall(part)
    return [grapheme for grapheme in _GRAPHEME.findall(part) if _MEASURABLE.search(grapheme)]
