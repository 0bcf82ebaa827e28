"""Negative log-likelihoods of canaries: no sentence is scored twice, and shared prefixes are computed once.

A sentence is plain text, tokenised as a whole and conditioned on the tokenizer's BOS, whether or not that tokenizer
puts one itself. A tokenizer without BOS leaves the first token without a probability, which is then left out of the
sum (it is the same for all candidates of a template that begins with the subject).

Sentences are scored in the lexicographic order of their tokens, each from where it differs from the one before: the
tokens of all sentences form a tree, of which every token is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from evaluation.engine.likelihood import default_token_budget, score
from evaluation.engine.models import text_config
from evaluation.engine.packing import common_prefix
from evaluation.engine.sequences import TokenSequence
from evaluation.wikimem import properties as built_in
from evaluation.wikimem.canaries import GENERIC_SUBJECT, context_of, contextualised, fill
from evaluation.wikimem.facts import COUNTERFACTUALS, SAME_MEANING, Embed, Fact, candidates, true_values
from evaluation.wikimem.names import VARIANTS, name_variants
from evaluation.wikimem.properties import Property
from evaluation.wikimem.score import WEIGHT, PairScore, calibrated_scores, memorized, score_pair

PART = 500_000
"""Most sentences whose NLLs are in memory together, unless the facts about one property need more."""
_BATCHES = 8
_TOKENISED = 8192

Progress = Callable[[int, int], None]
"""(Sentences done, all sentences), repeated ones counted each time."""


@dataclass(frozen=True)
class Asking:
    """Settings of a WikiMem measurement.

    Attributes
    ----------
    templates : int, optional
        The first so many canaries of a property; None: all eleven.
    counterfactuals : int
        At most so many competing values.
    context : int, 0 to 4
        Other facts of the subject stated before.
    variants : int
        Look-alike names.
    weight : float
        WikiMem's a.
    """

    templates: int | None = None
    counterfactuals: int = COUNTERFACTUALS
    context: int = 0
    variants: int = VARIANTS
    weight: float = WEIGHT


@dataclass(frozen=True, eq=False)
class FactScore:
    """Scores of one fact, with T templates and C candidates.

    Attributes
    ----------
    fact : Fact
    templates : tuple of T str
        The canaries, with context where requested.
    candidates : tuple of C str
        The true values first.
    truth : array (C,), bool
        Which candidates count as true.
    scores : array (T, C)
        s(h, v) of WikiMem, nats.
    pair : PairScore
        Ranks and strengths.
    nll : array (T, C)
        Of the sentences with the person's own name, nats.
    """

    fact: Fact
    templates: tuple[str, ...]
    candidates: tuple[str, ...]
    truth: np.ndarray
    scores: np.ndarray
    pair: PairScore
    nll: np.ndarray

    @property
    def likeliest(self) -> np.ndarray:
        """Whether a true value is likelier than every counterfactual, bool (T,), without calibration by look-alikes."""
        return memorized(-self.nll, self.truth)

    @property
    def best(self) -> tuple[str, ...]:
        """The candidate of the highest score for each template."""
        return tuple(self.candidates[i] for i in self.scores.argmax(axis=1))

    @property
    def ranks(self) -> np.ndarray:
        """Share of counterfactuals that score at least as high as the best true value, (T,): 0 first, 0.5 by chance."""
        best = self.scores[:, self.truth].max(axis=1, keepdims=True)
        return (self.scores[:, ~self.truth] >= best).mean(axis=1)


@dataclass(frozen=True, eq=False)
class _Asked:
    """A fact with everything that its sentences are made of."""

    fact: Fact
    kind: str
    templates: tuple[str, ...]
    names: tuple[str, ...]
    candidates: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of templates, names and candidates."""
        return len(self.templates), len(self.names), len(self.candidates)

    @property
    def size(self) -> int:
        """Number of sentences."""
        return int(np.prod(self.shape))

    def sentences(self) -> Iterator[str]:
        """Every template with every name and candidate, in the order of `shape`."""
        for template in self.templates:
            for name in self.names:
                for value in self.candidates:
                    yield fill(template, name, value, self.kind)


def score_facts(
    model: nn.Module,
    tokenizer: Any,
    facts: Sequence[Fact],
    asking: Asking = Asking(),
    *,
    counterfactuals: Mapping[str, Sequence[str]] | None = None,
    properties: Mapping[str, Property] | Mapping[Fact, Property] | None = None,
    known: Sequence[Fact] | None = None,
    embed: Embed | None = None,
    threshold: float = SAME_MEANING,
    token_budget: int | None = None,
    mode: str = "auto",
    progress: Progress | None = None,
) -> list[FactScore]:
    """Calibrated scores, ranks and strengths of facts (WikiMem, section 5).

    No sentence is scored twice, except for those that properties of more than `PART` sentences have in common. The
    generic subject is scored at a weight other than 1 only.

    Parameters
    ----------
    model : nn.Module
    tokenizer : PreTrainedTokenizerBase
    facts : sequence of Fact
    asking : Asking
    counterfactuals : mapping of sequences of str, optional
        Values of other people by property id; None: the built-in ones.
    properties : mapping, optional
        By id (None: the built-in ones), or by fact, for facts with canaries of their own.
    known : sequence of Fact, optional
        Facts for the context; None: `facts`.
    embed, threshold
        As in `facts.true_values`.
    token_budget, mode
        As in `likelihood.score`.
    progress : Progress, optional

    Returns
    -------
    list of FactScore
        In the order of `facts`.

    Raises
    ------
    ValueError
        For a fact that cannot be scored, as in `prepared`, or a sentence that is too long for the model.
    """
    asked = prepared(facts, asking, counterfactuals, properties, facts if known is None else known)
    total, done = sum(a.size for a in asked), 0
    scores: dict[int, FactScore] = {}
    for part in parts_of(asked):
        sentences, places = _distinct_sentences([asked[i] for i in part])
        size = sum(map(len, places))
        report = _part_of(progress, done, size, total)
        nll = sentence_nlls(model, tokenizer, sentences, token_budget=token_budget, mode=mode, progress=report)
        for i, where in zip(part, places, strict=True):
            scores[i] = _scored(asked[i], nll[where].reshape(asked[i].shape), asking, embed, threshold)
        done += size
    return [scores[i] for i in range(len(asked))]


def _distinct_sentences(asked: Sequence[_Asked]) -> tuple[list[str], list[np.ndarray]]:
    """The distinct sentences of facts, and of each fact the places of its sentences among them."""
    numbers: dict[str, int] = {}
    places = [
        np.fromiter((numbers.setdefault(s, len(numbers)) for s in fact.sentences()), np.int64, fact.size)
        for fact in asked
    ]
    return list(numbers), places


def _part_of(progress: Progress | None, done: int, size: int, total: int) -> Progress | None:
    """Progress of `size` sentences as that of all `total`, of which `done` came before."""
    return None if progress is None else lambda scored, of: progress(done + size * scored // of, total)


def sentence_nlls(
    model: nn.Module,
    tokenizer: Any,
    sentences: Sequence[str],
    *,
    token_budget: int | None = None,
    mode: str = "auto",
    progress: Progress | None = None,
) -> np.ndarray:
    """Negative log-likelihood of each sentence, the sum over all its tokens.

    Parameters
    ----------
    model : nn.Module
    tokenizer
        Of transformers.
    sentences : sequence of n str
        Sentences of equal tokens are scored once.
    token_budget, mode
        As in `likelihood.score`.
    progress : callable (done, all), optional

    Returns
    -------
    array (n,), float64, nats

    Raises
    ------
    ValueError
        For an empty sentence, or one that is too long for the model.
    """
    budget = default_token_budget(model) if token_budget is None else token_budget
    keys = encoded(tokenizer, sentences, getattr(text_config(model), "max_position_embeddings", None))
    order = sorted(set(keys))
    known: dict[bytes, float] = {}
    path = [0.0]
    for rows, parts in chunks(order, _BATCHES * budget):
        new = [
            TokenSequence(row[:start], row[start:]) for row, start in zip(rows, parts, strict=True) if len(row) > start
        ]
        found = score(model, new, token_budget=budget, ordered=True, mode=mode).log_probs if new else ()
        log_probs = iter(found)
        for row, start in zip(rows, parts, strict=True):
            del path[start:]
            if len(row) > start:
                base = path[-1]
                path += (base - np.cumsum(next(log_probs), dtype=np.float64)).tolist()
            known[order[len(known)]] = path[-1]
        if progress is not None:
            progress(len(known), len(order))
    return np.array([known[key] for key in keys])


def encoded(tokenizer: Any, sentences: Sequence[str], longest: int | None) -> list[bytes]:
    """Tokens of each sentence as big-endian integers, whose bytes sort like the tokens.

    Parameters
    ----------
    tokenizer
        Of transformers.
    sentences : sequence of str
    longest : int or None
        Most tokens, with BOS.

    Returns
    -------
    list of bytes

    Raises
    ------
    ValueError
        For an empty or too long sentence.
    """
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    keys: list[bytes] = []
    for start in range(0, len(sentences), _TOKENISED):
        part = list(sentences[start : start + _TOKENISED])
        for text, ids in zip(part, token_ids(tokenizer, part), strict=True):
            if not ids or (longest is not None and len(bos) + len(ids) > longest):
                raise ValueError(f"{text!r} has {len(ids)} tokens; expected 1 to {longest} with BOS")
            keys.append(np.array(bos + ids, ">u4").tobytes())
    return keys


def token_ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Token ids of each text, without special tokens.

    Parameters
    ----------
    tokenizer
        Of transformers.
    texts : list of str

    Returns
    -------
    list of lists of int
    """
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None or fast.padding is not None or fast.truncation is not None:
        return tokenizer(texts, add_special_tokens=False, padding=False, truncation=False)["input_ids"]
    return [encoding.ids for encoding in fast.encode_batch_fast(texts, add_special_tokens=False)]


def chunks(keys: Sequence[bytes], tokens: int) -> Iterator[tuple[list[tuple[int, ...]], list[int]]]:
    """Consecutive groups of sentences with about so many new tokens.

    Parameters
    ----------
    keys : sequence of bytes
        From `encoded`, sorted.
    tokens : int

    Yields
    ------
    rows : list of tuples of int
        Token ids.
    parts : list of int
        Where each row differs from the one before; at least 1, since the first token is only a condition.
    """
    rows: list[tuple[int, ...]] = []
    parts: list[int] = []
    before: tuple[int, ...] = ()
    used = 0
    for key in keys:
        row = tuple(np.frombuffer(key, ">u4").tolist())
        rows.append(row)
        parts.append(max(common_prefix(before, row), 1))
        before = row
        used += len(row) - parts[-1]
        if used >= tokens:
            yield rows, parts
            rows, parts, used = [], [], 0
    if rows:
        yield rows, parts


def prepared(
    facts: Sequence[Fact],
    asking: Asking,
    counterfactuals: Mapping[str, Sequence[str]] | None,
    properties: Mapping[str, Property] | Mapping[Fact, Property] | None,
    known: Sequence[Fact],
) -> list[_Asked]:
    """Everything that is scored for each fact: its sentences, names and candidates.

    Parameters
    ----------
    facts, asking, counterfactuals, properties, known
        As in `score_facts`.

    Returns
    -------
    list of _Asked

    Raises
    ------
    ValueError
        For an unknown property, a property without counterfactuals, or a name without look-alikes.
    """
    values = built_in.counterfactuals() if counterfactuals is None else counterfactuals
    table: Any = built_in.properties() if properties is None else properties
    of_subject: dict[str, list[Fact]] = {}
    for fact in known:
        of_subject.setdefault(fact.subject, []).append(fact)
    asked = []
    for fact in facts:
        prop = table.get(fact) or table.get(fact.property)
        if prop is None:
            raise ValueError(f"{fact.subject}: property {fact.property} is unknown")
        if not values.get(fact.property):
            raise ValueError(f"{fact.subject}: there are no values of other people for {fact.property}")
        context = context_of(fact, of_subject.get(fact.subject, ()), asking.context)
        generic = () if asking.weight == 1 else (GENERIC_SUBJECT,)
        asked.append(
            _Asked(
                fact,
                prop.kind,
                tuple(contextualised(t, context) for t in prop.canaries[: asking.templates]),
                (fact.subject, *name_variants(fact.subject, asking.variants), *generic),
                candidates(fact.values, values[fact.property], asking.counterfactuals),
            )
        )
    return asked


def parts_of(asked: Sequence[_Asked]) -> Iterator[list[int]]:
    """Facts in parts of up to `PART` sentences; those of one property stay together, in a larger part if they must.

    Parameters
    ----------
    asked : sequence of _Asked

    Yields
    ------
    list of int
        Indices of facts.
    """
    groups: dict[str, list[int]] = {}
    for i, a in enumerate(asked):
        groups.setdefault(a.fact.property, []).append(i)
    part: list[int] = []
    used = 0
    for group in groups.values():
        size = sum(asked[i].size for i in group)
        if part and used + size > PART:
            yield part
            part, used = [], 0
        part = part + group
        used += size
    if part:
        yield part


def _scored(asked: _Asked, nll: np.ndarray, asking: Asking, embed: Embed | None, threshold: float) -> FactScore:
    """The result for the NLLs (T, names, C) of a fact."""
    generic = None if asking.weight == 1 else nll[:, -1]
    variants = nll[:, 1:] if generic is None else nll[:, 1:-1]
    scores = calibrated_scores(nll[:, 0], variants, generic, weight=asking.weight)
    truth = true_values(asked.candidates, asked.fact.values, embed, threshold)
    fact = asked.fact
    pair = score_pair(fact.subject, fact.property, scores, truth, fact.cohort)
    return FactScore(fact, asked.templates, asked.candidates, truth, scores, pair, nll[:, 0])
