"""The requests that a method is tuned on: other records of the same federation than those that are reported.

Whoever chose a learning rate by the records that the table is about has seen the answers beforehand. So the tuning
forgets other subjects (`data.forget_subjects`), drawn by a seed among those with nothing to forget, until they have as
many records as the reported ones. Everybody holds what they held, and nobody had trained without either: the finetuned
model is the reported run's own, and only the retrained one, which never saw the *tuning's* records, is made anew.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from oblivionis.config import dataset_traits
from oblivionis.config.problems import ConfigError, Problem, did_you_mean
from oblivionis.config.schema import Config, Requests
from oblivionis.data.corpora import load_corpus
from oblivionis.data.forget_choice import questions
from oblivionis.data.records import Corpus
from oblivionis.errors import RunError

SPLIT, SUBJECTS = ("random_client_per_round", "all_at_round"), "subjects_at_round"


def subjects_of(config: Config, seed: int, named: Sequence[str] = ()) -> list[str]:
    """Whom the tuning of a run with `config` forgets: those that are `named`, or as many records as the run forgets.

    Raises ConfigError for data or requests with which that cannot be, and RunError where records are those of the
    run, or too few are left.
    """
    _check(config)
    corpus = load_corpus(config.data)
    return _named(corpus, named) if named else _drawn(corpus, seed)


def requests_of(config: Config, subjects: Sequence[str]) -> Requests:
    """The requests of a run, made for the records about `subjects`: at the same times, by whoever holds them."""
    given = config.unlearning.requests
    if given.policy == SUBJECTS:
        return dataclasses.replace(given, subjects=list(subjects))
    return dataclasses.replace(given, clients=None)


def _check(config: Config) -> None:
    data, requests = config.data, config.unlearning.requests
    problems = []
    if data.on_clients or dataset_traits.of(data.name).texts:
        message = f"of data={data.name} no other records can be chosen to be forgotten"
        problems.append(Problem("data.name", message, "data of questions and answers"))
    if requests.policy not in (*SPLIT, SUBJECTS):
        message = f"{requests.policy} names the reported requests, and nothing says what others would be"
        problems.append(Problem("unlearning.requests.policy", message, f"one of {', '.join((*SPLIT, SUBJECTS))}"))
    elif requests.policy in SPLIT and requests.scope != "forget_split":
        message = "a client that leaves takes all its records, those of the reported requests among them"
        problems.append(Problem("unlearning.requests.scope", message, "forget_split"))
    if problems:
        raise ConfigError(problems)


def _reported(corpus: Corpus) -> tuple[set[str], set[tuple[str, str]]]:
    """The subjects of the reported requests, and the questions with answers that they are about."""
    records = [r for r in corpus.train if r.id in corpus.forget_ids]
    return {r.subject for r in records}, {(r.question, r.answer) for r in records}


def _named(corpus: Corpus, named: Sequence[str]) -> list[str]:
    reported, texts = _reported(corpus)
    held = dict.fromkeys(r.subject for r in corpus.train)
    for subject in named:
        if subject not in held:
            hint = did_you_mean(subject, held)
            raise RunError(f"--subject: nobody holds a record about {subject!r}{f'; {hint}' if hint else ''}")
        same = subject in reported or any((r.question, r.answer) in texts for r in corpus.train if r.subject == subject)
        if same:
            raise RunError(
                f"--subject: {subject!r} is among the records that the run itself is asked to forget. What is reported "
                "must not be tuned on: name somebody else, or leave --subject out"
            )
    if len(set(named)) + len(reported) >= len(held):
        raise RunError(f"--subject: {len(set(named))} beside the reported {len(reported)} leave nobody to retain")
    return list(dict.fromkeys(named))


def _drawn(corpus: Corpus, seed: int) -> list[str]:
    """Subjects in random order until they have as many records as are reported."""
    reported, texts = _reported(corpus)
    asked = questions(corpus)
    wrong = any(asked[i].perturbed_answers for i in corpus.forget_ids)
    records: dict[str, list[str]] = {}
    for record in corpus.train:
        records.setdefault(record.subject, []).append(record.id)
    contents = {r.id: (r.question, r.answer) for r in corpus.train}
    free = [
        subject
        for subject, ids in records.items()
        if subject not in reported
        and not any(contents[i] in texts for i in ids)
        and (not wrong or all(asked[i].perturbed_answers for i in ids))
    ]
    random.Random(f"oblivionis tuning {seed}").shuffle(free)
    chosen: list[str] = []
    while sum(len(records[s]) for s in chosen) < len(corpus.forget_ids) and len(chosen) < len(free) - 1:
        chosen.append(free[len(chosen)])
    if sum(len(records[s]) for s in chosen) < len(corpus.forget_ids):
        which = " with wrong answers for the truth ratio" if wrong else ""
        raise RunError(
            f"the run forgets {len(corpus.forget_ids)} records, and the others{which} are about {len(free)} subjects: "
            "too few to tune on and to retain. Take more data, or name with --subject whom the tuning shall forget"
        )
    order = list(records)
    return sorted(chosen, key=order.index)
