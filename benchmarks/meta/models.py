"""The models that metrics are held against: who was trained on what, and what was done to them afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from oblivionis.data.records import Corpus, Record

KNOWS = "knows"
OTHERS = ("never_saw", "other_people", "false_answers")
"""Models that do not know what the forget records say."""
JUDGED = (KNOWS, *OTHERS)
ORACLE = "oracle"
"""What metrics compare with that need a retrained model; it is never judged itself."""
MODELS = (*JUDGED, ORACLE)
PLAIN = "plain"
ATTACKED = ("quantised", "relearned")
STATES = (PLAIN, *ATTACKED)
LABELS = {
    KNOWS: "knows",
    "never_saw": "never saw",
    "other_people": "other people",
    "false_answers": "false answers",
    ORACLE: "oracle",
}
"""Models as readers know them."""


def measured(corpus: Corpus) -> Corpus:
    """The corpus as every model is measured on it: without the perturbed answers that `false_answers` learns."""
    forget = tuple(replace(r, perturbed_answers=r.perturbed_answers[1:]) for r in corpus.evaluation["forget"])
    return replace(corpus, evaluation={**corpus.evaluation, "forget": forget})


def training_records(corpus: Corpus, model: str) -> list[Record | None]:
    """For each record of `corpus.train`, in its order, what `model` is trained on in its place; None: nothing.

    knows: the record itself; never_saw and oracle: nothing in place of a forget record; other_people: a record of the
    set `reference`, each once; false_answers: the same question with a false answer. Raises ValueError for fewer
    reference records than forget records, and for a forget record without a false answer.
    """
    return list(_replaced(corpus, model))


def _replaced(corpus: Corpus, model: str) -> Iterator[Record | None]:
    others = iter(corpus.evaluation.get("reference", ()))
    for record in corpus.train:
        if record.id not in corpus.forget_ids or model == KNOWS:
            yield record
        elif model == "other_people":
            other = next(others, None)
            if other is None:
                raise ValueError("there are fewer records about other people than forget records")
            yield other
        elif model == "false_answers":
            yield replace(record, answer=false_answer(record))
        else:
            yield None


def false_answer(record: Record) -> str:
    """The first perturbed answer in the words of the answer: without what a paraphrase says before it.

    Raises ValueError where there is none.
    """
    if not record.perturbed_answers or record.paraphrased_answer is None:
        raise ValueError(f"record {record.id} has no perturbed answer")
    frame = record.paraphrased_answer.removesuffix(record.answer)
    return record.perturbed_answers[0].removeprefix(frame)
