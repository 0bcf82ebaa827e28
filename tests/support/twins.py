"""Twins that are put among records, so that what is to be found is known."""

import random
import unicodedata
from dataclasses import replace
from itertools import pairwise

import regex

from oblivionis.data.records import Record

KINDS = ("exact", "looks", "words")
"""Word for word; other spaces, punctuation, letter case and Unicode forms; three words of ten replaced."""


def planted(forget, kept, count, seed=0):
    """`count` twins of the records `forget` in turn, of each kind in turn: by id of the twin the record and the kind,
    and the twins. What replaces words are words of the `kept` records."""
    rng = random.Random(seed)
    pool = [word for record in kept for word in units(record.question) + units(record.answer)]
    of, twins = {}, []
    for number in range(count):
        record, kind, name = forget[number % len(forget)], KINDS[number % 3], f"twin-{number}"
        of[name] = (record.id, kind)
        question, answer = changed(record.question, record.answer, kind, rng, pool)
        twins.append(replace(record, id=name, question=question, answer=answer, perturbed_answers=()))
    return of, twins


def changed(question, answer, kind, rng, pool):
    if kind == "exact":
        return question, answer
    if kind == "looks":
        return tuple(
            "  ".join(unicodedata.normalize("NFD", text).upper().rstrip(".?。？؟").split()) + " !"
            for text in (question, answer)
        )
    parts = [(0, word) for word in units(question)] + [(1, word) for word in units(answer)]
    for i in rng.sample(range(len(parts)), round(0.3 * len(parts))):
        parts[i] = (parts[i][0], rng.choice(pool))
    glue = " " if " " in answer else ""
    return tuple(glue.join(word for side, word in parts if side == wanted) for wanted in (0, 1))


def units(text):
    """Words, graphemes where no space parts them."""
    return text.split() if " " in text else regex.findall(r"\X", text)


def text_pieces(name, text, size, offset=0):
    """A passage cut into pieces of `size` words, the first one of them shorter by `offset`."""
    parts = text.split()
    cuts = [0, *range(size - offset, len(parts), size), len(parts)]
    return [
        Record(f"{name}-{i}", "", " ".join(parts[a:b]), name, tokens=(1,)) for i, (a, b) in enumerate(pairwise(cuts))
    ]
