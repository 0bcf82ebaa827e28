"""Lengths of the records in tokens, and which are longer than a model is trained on, for a warning before a run."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from oblivionis.config import method_traits
from oblivionis.config.schema import Config
from oblivionis.data.alternative_answers import perturbed_answers
from oblivionis.data.records import Corpus, Record
from oblivionis.data.tokenize import PromptTemplate, encode_pairs

_AROUND = 64
"""Tokens that begin and end a record besides those of its texts, at most; more where a chat template writes them."""
_LONGEST = 256
"""How many texts are cut into tokens to find the longest."""


@dataclass(frozen=True, slots=True)
class Size:
    """Tokens of a question and of an answer to it."""

    prompt: int
    answer: int

    @property
    def tokens(self) -> int:
        return self.prompt + self.answer


@dataclass(frozen=True, slots=True)
class Lengths:
    """The longest records of a corpus in tokens, cut to `model.max_length`.

    trained: those that are trained on, longest first; scored: the same of all answers that an evaluation may score,
    right and wrong; answers: how many an evaluation scores at once at most; variants: answers to one question.
    """

    trained: tuple[Size, ...]
    scored: tuple[Size, ...]
    answers: int
    variants: int


def mean(sizes: Sequence[Size]) -> Size:
    """Of all, rounded up: a batch of so many of this size has no fewer tokens than they have together."""
    prompts, answers = (sum(each) for each in zip(*((size.prompt, size.answer) for size in sizes), strict=True))
    return Size(-(-prompts // len(sizes)), -(-answers // len(sizes)))


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
    from oblivionis.models.configured_corpus import tokenizer_of

    pairs = [(record.question, text) for _, record, _, text in found]
    encoded = encode_pairs(pairs, tokenizer_of(config), _template(config))
    sizes = [len(e.prompt) + len(e.answer) for e in encoded]
    return [
        f"{where}: {key} of record {record.id!r}: {size} tokens with the question"
        for (where, record, key, _), size in zip(found, sizes, strict=True)
        if size > config.model.max_length
    ]


def lengths(corpus: Corpus, config: Config) -> Lengths | None:
    """How long the records of `corpus` are; None without records. Raises ModelError where the tokenizer is missing.

    Searched among the `_LONGEST` texts with the most bytes.
    """
    trained = [(record.question, record.answer) for record in corpus.train if not record.tokens]
    trained += _learned_instead(corpus, config)
    scored = [(record.question, text) for _, record in _records(corpus) for _, text in _texts(record)]
    cut = [Size(1, len(record.tokens)) for record in corpus.train if record.tokens]
    if not scored and not cut:
        return None
    most = config.model.max_length
    found = [
        tuple(sorted((_within(size, most) for size in [*_sizes(pairs, config), *cut]), key=lambda s: -s.tokens))
        for pairs in (trained, scored)
    ]
    variants = max((sum(1 for _ in _texts(record)) for _, record in _records(corpus)), default=1)
    return Lengths(found[0] or found[1], found[1], _answers(corpus, config), variants)


def _learned_instead(corpus: Corpus, config: Config) -> list[tuple[str, str]]:
    """Questions with the wrong answers that a method may learn in the place of the true one."""
    unlearning = config.unlearning
    if unlearning.alternatives.source != "perturbed" or not method_traits.needs_alternatives(unlearning.method):
        return []
    known = perturbed_answers(corpus)
    return [(record.question, text) for record in corpus.train for text in known.get(record.id, ())]


def _sizes(pairs: list[tuple[str, str]], config: Config) -> list[Size]:
    if not pairs:
        return []
    from oblivionis.models.configured_corpus import tokenizer_of

    pairs = heapq.nlargest(_LONGEST, pairs, key=lambda pair: len(pair[0].encode()) + len(pair[1].encode()))
    encoded = encode_pairs(pairs, tokenizer_of(config), _template(config))
    return [Size(len(each.prompt), len(each.answer)) for each in encoded]


def _within(size: Size, most: int) -> Size:
    """The answer of a record that is too long loses its end."""
    return size if size.tokens <= most else Size(size.prompt, max(1, most - size.prompt))


def _answers(corpus: Corpus, config: Config) -> int:
    """Answers that an evaluation scores at once at most: of its questions, and of all records for other measures."""
    evaluation, asked = config.evaluation, 0
    after_rounds = evaluation.at_start or evaluation.every or evaluation.every_training
    for profile in (evaluation.full, *([evaluation.light] if after_rounds else [])):
        sets = [corpus.evaluation.get(name, ())[: profile.questions_per_set] for name in profile.sets]
        asked = max(asked, sum(1 for records in sets for record in records for _ in _texts(record)))
    rebound = evaluation.rebound.enabled and "unlearn" in config.stages
    if evaluation.ruler.enabled or evaluation.membership.enabled or rebound:
        asked += len(corpus.train) + sum(len(records) for records in corpus.evaluation.values())
    return max(1, asked)


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
