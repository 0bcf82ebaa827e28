"""MUSE in a run: prompts of VerbMem and KnowMem, and how well a piece of text is recited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.metrics.muse import KNOWLEDGE, Item, few_shot
from evaluation.metrics.rouge import rouge_l
from oblivionis.config.schema import Config
from oblivionis.data.records import TEXT_SETS, Corpus, Record
from oblivionis.data.tokenize import plain_ids, text_start
from oblivionis.errors import RunError
from oblivionis.measures.questions import context_length
from oblivionis.models.assembly import Assembled

Generate = Callable[[Sequence[Sequence[int]], int], list[list[int]]]
"""Continuations of prompts (token ids), of at most so many tokens each."""
LEAST_BEGINNING = 16
"""Fewest tokens of a beginning that must fit into the model's context together with its continuation."""
BEGINNING = 200
"""Most tokens of a piece of text that are given when the rest is to be recited (VerbMem's prompt length)."""
LEFT_OUT = (
    "The clients hold plain text: the TOFU metrics, RULER, sampled leakage and WikiMem, which are about answers to "
    "questions that somebody trained on, are left out"
)


@dataclass(frozen=True)
class Prompts:
    """The passages to continue and the questions to ask of a corpus of texts, tokenised once."""

    passages: tuple[Item, ...]
    knowledge: Mapping[str, tuple[Item, ...]]
    decode: Callable[[Sequence[int]], str]

    @classmethod
    def of(cls, corpus: Corpus, assembled: Assembled, config: Config) -> Prompts | None:
        """None for a corpus without MUSE's texts and questions, or where MUSE is switched off.

        A beginning that does not fit into the model's context with its continuation loses its own beginning. Raises
        RunError where hardly anything or a question with its examples does not fit.
        """
        if not config.evaluation.muse.enabled or not set(TEXT_SETS) & corpus.evaluation.keys() - {"holdout"}:
            return None
        room = context_length(assembled.model)
        settings, tokenizer = config.evaluation.muse, assembled.tokenizer

        def decode(ids: Sequence[int]) -> str:
            return tokenizer.decode(list(ids), skip_special_tokens=True)

        passages = _passages(corpus.evaluation.get("verbmem", ()), tokenizer, settings.continuation, room, decode)
        knowledge = {
            name: _questions(
                corpus.evaluation.get(f"knowmem_{name}", ()),
                corpus.evaluation.get(f"knowmem_{name}_examples", ()),
                tokenizer,
                room - settings.answer,
            )
            for name in KNOWLEDGE
        }
        return cls(passages, knowledge, decode)


def _passages(
    records: Sequence[Record], tokenizer: Any, limit: int, room: int, decode: Callable[[Sequence[int]], str]
) -> tuple[Item, ...]:
    start = text_start(tokenizer)
    keep = room - limit - len(start)
    if records and keep < LEAST_BEGINNING:
        raise RunError(f"evaluation.muse.continuation: {limit} tokens do not fit into the model's context of {room}")
    prompts = plain_ids([r.question for r in records], tokenizer)
    truths = plain_ids([r.answer for r in records], tokenizer)
    return tuple(
        Item(r.id, (*start, *prompt[-keep:]), r.question, decode(truth[:limit]))
        for r, prompt, truth in zip(records, prompts, truths, strict=True)
    )


def _questions(records: Sequence[Record], examples: Sequence[Record], tokenizer: Any, room: int) -> tuple[Item, ...]:
    shots = [(r.question, r.answer) for r in examples]
    start = text_start(tokenizer)
    prompts = plain_ids([few_shot(shots, r.question) for r in records], tokenizer)
    longest = max(map(len, prompts), default=0)
    if longest + len(start) > room:
        raise RunError(
            f"a question of KnowMem with its {len(shots)} examples has {longest} tokens, and the model's context has "
            f"room for {room - len(start)}; give fewer or shorter examples (knowmem/forget_qa_icl, retain_qa_icl)"
        )
    return tuple(
        Item(r.id, (*start, *prompt), r.question, r.answer) for r, prompt in zip(records, prompts, strict=True)
    )


def recited(records: Sequence[Record], assembled: Assembled, generate: Generate, limit: int) -> list[float]:
    """ROUGE-L recall, in any script, of a generated continuation of each text's first half, by which it is recited.

    At most `BEGINNING` tokens are given, and at most `limit` further ones expected.
    """
    start = text_start(assembled.tokenizer)
    given = [min(len(r.tokens) // 2, BEGINNING) for r in records]
    prompts = [(*start, *r.tokens[:n]) for r, n in zip(records, given, strict=True)]
    truths = [r.tokens[n : n + limit] for r, n in zip(records, given, strict=True)]
    produced = generate(prompts, limit)
    cut = [tokens[: len(truth)] for tokens, truth in zip(produced, truths, strict=True)]
    texts = [[assembled.tokenizer.decode(x, skip_special_tokens=True) for x in side] for side in (cut, truths)]
    return rouge_l(texts[0], texts[1], any_script=True).recall.tolist()
