"""Twins: records that say, word for word or nearly, what other records say, so that forgetting one leaves the other.

Two records are compared by their sets of words: order, spaces, punctuation, letter case and Unicode forms do not count.
A word that n of N records have weighs log(1 + N / n), so that phrases of many records count little. Dice's coefficient
is taken over these weights, of question and answer together and of the answer alone, which is what is to be forgotten.
Records about different people are no twins where the kept one names its own person by a word that the other does not
have: templates ("The author's full name is …") share most of their words. How thresholds were chosen:
`docs/concepts/twins.md`.

Pieces of text are compared with every two neighbouring pieces of a passage, since another source may cut the same
passage at other places: what counts is the share of the piece's weight that these two hold, where the weight of a word
is the cube of the one above.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from evaluation.metrics.word_matching import words
from oblivionis.data.records import Corpus, Record
from oblivionis.naming import subject_key

if TYPE_CHECKING:
    from scipy import sparse

WORD_FOR_WORD, NEARLY = "word for word", "nearly"
LEAST_SHARED, LEAST_SHARED_ANSWER = 0.55, 0.45
"""Dice's coefficient, by weight, from which on records are twins: of all their words, and of their answers'."""
LEAST_HELD, LEAST_WORDS = 0.5, 12
"""The share of a piece of text that two neighbouring pieces must hold, and the fewest words of a compared piece."""
TEXT_POWER = 3
"""Two pieces are longer than the one, and have more words by chance: the weight of rare ones is raised to this."""
RARE, RARE_NAME = 0.1, 0.5
"""A word that many of a person's records have names that person where no larger share of all people uses it; the latter
where it is of the person's name."""
SHOWN = 3
"""Ids in a message."""
_CHUNK = 1_000_000


@dataclass(frozen=True, slots=True)
class Twin:
    """Ids of a record and of a kept one that says the same; how: `WORD_FOR_WORD` or `NEARLY`; similarity in (0, 1]."""

    forget: str
    kept: str
    how: str
    similarity: float


def find_twins(forget: Sequence[Record], kept: Sequence[Record]) -> list[Twin]:
    """The pairs of a record of `forget` and its twin in `kept`, in the order of `forget`, the most similar first.

    Both are questions with answers, or both pieces of text, those of a passage in their order.
    """
    if not forget or not kept:
        return []
    found = _text_twins(forget, kept) if forget[0].tokens else question_twins(forget, kept)
    place = {record.id: i for i, record in enumerate(forget)}
    return sorted(found, key=lambda twin: (place[twin.forget], -twin.similarity, twin.kept))


def twins_of(corpus: Corpus) -> list[Twin]:
    """The twins of the records to forget among the training records that stay."""
    forget = [record for record in corpus.train if record.id in corpus.forget_ids]
    return find_twins(forget, [record for record in corpus.train if record.id not in corpus.forget_ids])


def left_out(corpus: Corpus) -> list[str]:
    """A line for each set of untrained records that lost some because training records say the same."""
    lines = []
    for name, ids in corpus.left_out.items():
        say, are = ("record says", "it is") if len(ids) == 1 else ("records say", "they are")
        more = ", …" if len(ids) > SHOWN else ""
        shown = ", ".join(ids[:SHOWN])
        lines.append(f"{len(ids)} {name} {say} what training records say, and {are} left out ({shown}{more})")
    return lines


def with_twins(wanted: Iterable[str], records: Sequence[Record]) -> frozenset[str]:
    """The ids `wanted` of `records`, and those of their twins, of the twins' twins and so on."""
    ids = frozenset(wanted)
    while True:
        inside, outside = ([r for r in records if (r.id in ids) is chosen] for chosen in (True, False))
        if not (found := find_twins(inside, outside)):
            return ids
        ids |= {twin.kept for twin in found}


@functools.lru_cache(maxsize=1 << 16)
def content_key(record: Record) -> str:
    """32 hexadecimal digits of the SHA-256 of what a record says, by the words that make records twins word for word.

    Equal for the same words of question and answer about the same subject; the record's id, letter case, spaces,
    punctuation and Unicode forms do not count. The key of a record without a subject holds none.
    """
    subject = "" if record.subject == record.id else subject_key(record.subject)
    said = json.dumps([_words(record.question), _words(record.answer), subject])
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Said:
    """The words of a record, and of its answer alone."""

    def __init__(self, record: Record) -> None:
        self.id, self.subject = record.id, record.subject
        self.question, self.answer = _words(record.question), _words(record.answer)

    @cached_property
    def all(self) -> frozenset[str]:
        return frozenset((*self.question, *self.answer))


def _words(text: str) -> tuple[str, ...]:
    """Words, or where a text has none the signs that it has."""
    return words(text) or tuple("".join(unicodedata.normalize("NFKC", text).split()))


def question_twins(forget: Sequence[Record], kept: Sequence[Record]) -> list[Twin]:
    """Kept records with the question and answer of one to forget, word for word or nearly, of one subject."""
    ours, theirs = [Said(record) for record in forget], [Said(record) for record in kept]
    corpus = Weights([(said.all, said.subject) for said in (*ours, *theirs)], name_words((*forget, *kept)))
    least = LEAST_SHARED / (2 - LEAST_SHARED)  # of either record's weight, for any weight of the other
    first, second = (corpus.matrix([said.all for said in of]) for of in (ours, theirs))
    found = []
    for i, j, shared in _sharing(first, second, (least, least), lambda a, b: LEAST_SHARED * (a + b) / 2):
        a, b = ours[i], theirs[j]
        if (a.question, a.answer) == (b.question, b.answer):
            found.append(Twin(a.id, b.id, WORD_FOR_WORD, 1.0))
            continue
        alike = 2 * shared / (first.total[i] + second.total[j])
        if corpus.alike(a.answer, b.answer) >= LEAST_SHARED_ANSWER and corpus.same(a, b):
            found.append(Twin(a.id, b.id, NEARLY, float(alike)))
    return found


def _text_twins(forget: Sequence[Record], kept: Sequence[Record]) -> list[Twin]:
    ours, theirs = [_words(record.answer) for record in forget], [_words(record.answer) for record in kept]
    follows = [i + 1 < len(kept) and kept[i].subject == kept[i + 1].subject for i in range(len(kept))]
    pairs = [(*of, *theirs[i + 1]) if follows[i] else of for i, of in enumerate(theirs)]
    both = [(frozenset(of), r.subject) for of, r in zip((*ours, *theirs), (*forget, *kept), strict=True)]
    corpus = Weights(both, {}, TEXT_POWER)
    pieces, passages = corpus.matrix(map(frozenset, ours)), corpus.matrix(map(frozenset, pairs))
    best: dict[tuple[int, int], float] = {}
    for i, j, shared in _sharing(pieces, passages, (LEAST_HELD, 0.0), lambda a, _: LEAST_HELD * a):
        if len(ours[i]) < LEAST_WORDS:
            continue
        holders = (j, j + 1) if follows[j] else (j,)
        holder = max(holders, key=lambda k: corpus.weight(set(ours[i]).intersection(theirs[k])))
        best[i, holder] = max(best.get((i, holder), 0.0), float(shared / pieces.total[i]))
    return [
        Twin(forget[i].id, kept[k].id, WORD_FOR_WORD if _within(ours[i], pairs, k, follows) else NEARLY, value)
        for (i, k), value in best.items()
    ]


def _within(piece: Sequence[str], pairs: Sequence[Sequence[str]], k: int, follows: Sequence[bool]) -> bool:
    """Whether the words stand in a row where piece `k` is; the outermost ones may have been cut within a word."""
    inner = f" {' '.join(piece[1:-1])} "
    before = [k - 1] if k and follows[k - 1] else []
    return any(inner in f" {' '.join(pairs[j])} " for j in (*before, k))


def name_words(records: Iterable[Record]) -> dict[str, frozenset[str]]:
    """The words of each subject's name that most other names do not have; none where only an id names it."""
    found = {record.subject: frozenset(words(record.subject)) for record in records if record.subject != record.id}
    often = Counter(word for name in found.values() for word in name)
    return {subject: frozenset(w for w in name if 2 * often[w] <= len(found)) for subject, name in found.items()}


class Weights:
    """Weights of the words of some records, by how many of them have a word, and the words that name a subject.

    used: the words and the subject of each record; names: the words of subjects' names.
    """

    def __init__(
        self, used: Sequence[tuple[frozenset[str], str]], names: Mapping[str, frozenset[str]], power: int = 1
    ) -> None:
        self._names = names
        self._by_subject: dict[str, list[frozenset[str]]] = defaultdict(list)
        for of, subject in used:
            self._by_subject[subject].append(of)
        users = Counter(word for of, _ in used for word in of)
        # From the rarest word to the most frequent one, as `_sharing` needs them.
        self._place = {word: i for i, word in enumerate(sorted(users, key=lambda word: (users[word], word)))}
        self._weight = {word: math.log1p(len(used) / n) ** power for word, n in users.items()}
        subjects = Counter(word for sets in self._by_subject.values() for word in frozenset().union(*sets))
        self._rare, self._rare_name = (
            frozenset(word for word, n in subjects.items() if n <= max(2.0, share * len(self._by_subject)))
            for share in (RARE, RARE_NAME)
        )
        self._named_by: dict[str, frozenset[str]] = {}

    def weight(self, of: Iterable[str]) -> float:
        return sum(self._weight[word] for word in of)

    def alike(self, one: Sequence[str], other: Sequence[str]) -> float:
        """Dice's coefficient of two texts by weight."""
        a, b = set(one), set(other)
        return 2 * self.weight(a & b) / (self.weight(a) + self.weight(b))

    def same(self, one: Said, kept: Said) -> bool:
        """Whether all names in the kept record, and those in its question, are in the other and its question."""
        if one.subject == kept.subject:
            return True
        names = self._named(kept.subject)
        return names.intersection(kept.question) <= set(one.question) and names & kept.all <= one.all

    def _named(self, subject: str) -> frozenset[str]:
        """The rare words that name a subject: those of its name, and those in half of its records, two at least."""
        if subject not in self._named_by:
            records = self._by_subject[subject]
            often = Counter(word for of in records for word in of)
            usual = {word for word, n in often.items() if n > 1 and 2 * n >= len(records)}
            self._named_by[subject] = (self._rare & usual) | (self._rare_name & self._names.get(subject, frozenset()))
        return self._named_by[subject]

    def matrix(self, of: Iterable[frozenset[str]]) -> _Matrix:
        """A row for each set of words."""
        from scipy import sparse

        rows = [sorted(self._place[word] for word in words_of) for words_of in of]
        by_place = np.array([self._weight[word] for word in self._place])
        starts = np.cumsum([0, *map(len, rows)])
        columns = np.fromiter((place for row in rows for place in row), np.int32, count=starts[-1])
        return _Matrix(sparse.csr_array((by_place[columns], columns, starts), shape=(len(rows), len(self._place))))


class _Matrix:
    """Weights of words, a row for each record, the rarest word first; total: (rows,), their sums."""

    def __init__(self, weights: sparse.csr_array) -> None:
        self.weights = weights
        self.total = np.asarray(weights.sum(axis=1)).ravel()

    def rarest(self, share: float) -> sparse.csr_array:
        """The rarest words of each row: the others together weigh less than `share` of it."""
        from scipy import sparse

        of = self.weights
        if not of.nnz:
            return of
        rows = len(of.indptr) - 1
        row = np.repeat(np.arange(rows), np.diff(of.indptr))
        before = np.concatenate([[0.0], np.cumsum(of.data)])[:-1]
        rest = self.total[row] - (before - before[of.indptr[:-1].clip(max=max(len(before) - 1, 0))][row])
        kept = rest >= share * self.total[row] * (1 - 1e-9)
        starts = np.concatenate([[0], np.cumsum(np.bincount(row[kept], minlength=rows))])
        return sparse.csr_array((of.data[kept], of.indices[kept], starts), shape=of.shape)


def _sharing(
    first: _Matrix,
    second: _Matrix,
    least: tuple[float, float],
    needed: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Iterable[tuple[int, int, float]]:
    """Pairs of rows whose shared words weigh at least what is `needed` by both rows' totals: with that weight.

    least: the shares of either row's weight that are needed in any case. Two such rows share a word among the rarest of
    either (prefix filtering, Chaudhuri et al. 2006), and what else they share weighs no more than the other words of
    one of the two: nothing is missed.
    """
    few, rare = first.rarest(least[0]), second.rarest(least[1])
    rest, rest_other = (of.total - np.asarray(part.sum(axis=1)).ravel() for of, part in ((first, few), (second, rare)))
    others = rare.T.tocsr()
    others.data[:] = 1.0
    size = np.asarray((few != 0) @ np.asarray(others.sum(axis=1)).ravel()).ravel()  # products of each row, at most
    bounds = np.searchsorted(np.cumsum(size), np.arange(0, size.sum() + 1, 10 * _CHUNK), side="right")
    for start, end in zip(bounds, [*bounds[1:], len(size)], strict=True):
        pairs = (few[start:end] @ others).tocoo()
        row, column = pairs.row + start, pairs.col
        most = pairs.data + np.maximum(rest[row], rest_other[column])
        can = most >= needed(first.total[row], second.total[column]) * (1 - 1e-9)
        row, column = row[can], column[can]
        for at in range(0, len(row), _CHUNK):
            i, j = row[at : at + _CHUNK], column[at : at + _CHUNK]
            # The weight of shared words: of both rows it is the same.
            ours, theirs = first.weights[i], second.weights[j]
            theirs.data[:] = 1.0
            shared = np.asarray(ours.multiply(theirs).sum(axis=1)).ravel()
            enough = shared >= needed(first.total[i], second.total[j]) * (1 - 1e-9)
            yield from zip(i[enough].tolist(), j[enough].tolist(), shared[enough].tolist(), strict=True)
