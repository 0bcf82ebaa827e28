"""What tells texts and numbers of several runs apart."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence

import htpy as h

from evaluation.metrics.catalogue import Metric

MOST_WORDS = 600
"""Longer texts are not compared word by word: it takes the square of their length."""
SAME, ADDED, MISSING = "same", "added", "missing"
_WORDS = re.compile(r"\S+")


def word_differences(reference: str, text: str) -> list[tuple[str, str]]:
    """How `text` differs from `reference`, in its order: words that are the same, added, or missing.

    Neighbours of a kind come together, with one space between words.
    """
    old, new = _WORDS.findall(reference), _WORDS.findall(text)
    if max(len(old), len(new)) > MOST_WORDS:
        return [(SAME if old == new else ADDED, " ".join(new))]
    found: list[tuple[str, str]] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            found.append((SAME, " ".join(old[i:j])))
            continue
        found += [(MISSING, " ".join(old[i:j]))] if i < j else []
        found += [(ADDED, " ".join(new[k:m]))] if k < m else []
    return found


def marked(reference: str, text: str) -> h.Node:
    """`text` with its differences from `reference` marked."""
    elements = {ADDED: h.ins, MISSING: h.del_}
    parts = [elements[kind][words] if kind in elements else words for kind, words in word_differences(reference, text)]
    return [[" " if i else "", part] for i, part in enumerate(parts)] or "(empty)"


def setting_differences(settings: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The keys whose values are not the same everywhere, with those values; a dash where a key is not there."""
    keys = dict.fromkeys(key for one in settings for key in one)
    rows = {key: [one.get(key, "–") for one in settings] for key in keys}
    return {key: row for key, row in rows.items() if len(set(row)) > 1}


def best_of(metric: Metric | None, values: Sequence[float | None], oracles: Sequence[float | None]) -> frozenset[int]:
    """Places of the best values: the highest, the lowest, or those nearest the retrained model of their own run.

    Empty where no value is better, where there is nothing to compare, and where all are equally good.
    """
    if metric is None or metric.direction is None:
        return frozenset()
    badness: dict[int, float] = {}
    for place, (value, oracle) in enumerate(zip(values, oracles, strict=True)):
        if value is None or not math.isfinite(value):
            continue
        if metric.direction != "oracle":
            badness[place] = -value if metric.direction == "higher" else value
        elif oracle is not None and math.isfinite(oracle):
            badness[place] = abs(value - oracle)
    if len(badness) < 2 or len(set(badness.values())) < 2:
        return frozenset()
    least = min(badness.values())
    return frozenset(place for place, bad in badness.items() if bad == least)
