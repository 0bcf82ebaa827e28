"""Other answers to the questions that are to be forgotten, for losses that put them in the place of the true ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from oblivionis import seeds
from oblivionis.data.records import Corpus


def perturbed_answers(corpus: Corpus) -> dict[str, tuple[str, ...]]:
    """By record id, where there are any: the perturbed answers of a record, else of the question that has its id.

    TOFU has them for the questions of its evaluation only.
    """
    asked = {r.id: r.perturbed_answers for records in corpus.evaluation.values() for r in records}
    found = {r.id: r.perturbed_answers or asked.get(r.id, ()) for r in corpus.train}
    return {record: answers for record, answers in found.items() if answers}


def drawn(choices: Sequence[str], seed: int, record: str, epochs: int) -> list[str]:
    """One of `choices` for each epoch, at random by `seed` and the record's id, without a repetition before all had
    their turn: as many as there are epochs, or all of them where these are fewer."""
    return random.Random(seeds.derive(seed, "alternatives", record)).sample(choices, min(epochs, len(choices)))


def missing_answers(method: str, records: Sequence[str], places: Mapping[str, str] | None = None) -> str:
    """What to say where `records` to forget, by id, have no perturbed answer and `method` needs one.

    `places`: file and line by record id, where a source has them.
    """
    first = records[0]
    where = f" ({places[first]})" if places and first in places else ""
    more = f", and {len(records) - 1} more have none either" if len(records) > 1 else ""
    return (
        f"unlearning.method {method} with unlearning.alternatives.source=perturbed needs wrong answers to what is to "
        f"be forgotten, and record {first!r}{where} has no perturbed_answer{more}; add them to the records, or set "
        "unlearning.alternatives.source=idk"
    )
