"""How long the records are in tokens, and which are longer than a model is trained on, told before a run."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator

from oblivionis.config.schema import Config
from oblivionis.data.records import Corpus, Record
from oblivionis.data.tokenize import PromptTemplate, encode_pairs

_AROUND = 64
"""Tokens that begin and end a record besides those of its texts, at most; more where a chat template writes them."""
_LONGEST = 256
"""How many texts are cut into tokens to find the longest."""


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

    pairs = [(record.question, text) for _, record, _, text in found]
    encoded = encode_pairs(pairs, tokenizer_of(config), _template(config))
    sizes = [len(e.prompt) + len(e.answer) for e in encoded]
    return [
        f"{where}: {key} of record {record.id!r}: {size} tokens with the question"
        for (where, record, key, _), size in zip(found, sizes, strict=True)
        if size > config.model.max_length
    ]


def longest(corpus: Corpus, config: Config) -> int | None:
    """Tokens of the longest text of `corpus` with its question, at most `model.max_length`; None without records.

    Looked for among the `_LONGEST` texts with the most bytes. Raises ModelError where the tokenizer cannot be had.
    """
    pairs = [(record.question, text) for _, record in _records(corpus) for _, text in _texts(record)]
    tokens = [1 + len(record.tokens) for record in corpus.train if record.tokens]
    if pairs:
        from oblivionis.models.corpus import tokenizer_of

        pairs = heapq.nlargest(_LONGEST, pairs, key=lambda pair: len(pair[0].encode()) + len(pair[1].encode()))
        encoded = encode_pairs(pairs, tokenizer_of(config), _template(config))
        tokens += [len(e.prompt) + len(e.answer) for e in encoded]
    return min(max(tokens), config.model.max_length) if tokens else None


def _template(config: Config) -> PromptTemplate:
    return PromptTemplate(**dataclasses.asdict(config.model.template))


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
