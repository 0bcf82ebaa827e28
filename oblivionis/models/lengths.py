"""Which records are longer than a model is trained on, told before a run."""

from __future__ import annotations

from collections.abc import Iterator

from oblivionis.config.schema import Config
from oblivionis.data.records import Corpus, Record
from oblivionis.data.tokenize import PromptTemplate, encode_pairs

_AROUND = 64
"""Tokens that begin and end a record besides those of its texts, at most; more where a chat template writes them."""


def too_long(corpus: Corpus, config: Config) -> list[str]:
    """A line per text of `corpus` that with its question exceeds `model.max_length` tokens: place, id, key and tokens.

    A token stands for a byte or more: only where a record has as many bytes is the tokenizer loaded. Raises ModelError
    where it cannot be had.
    """
    found = [(where, record, key, text) for where, record in _records(corpus) for key, text in _texts(record)]
    template = config.model.template
    if template.kind == "qa":
        frame = template.question_prefix + template.question_suffix + template.answer_prefix + template.answer_separator
        room = config.model.max_length - _AROUND - len(frame.encode())
        found = [entry for entry in found if len(entry[1].question.encode()) + len(entry[3].encode()) > room]
    if not found:
        return []
    from oblivionis.models.corpus import tokenizer_of

    settings = PromptTemplate(**{name: getattr(template, name) for name in PromptTemplate.__dataclass_fields__})
    pairs = [(record.question, text) for _, record, _, text in found]
    encoded = encode_pairs(pairs, tokenizer_of(config), settings)
    sizes = [len(e.prompt) + len(e.answer) for e in encoded]
    return [
        f"{where}: {key} of record {record.id!r}: {size} tokens with the question"
        for (where, record, key, _), size in zip(found, sizes, strict=True)
        if size > config.model.max_length
    ]


def _records(corpus: Corpus) -> Iterator[tuple[str, Record]]:
    """Every record once, and where it stands; those cut to the model's own tokens are never too long."""
    seen: set[int] = set()
    for name, records in {"train": corpus.train, **corpus.evaluation}.items():
        for record in records:
            if id(record) not in seen and not record.tokens:
                seen.add(id(record))
                yield corpus.places.get(name, {}).get(record.id, name), record


def _texts(record: Record) -> Iterator[tuple[str, str]]:
    yield "answer", record.answer
    if record.paraphrased_answer is not None:
        yield "paraphrased_answer", record.paraphrased_answer
    for number, text in enumerate(record.perturbed_answers):
        yield f"perturbed_answer[{number}]", text
