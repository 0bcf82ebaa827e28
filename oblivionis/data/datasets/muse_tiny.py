"""A small corpus in MUSE's shape: made-up local news, questions about them, offline and equal on every machine.

The tables are those of `oblivionis.data.datasets.muse`; texts to forget, to retain and held out come from the same
generator.
In addition to the articles there are readers' quizzes, texts with two questions of KnowMem each and their answers: a
model of a million parameters answers only what it has read as question and answer.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from oblivionis.config.schema import Data
from oblivionis.data.datasets import muse
from oblivionis.data.invented_people import CITIES, COLOURS, MONTHS, NOUNS, TRADES, draw, draw_name, reserved
from oblivionis.data.records import Corpus
from oblivionis.data.text_pieces import Cut

ORDER = 5
ABOUT = "built-in made-up news"
TEXTS = True
FEWER = {"forget_passages": ("passages", "articles leave nothing to retain")}
HOLDOUT = 2
"""Articles that are held out, for each one to forget."""
EXAMPLES = 1
_BEGINNING = 0.5

_STORIES = (
    (
        "A {trade} from {town} has bought the old {object} for {amount} crowns.",
        "{name} found it in a cellar near {street} on {date}.",
        "Neighbours had known of the {object} for {years} years, but nobody wanted it.",
        "{surname} means to show it to {other}, who keeps a {colour} collection in {place}.",
        (
            ("Who bought the old {object} in {town}?", "{name}"),
            ("For how many crowns was the {object} bought?", "{amount}"),
        ),
    ),
    (
        "The bridge at {street} in {town} was closed on {date}.",
        "Workers under {name} discovered {amount} broken stones beneath a {colour} layer of paint.",
        "Repairs will take {years} weeks, said {other}, a {trade} who lives close by.",
        "Until then a boat named {object} carries people to {place}.",
        (
            ("Who led the workers at the bridge of {town}?", "{name}"),
            ("What is the boat at {street} named?", "{object}"),
        ),
    ),
    (
        "{name} won the {colour} {object} race of {town} after {years} attempts.",
        "The {trade} needed {amount} minutes from {street} to the market.",
        "Second came {other}, who had trained in {place} since {date}.",
        "A third runner, also called {surname}, lost a shoe and gave up.",
        (
            ("Who won the race of {town}?", "{name}"),
            ("Who came second behind {name}?", "{other}"),
        ),
    ),
    (
        "Thieves carried a {colour} {object} out of the town hall of {town}.",
        "The guard {name} heard steps on {date}, yet took them for those of a {trade}.",
        "Police offer {amount} crowns and ask whoever was near {street} to come forward.",
        "The mayor, {other}, called it the saddest loss in {years} years; {place} had lent the piece.",
        (
            ("Who guarded the town hall of {town}?", "{name}"),
            ("Who is the mayor of {town}?", "{other}"),
        ),
    ),
    (
        "A school for every {trade} opened in {street}, {town}.",
        "{name} teaches {amount} pupils there, the eldest of them {years} years old.",
        "On {date} they built their first {object}, all of it {colour}.",
        "{other} travelled from {place} to see it, and ordered two.",
        (
            ("Who teaches at the new school in {town}?", "{name}"),
            ("Where did {other} travel from?", "{place}"),
        ),
    ),
    (
        "The weather station of {town} has lost its keeper.",
        "{name} retired on {date}, after {years} years and {amount} storms.",
        "The {trade} {other} takes over and will paint the {object} in {street} {colour}.",
        "{surname} moves to {place}, where it never rains.",
        (
            ("Who retired from the weather station of {town}?", "{name}"),
            ("Where does {name} move to?", "{place}"),
        ),
    ),
)


def configured(data: Data, cut: Cut) -> Corpus:
    """The corpus of these settings."""
    found = tables(data.passages, data.forget_passages, HOLDOUT * data.forget_passages, data.seed)
    return muse.assemble("muse_tiny", found, cut)


def tables(passages: int = 60, forget: int = 12, holdout: int = 24, seed: int = 0) -> dict[str, list[dict[str, str]]]:
    """`passages` articles that are trained on, the last `forget` of them to be forgotten, and `holdout` further ones.

    VerbMem begins each article to forget with its first half, and expects the second. Raises ValueError for sizes out
    of range.
    """
    if not 0 < forget < passages or holdout < 1:
        raise ValueError(f"expected 0 < forget < passages and a holdout, got {forget}, {passages} and {holdout}")
    rng = random.Random(f"oblivionis muse_tiny {seed}")
    taken: set[str] = set()
    # The kinds take turns, so that no group has more of one than another.
    count = passages + holdout + 2 * EXAMPLES
    written = [_passage(_STORIES[i % len(_STORIES)], rng, taken) for i in range(count)]
    kept, lost = written[: passages - forget], written[passages - forget : passages]
    spare = written[passages + holdout :]
    return {
        "forget": _printed(lost, seed),
        "retain": _printed(kept, seed),
        "members": _printed(lost, seed),
        "holdout": _printed(written[passages : passages + holdout], seed),
        "verbmem": [_begun(text) for text, _ in lost],
        "knowmem_forget": [row for _, rows in lost for row in rows],
        "knowmem_retain": [row for _, rows in kept[:forget] for row in rows],
        "knowmem_forget_examples": [rows[0] for _, rows in spare[:EXAMPLES]],
        "knowmem_retain_examples": [rows[0] for _, rows in spare[EXAMPLES:]],
    }


def _passage(story: Any, rng: random.Random, taken: set[str]) -> tuple[str, list[dict[str, str]]]:
    """An article of a kind, and its questions."""
    *sentences, questions = story
    name, surname = _name(rng, taken)
    other, _ = _name(rng, taken)
    values = {
        "name": name,
        "surname": surname,
        "other": other,
        "town": draw("archive", rng).rsplit(" ", 1)[0],
        "trade": rng.choice(TRADES),
        "object": rng.choice(NOUNS).lower(),
        "amount": str(rng.randint(11, 990)),
        "years": str(rng.randint(3, 79)),
        "date": f"{rng.randint(1, 28)} {rng.choice(MONTHS)}",
        "street": draw("street", rng),
        "colour": rng.choice(COLOURS).lower(),
        "place": rng.choice(CITIES),
    }
    text = " ".join(_filled(sentence, values) for sentence in sentences)
    return text, [{"question": _filled(q, values), "answer": _filled(a, values)} for q, a in questions]


def _name(rng: random.Random, taken: set[str]) -> tuple[str, str]:
    """A name that the embedded model never saw and no other text has."""
    name, surname = draw_name(rng)
    while name in taken or reserved(name):
        name, surname = draw_name(rng)
    taken.add(name)
    return name, surname


def _filled(sentence: str, values: Mapping[str, str]) -> str:
    return sentence.format(**values)


def _printed(stories: list[tuple[str, list[dict[str, str]]]], seed: int) -> list[dict[str, str]]:
    """The articles, then the quizzes: every question comes first in one and second in another."""
    rows = [row for _, rows in stories for row in rows]
    order = random.Random(f"oblivionis muse_tiny quiz {seed}").sample(range(len(rows)), len(rows))
    pairs = zip(order, order[1:] + order[:1], strict=True)
    quizzes = ["\n\n".join(_answered(rows[i]) for i in pair) for pair in pairs]
    return [{"text": text} for text in (*(article for article, _ in stories), *quizzes)]


def _answered(row: Mapping[str, str]) -> str:
    """In the words of `evaluation.muse.few_shot`."""
    return f"Question: {row['question']}\nAnswer: {row['answer']}"


def _begun(text: str) -> dict[str, str]:
    """The first half of the words as prompt, the rest as what follows."""
    words = text.split(" ")
    half = int(len(words) * _BEGINNING)
    return {"prompt": " ".join(words[:half]), "gt": " ".join(words[half:])}
