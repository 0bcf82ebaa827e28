"""What a line of a run's ledger must be, whoever wrote it, and the numbers that a client told with its reply."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from strategies.metric_schema import UNLEARN
from strategies.rounds.request_source import SCOPES

TOLD = "told"
"""Key of the numbers that a client told, in a line `served`; in `submitted` the client's own id of the request."""
OWN = frozenset(("event", "id", "client", "scope", "subject", "time", "prev", "hash"))
"""Fields of a line that no caller may give."""


def reported_numbers(entry: Mapping[str, Any]) -> Mapping[str, float]:
    """What a client told in a line `served`, also where they stand beside the line's own fields, as they once did."""
    nested = entry.get(TOLD)
    found = nested if isinstance(nested, Mapping) else {name: entry[name] for name in UNLEARN if name in entry}
    return {name: value for name, value in found.items() if name in UNLEARN and _number(value)}


def line_fault(entry: Mapping[str, Any]) -> str:
    """What is wrong with the fields of a line, empty if nothing is. Fields that are unknown are nobody's business."""
    if not isinstance(entry.get("event"), str):
        return f"event is {_shown(entry.get('event'))}, expected a text"
    for name, (fits, expected) in _FIELDS.items():
        if name in entry and not fits(entry[name]):
            return f"{name} is {_shown(entry[name])}, expected {expected}"
    needed = _NEEDED.get(entry["event"], ()) if "id" not in entry or entry["event"] == "submitted" else ()
    needed = (*(("client", "time") if "id" in entry else ()), *needed)
    return next((f"{name} is missing" for name in needed if name not in entry), "")


def _text(value: object) -> bool:
    return isinstance(value, str)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _commitment(item: tuple[str, object]) -> bool:
    client, commitment = item
    return client.isdecimal() and isinstance(commitment, str) and re.fullmatch("[0-9a-f]{64}", commitment) is not None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


_NEEDED = {
    "submitted": ("round", "record_ids"),
    "acknowledged": ("client", "lines"),
    "cover_exchange": ("round", "session", "commitments", "survivors", "before", "after", "count"),
    "cover_failed": ("round", "session", "commitments"),
    "cover_undone": ("round", "session", "of"),
    "barrier": ("round", "version", "discarded"),
}
_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "id": (lambda v: _text(v) and bool(v), "a text"),
    "client": (_count, "a whole number"),
    "round": (_count, "a whole number"),
    "count": (_count, "a whole number"),
    "already": (_count, "a whole number"),
    "version": (_count, "a whole number"),
    "discarded": (_count, "a whole number"),
    "attempts": (_count, "a whole number"),
    "time": (lambda v: _number(v) and 0 <= v < 1e11, "seconds since 1970"),
    "scope": (lambda v: v in SCOPES, f"one of {', '.join(SCOPES)}"),
    "subject": (_text, "a text"),
    "group": (_text, "a text"),
    "reason": (_text, "a text"),
    "outcome": (_text, "a text"),
    "why": (_text, "a text"),
    "before": (_text, "a text"),
    "after": (_text, "a text"),
    "rouge": (lambda v: v is None or _number(v), "a number"),
    "limit": (lambda v: v is None or _number(v), "a number"),
    "record_ids": (_texts, "a list of texts"),
    "covered": (_texts, "a list of texts"),
    "lines": (_texts, "a list of texts"),
    "records": (lambda v: isinstance(v, dict) and all(map(_count, v.values())), "whole numbers by name"),
    "session": (_text, "a text"),
    "commitments": (lambda v: isinstance(v, dict) and all(map(_commitment, v.items())), "a SHA-256 by client"),
    "survivors": (lambda v: isinstance(v, list) and all(map(_count, v)), "a list of whole numbers"),
    "of": (_text, "a text"),
    "stage": (_text, "a text"),
    "config": (_text, "a text"),
    "files": (lambda v: isinstance(v, dict) and all(map(_text, v.values())), "texts by name"),
    "models": (lambda v: isinstance(v, dict) and all(map(_text, v.values())), "texts by name"),
    "prev": (_text, "a text"),
    "hash": (_text, "a text"),
    TOLD: (lambda v: _text(v) or (isinstance(v, dict) and all(map(_number, v.values()))), "a text, or numbers by name"),
}
