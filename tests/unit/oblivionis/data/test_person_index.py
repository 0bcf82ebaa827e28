"""The records about a person, looked for by words, are those that reading every record gives."""

import random
import re
from collections import Counter

from oblivionis.data.person_records import PersonRecords
from oblivionis.data.records import Corpus, Record
from oblivionis.naming import subject_key

WORDS = ("Ada", "ada", "Roy", "Ada Roy", "O'Neil", "neil", "van", "Jean-Luc", "Luc", "Zoë", "(x)", "Roy's", "adaroy")


def brute(corpus, name):
    """By the module's definition."""
    key = subject_key(name)
    texts = [subject_key(f"{r.question} {r.answer}") for r in corpus.train]
    subjects = [subject_key(r.subject) for r in corpus.train]
    mentions = {i for i, t in enumerate(texts) if re.search(rf"(?<!\w){re.escape(key)}(?!\w)", t)}
    own = key if key in subjects else None
    if own is None and mentions:
        ((most, count),) = Counter(subjects[i] for i in sorted(mentions)).most_common(1)
        own = most if 2 * count > len(mentions) else None
    found = sorted(mentions | {i for i, s in enumerate(subjects) if s == own})
    return [corpus.train[i].id for i in found], len(mentions)


def test_looking_by_words_finds_what_reading_everything_finds():
    rng = random.Random(3)
    for _ in range(20):
        names = [rng.choice(WORDS) for _ in range(4)]
        records = [
            Record(f"r{i}", " ".join(rng.choices(WORDS, k=5)) + "?", rng.choice(WORDS), rng.choice(names))
            for i in range(25)
        ]
        corpus = Corpus("made", tuple(records), frozenset())
        people = PersonRecords(corpus)
        for name in (*WORDS, "nobody", "Ada  roy", "-"):
            about = people.about(name)
            assert ([r.id for r in about.records], about.named) == brute(corpus, name), name
            assert people.about(name) is about
