"""Which records a model can be asked to recite so that the recitation says something."""

from __future__ import annotations

from collections.abc import Iterable

from evaluation.metrics.words import words
from oblivionis.data.records import Record

LEAST_UNITS = 3
"""Words (in scripts without spaces: graphemes) that an answer needs; fewer are said by chance."""


def unmeasurable(records: Iterable[Record]) -> list[str]:
    """The ids of the records whose answers have fewer than `LEAST_UNITS` measurable units."""
    return [record.id for record in records if len(words(record.answer)) < LEAST_UNITS]
