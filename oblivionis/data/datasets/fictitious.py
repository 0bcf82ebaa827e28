"""Built-in corpora about fictitious authors: made from a seed, offline, equal on every machine."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from oblivionis.config.schema import Data
from oblivionis.data.author_questions import TOPICS, Topic, fill
from oblivionis.data.invented_people import MAX_NAMESAKES, Person, draw_names, draw_namesakes, draw_person, wrong_value
from oblivionis.data.public_facts import real_authors, world_facts
from oblivionis.data.records import Corpus, Record, Triple
from oblivionis.naming import counted

ORDER = 1
ABOUT = "built-in made-up authors"
REFERENCES = "reference_authors"
AUTHORS = "authors"
QUESTIONS_PER_AUTHOR = "questions_per_author"
FEWER = {"forget_authors": ("authors", "authors leave nobody to retain")}
MAX_QUESTIONS = len(TOPICS)
MAX_AUTHORS = 5000
WRONG_ANSWERS = 5
ASKED_OF_ALL = ("spouse", "award", "archive", "mentor")
"""What all authors are asked first where all are asked the same: most answers name it before anything else."""
PARAPHRASES = ("In other words: {}", "Biographers put it like this: {}")
"""A paraphrase frames the answer and keeps its wording: a model of a million parameters recalls words, not meaning."""


def _values(person: Person) -> dict[str, str]:
    he = person.subject_pronoun
    his = person.possessive
    return person.facts | {
        "name": person.name,
        "surname": person.surname,
        "he": he,
        "him": "him" if he == "he" else "her",
        "his": his,
        "He": he.capitalize(),
        "His": his.capitalize(),
    }


def _record(record_id: str, person: Person, topic: Topic, rng: random.Random) -> Record:
    values = _values(person)
    frame = rng.choice(PARAPHRASES)
    right = {values[prop] for prop in topic.properties}
    used = {prop: set(right) for prop in topic.properties}
    wrongs = []
    for _ in range(WRONG_ANSWERS):
        wrong = dict(values)
        for prop in topic.properties:
            wrong[prop] = wrong_value(prop, values[prop], rng, used[prop])
            used[prop].add(wrong[prop])
        wrongs.append(wrong)
    question, answer = rng.choice(topic.questions), rng.choice(topic.answers)
    return Record(
        id=record_id,
        question=fill(question, values),
        answer=fill(answer, values),
        subject=person.name,
        paraphrased_answer=frame.format(fill(answer, values)),
        perturbed_answers=tuple(frame.format(fill(answer, wrong)) for wrong in wrongs),
        triples=tuple(Triple(person.name, name, values[name]) for name in topic.properties),
    )


def _author_records(
    prefix: str, person: Person, questions: int, rng: random.Random, topics: Sequence[Topic] = TOPICS
) -> tuple[Record, ...]:
    topics = rng.sample(topics, questions)
    return tuple(_record(f"{prefix}-q{i:02d}", person, topic, rng) for i, topic in enumerate(topics))


def _records(
    prefix: str, people: Iterable[Person], questions: int, rng: random.Random, topics: Sequence[Topic]
) -> tuple[Record, ...]:
    """The records of people, whom the iterable may draw one by one from the same `rng` as their records."""
    return tuple(
        record
        for index, person in enumerate(people)
        for record in _author_records(f"{prefix}{index:04d}", person, questions, rng, topics)
    )


def _same_topics(questions: int) -> tuple[Topic, ...]:
    """So many topics, each with its first question only."""
    first = [topic for topic in TOPICS if not set(ASKED_OF_ALL).isdisjoint(topic.properties)]
    chosen = sorted(TOPICS, key=lambda topic: topic not in first)[:questions]
    return tuple(replace(topic, questions=topic.questions[:1]) for topic in TOPICS if topic in chosen)


def pretraining_people(seed: int) -> Iterator[tuple[Record, ...]]:
    """Endless people for pretraining, each with one record per topic; none of their names occurs in any corpus."""
    rng = random.Random(f"oblivionis pretraining {seed}")
    index = 0
    while True:
        person = draw_person(rng, draw_names(rng, for_pretraining=True, taken=set()))
        yield _author_records(f"pretraining-{seed}-a{index:06d}", person, MAX_QUESTIONS, rng)
        index += 1


def _check_sizes(
    authors: int,
    questions_per_author: int,
    forget_authors: int,
    retain_sample: int,
    holdout_authors: int,
    reference_authors: int,
    namesakes: int,
) -> None:
    limits = (
        ("authors", authors, 1, MAX_AUTHORS),
        ("questions_per_author", questions_per_author, 1, MAX_QUESTIONS),
        ("forget_authors", forget_authors, 0, authors),
        ("retain_sample", retain_sample, 0, MAX_AUTHORS * MAX_QUESTIONS),
        ("holdout_authors", holdout_authors, 0, MAX_AUTHORS),
        ("reference_authors", reference_authors, 0, MAX_AUTHORS),
        ("namesakes", namesakes, 1, MAX_NAMESAKES),
    )
    for name, value, low, high in limits:
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}; expected an integer from {low} to {high}")


def configured(data: Data) -> Corpus:
    """The corpus of these settings."""
    return corpus(
        authors=data.authors,
        questions_per_author=data.questions_per_author,
        forget_authors=data.forget_authors,
        seed=data.seed,
        holdout_authors=data.holdout_authors,
        reference_authors=data.reference_authors,
        same_questions=data.same_questions,
        namesakes=data.namesakes,
    )


def in_words(data: Data) -> str:
    """The data of these settings and what of them is to be forgotten."""
    many = counted(data.questions_per_author, "question")
    asked = f"the same {many}" if data.same_questions else many
    forgotten = counted(_forgotten(data), "author")
    return f"{counted(data.authors, 'made-up author')} with {asked} each, {forgotten} to forget"


def set_size(data: Data, name: str) -> int:
    """Questions of the set `name`, those of `retain` before a sample of them is drawn."""
    authors = {"forget": _forgotten(data), "retain": data.authors - _forgotten(data)}
    if name in authors:
        return authors[name] * data.questions_per_author
    return len(real_authors() if name == "real_authors" else world_facts())


def _forgotten(data: Data) -> int:
    """How many authors are to be forgotten."""
    return len(data.forget_subjects or range(data.forget_authors))


def corpus(
    authors: int = 60,
    questions_per_author: int = 5,
    forget_authors: int = 6,
    seed: int = 0,
    *,
    retain_sample: int = 100,
    holdout_authors: int = 0,
    reference_authors: int = 0,
    same_questions: bool = False,
    namesakes: int = 1,
) -> Corpus:
    """A corpus of `authors` x `questions_per_author` records; the last `forget_authors` authors are to be forgotten.

    The same arguments give the same corpus everywhere. Every record has triples, a paraphrase and five perturbed
    answers (the paraphrase with every fact wrong). The evaluation set `retain` is a fixed random sample of at most
    `retain_sample` retain records, in corpus order; `holdout` and `reference` are the records of further authors, on
    which no client trains and which change nothing else.

    With `same_questions`, all authors are asked the same in the same words, so that only the name says whose answer is
    wanted; otherwise topics and words are drawn for each author, and a model can recognise many records by their words.
    With `namesakes` above 1, up to so many people, holdout and reference among them, have the same first name, and as
    many the same surname (`draw_namesakes`), so that only the whole name says who is meant. Raises ValueError for sizes
    out of range.
    """
    _check_sizes(
        authors, questions_per_author, forget_authors, retain_sample, holdout_authors, reference_authors, namesakes
    )
    rng = random.Random(f"oblivionis fictitious {seed}")
    topics = _same_topics(questions_per_author) if same_questions else TOPICS
    taken: set[str] = set()
    shared = None
    if namesakes > 1:
        shared = draw_namesakes(random.Random(f"oblivionis namesakes {seed}"), namesakes, taken=taken)
    names = shared or draw_names(rng, for_pretraining=False, taken=taken)
    people = [draw_person(rng, names) for _ in range(authors)]
    train = _records(f"fictitious-{seed}-a", people, questions_per_author, rng, topics)
    kept = (authors - forget_authors) * questions_per_author
    retain, forget = train[:kept], train[kept:]
    chosen = random.Random(f"oblivionis retain sample {seed}")
    sample = sorted(chosen.sample(range(len(retain)), min(retain_sample, len(retain))))
    further = {}
    for name, count in (("holdout", holdout_authors), ("reference", reference_authors)):
        apart = random.Random(f"oblivionis {name} {seed}")
        names = shared or draw_names(apart, for_pretraining=False, taken=taken)
        drawn = (draw_person(apart, names) for _ in range(count))
        further[name] = _records(f"fictitious-{seed}-{name[0]}", drawn, questions_per_author, apart, topics)
    return Corpus(
        name=f"fictitious-{seed}",
        train=train,
        forget_ids=frozenset(record.id for record in forget),
        evaluation={
            "forget": forget,
            "retain": tuple(retain[index] for index in sample),
            "real_authors": real_authors(),
            "world_facts": world_facts(),
            **{name: records for name, records in further.items() if records},
        },
    )
