"""The words of a text in any script, for whatever decides whether a model still recites something.

rouge-score, by which TOFU's published numbers are made, knows a-z and 0-9 alone: two equal texts in Cyrillic have
nothing in common by it. Here a text is cut by Unicode's default word boundaries (UAX #29, by the library `regex`). What
is ASCII in it is cut as rouge-score does, so that on English both give the same.
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
"""Scripts that put no space between words: their words cannot be told without a dictionary, so a grapheme is a unit."""
_POINTS = regex.compile(r"(?<=[\p{Arabic}\p{Hebrew}]\p{Mn}*)\p{Mn}|\u0640")
"""Vowel points of Arabic and Hebrew, which writers leave out at will, and the stretching of Arabic letters."""


def words(text: str) -> tuple[str, ...]:
    """The words of `text` in lower case, in order: graphemes in scripts without spaces; no punctuation, no symbols.

    Compatibility forms (full-width letters, ligatures, composed and decomposed accents) are the same, and so are Arabic
    and Hebrew with and without vowel points.
    """
    if text.isascii():
        return _cut(text.lower())
    return _cut(_POINTS.sub("", unicodedata.normalize("NFKC", text)).casefold())


def words_as_written(text: str) -> tuple[str, ...]:
    """As `words`, in lower case alone: compatibility forms stay what they are, as for whatever does not unify them."""
    return _cut(text.lower())


def _cut(text: str) -> tuple[str, ...]:
    """The words of a text in lower case."""
    if text.isascii():
        return tuple(_ASCII.findall(text))
    return tuple(word for part in _BOUNDARY.split(text) if _MEASURABLE.search(part) for word in _units(part))


def _units(part: str) -> list[str]:
    """The words of what lies between two boundaries."""
    if part.isascii():
        return _ASCII.findall(part)
    if not _WITHOUT_SPACES.search(part):
        return _RUN.findall(part)
    return [grapheme for grapheme in _GRAPHEME.findall(part) if _MEASURABLE.search(grapheme)]
