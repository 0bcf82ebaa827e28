"""Another choice of what to forget in the same records: `data.forget_subjects` and `data.forget_twins`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from oblivionis.config.problems import did_you_mean
from oblivionis.data.errors import DataError
from oblivionis.data.records import Corpus, Record
from oblivionis.data.twins import with_twins

KEY = "data.forget_subjects"


def forgetting(corpus: Corpus, subjects: Sequence[str]) -> Corpus:
    """The corpus in which all records about `subjects`, and no others, are to be forgotten.

    Multiple-choice questions about what the source would have forgotten are left out. Raises DataError for a subject
    without records, or if no subject is left to retain.
    """
    held = {record.subject for record in corpus.train}
    for subject in subjects:
        if subject not in held:
            hint = did_you_mean(subject, held)
            raise DataError(f"{KEY}: nobody holds a record about {subject!r}{f'; {hint}' if hint else ''}")
    wanted = set(subjects)
    if held <= wanted:
        raise DataError(f"{KEY}: {len(wanted)} of {len(held)} subjects leave nobody to retain")
    chosen = _forgetting_ids(corpus, {record.id for record in corpus.train if record.subject in wanted})
    return replace(chosen, choices={name: found for name, found in corpus.choices.items() if name != "forget"})


def forgetting_twins(corpus: Corpus) -> Corpus:
    """The corpus in which the twins of what is to be forgotten (`oblivionis.data.twins`) are to be forgotten, too.

    Raises DataError where nothing is left to retain.
    """
    ids = with_twins(corpus.forget_ids, corpus.train)
    if len(ids) == len(corpus.train):
        raise DataError("data.forget_twins: the records to forget and their twins leave nothing to retain")
    asked = corpus.evaluation.get("forget", ())
    return corpus if ids == corpus.forget_ids else _forgetting_ids(corpus, ids, asked)


def _forgetting_ids(corpus: Corpus, ids: Collection[str], first: Sequence[Record] = ()) -> Corpus:
    """The corpus in which these records are to be forgotten; the set `forget` begins with the questions `first`.

    What clients hold stays as it is, and so does its order. The set `forget` asks about these records, in the words of
    the evaluation sets where those ask about them, else in their own; the set `retain` no longer does. Of texts the
    questions stay what they are.
    """
    if corpus.is_text:
        return replace(corpus, forget_ids=frozenset(ids))
    asked, subjects = questions(corpus), {record.subject for record in corpus.train if record.id in ids}
    held, asked_first = {record.id for record in corpus.train}, {record.id for record in first}
    sets = {
        "forget": (*first, *(asked[r.id] for r in corpus.train if r.id in ids and r.id not in asked_first)),
        "retain": tuple(
            r
            for r in corpus.evaluation.get("retain", ())
            if r.id not in ids and (r.id in held or r.subject not in subjects)
        ),
    }
    return replace(corpus, forget_ids=frozenset(ids), evaluation={**corpus.evaluation, **sets})


def questions(corpus: Corpus) -> dict[str, Record]:
    """By id, each training record as the evaluation asks about it: with wrong answers where a set has them."""
    sets = (corpus.train, *(corpus.evaluation.get(name, ()) for name in ("retain", "forget")))
    held = {record.id for record in corpus.train}
    return {record.id: record for records in sets for record in records if record.id in held}
