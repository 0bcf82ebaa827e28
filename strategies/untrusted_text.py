"""Sanitises text from others: control characters and escape sequences are removed where the text enters."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 500
"""Most characters that are kept of a text from others."""

_SEQUENCES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    "|(?:\x1b[\\]P^_X]|[\x9d\x90\x9e\x9f\x98])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)?"  # OSC, DCS, PM, APC, SOS
    "|\x1b[ -/]*[0-~]?"  # all other escapes
)
_JOINERS = "\u200c\u200d"
"""Joiners, without which words of some scripts are misspelt."""
_OBEYED = ("Cc", "Cs", "Zl", "Zp")
"""Unicode categories that become spaces: control characters, lone surrogates, line and paragraph separators."""


def plain(text: str) -> str:
    """Sanitise a text.

    Parameters
    ----------
    text : str

    Returns
    -------
    str
        In one line, without escape sequences, control characters, lone surrogates and invisible marks.
    """
    if text.isprintable():
        return " ".join(text.split())
    return " ".join("".join(map(_shown, _SEQUENCES.sub("", text))).split())


def clean(text: str, longest: int = LONGEST) -> str:
    """Sanitise and truncate a text.

    Parameters
    ----------
    text : str
    longest : int
        Most characters that are kept; the last is `…` where it was truncated.

    Returns
    -------
    str
        As `plain`.
    """
    shown = plain(text[: 8 * longest])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def _shown(character: str) -> str:
    """A character, or what stands in its place."""
    kind = unicodedata.category(character)
    if kind == "Cf" and character not in _JOINERS:
        return ""
    return " " if kind in _OBEYED else character
