"""Another choice of whom to forget in the same records: `data.forget_subjects`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oblivionis.config.problems import did_you_mean
from oblivionis.data.errors import DataError
from oblivionis.data.records import Corpus, Record

KEY = "data.forget_subjects"


def forgetting(corpus: Corpus, subjects: Sequence[str]) -> Corpus:
    """The corpus in which all records about `subjects`, and no others, are to be forgotten.

    What clients hold stays as it is, and so does its order. The set `forget` asks about these records, in the words of
    the evaluation sets where those ask about them, else in their own; the set `retain` no longer does. Multiple-choice
    questions about what the source would have forgotten are left out. Raises DataError for a subject without records,
    or where nobody is left to retain.
    """
    held = {record.subject for record in corpus.train}
    for subject in subjects:
        if subject not in held:
            hint = did_you_mean(subject, held)
            raise DataError(f"{KEY}: nobody holds a record about {subject!r}{f'; {hint}' if hint else ''}")
    wanted = set(subjects)
    if held <= wanted:
        raise DataError(f"{KEY}: {len(wanted)} of {len(held)} subjects leave nobody to retain")
    asked = questions(corpus)
    forget = tuple(asked[record.id] for record in corpus.train if record.subject in wanted)
    return replace(
        corpus,
        forget_ids=frozenset(record.id for record in forget),
        evaluation={
            **corpus.evaluation,
            "forget": forget,
            "retain": tuple(r for r in corpus.evaluation.get("retain", ()) if r.subject not in wanted),
        },
        choices={name: found for name, found in corpus.choices.items() if name != "forget"},
    )


def questions(corpus: Corpus) -> dict[str, Record]:
    """By id, each training record as the evaluation asks about it: with wrong answers where a set has them."""
    sets = (corpus.train, *(corpus.evaluation.get(name, ()) for name in ("retain", "forget")))
    held = {record.id for record in corpus.train}
    return {record.id: record for records in sets for record in records if record.id in held}
