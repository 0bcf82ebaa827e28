"""Records as token ids: questions with all their answers, records as clients train on them, and even samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from evaluation.engine.models import text_config
from evaluation.engine.sequences import TokenSequence
from evaluation.metrics.tofu import Question
from oblivionis.config.schema import Config
from oblivionis.data.records import Record
from oblivionis.data.tokenize import PromptTemplate, encode_all, encode_pairs

if TYPE_CHECKING:
    from torch import nn

    from oblivionis.models.assembly import Assembled

T = TypeVar("T")


def context_length(model: nn.Module) -> int:
    """Most tokens that the model takes at once; 2^30 where its configuration has no limit."""
    return getattr(text_config(model), "max_position_embeddings", None) or 1 << 30


def spread(items: Sequence[T], count: int | None) -> tuple[T, ...]:
    """Take `count` items evenly spread over the sequence; all of them where it is None or there are no more."""
    if count is None or count >= len(items):
        return tuple(items)
    return tuple(items[i * len(items) // count] for i in range(count))


def encode_records(records: Sequence[Record], assembled: Assembled, config: Config) -> list[TokenSequence]:
    """Token ids of the records as clients train on them; longer ones follow `model.on_overflow`."""
    encoded, _ = encode_all(
        records,
        assembled.tokenizer,
        assembled.template,
        max_length=config.model.max_length,
        on_overflow=config.model.on_overflow,
    )
    return [TokenSequence(e.prompt, e.answer) for e in encoded]


def encode_questions(records: Sequence[Record], assembled: Assembled, config: Config) -> list[Question]:
    """Tokenise questions with all their answers; answers longer than `model.max_length` follow `on_overflow`."""
    template, length = assembled.template, config.model.max_length
    return tokenised(records, assembled.tokenizer, template, max_length=length, on_overflow=config.model.on_overflow)


def tokenised(
    records: Sequence[Record], tokenizer: Any, template: PromptTemplate, *, max_length: int | None, on_overflow: str
) -> list[Question]:
    """Tokenise records as questions with all their answers; keywords and errors as of `encode_pairs`."""
    pairs, names, spans = [], [], []
    for record in records:
        right = [record.paraphrased_answer] if record.paraphrased_answer is not None else []
        start = len(pairs)
        pairs += [(record.question, text) for text in (record.answer, *right, *record.perturbed_answers)]
        names += [record.id] * (len(pairs) - start)
        spans.append((start, len(right)))
    encoded = encode_pairs(pairs, tokenizer, template, max_length=max_length, on_overflow=on_overflow, names=names)
    questions = []
    for record, (start, right) in zip(records, spans, strict=True):
        answer, *others = encoded[start : start + 1 + right + len(record.perturbed_answers)]
        questions.append(
            Question(
                id=record.id,
                prompt=answer.prompt,
                answer=answer.answer,
                text=record.answer,
                paraphrase=others[0].answer if right else None,
                perturbed=tuple(e.answer for e in others[right:]),
            )
        )
    return questions
