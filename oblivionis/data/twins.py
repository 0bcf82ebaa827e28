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
import itertools
import json
import math
import unicodedata
from array import array
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
    theirs = _read(tuple(kept))
    ours = _word_sets(forget, theirs.numbers)
    corpus = Weights((ours, theirs), name_words((*forget, *kept)))
    least = LEAST_SHARED / (2 - LEAST_SHARED)  # of either record's weight, for any weight of the other
    first, second = corpus.matrix(ours), corpus.matrix(theirs)
    said = functools.cache(Said)
    found = []
    for i, j, shared in _sharing(first, second, (least, least), lambda a, b: LEAST_SHARED * (a + b) / 2):
        a, b = said(forget[i]), said(kept[j])
        if (a.question, a.answer) == (b.question, b.answer):
            found.append(Twin(a.id, b.id, WORD_FOR_WORD, 1.0))
            continue
        alike = 2 * shared / (first.total[i] + second.total[j])
        if corpus.same(a, b) and corpus.alike(a.answer, b.answer) >= LEAST_SHARED_ANSWER:
            found.append(Twin(a.id, b.id, NEARLY, float(alike)))
    return found


@functools.lru_cache(maxsize=1)
def _read(records: tuple[Record, ...]) -> WordSets:
    """The words of records; several sets are compared with the same large one, one after the other."""
    return _word_sets(records)


def _word_sets(records: Iterable[Record], numbers: dict[str, int] | None = None) -> WordSets:
    return WordSets((((*_words(r.question), *_words(r.answer)), r.subject) for r in records), numbers)


def _text_twins(forget: Sequence[Record], kept: Sequence[Record]) -> list[Twin]:
    ours, theirs = [_words(record.answer) for record in forget], [_words(record.answer) for record in kept]
    follows = [i + 1 < len(kept) and kept[i].subject == kept[i + 1].subject for i in range(len(kept))]
    pairs = [(*of, *theirs[i + 1]) if follows[i] else of for i, of in enumerate(theirs)]
    own = WordSets((of, r.subject) for of, r in zip(ours, forget, strict=True))
    others, paired = (
        WordSets(((of, r.subject) for of, r in zip(texts, kept, strict=True)), own.numbers) for texts in (theirs, pairs)
    )
    corpus = Weights((own, others), {}, TEXT_POWER)
    pieces, passages = corpus.matrix(own), corpus.matrix(paired)
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
    found = {
        name: frozenset(words(name)) for name in {record.subject for record in records if record.subject != record.id}
    }
    often = Counter(word for name in found.values() for word in name)
    return {subject: frozenset(w for w in name if 2 * often[w] <= len(found)) for subject, name in found.items()}


class WordSets:
    """The set of words of each of some texts, as numbers.

    of: the words and the subject of each text; numbers: by word its number; of texts that are compared the same.
    columns: the numbers of all texts, one text after the other; starts: (texts + 1,), where each begins among these.
    """

    def __init__(self, of: Iterable[tuple[Iterable[str], str]], numbers: dict[str, int] | None = None) -> None:
        self.numbers = defaultdict(itertools.count().__next__) if numbers is None else numbers
        self.subjects: list[str] = []
        columns, starts = array("i"), [0]
        for words_of, subject in of:
            columns.extend(set(map(self.numbers.__getitem__, words_of)))
            starts.append(len(columns))
            self.subjects.append(subject)
        self.columns, self.starts = np.array(columns, np.int32), np.array(starts)


class Weights:
    """Weights of the words of some records, by how many of them have a word, and the words that name a subject.

    of: the words of the records, all with the same numbers; names: the words of subjects' names.
    """

    def __init__(self, of: Sequence[WordSets], names: Mapping[str, frozenset[str]], power: int = 1) -> None:
        self._names, self._numbers = names, dict(of[0].numbers)
        self._words = list(self._numbers)
        self._columns = np.concatenate([sets.columns for sets in of])
        self._starts = np.cumsum([0, *(length for sets in of for length in np.diff(sets.starts))])
        self._subjects = [subject for sets in of for subject in sets.subjects]
        users = np.bincount(self._columns, minlength=len(self._numbers)).tolist()
        by_users = {n: math.log1p(len(self._subjects) / n) ** power if n else 0.0 for n in set(users)}
        self._weight = [by_users[n] for n in users]
        # From the rarest word to the most frequent one, as `_sharing` needs them.
        order = sorted(range(len(users)), key=lambda number: (users[number], self._words[number]))
        self._by_place = np.array(self._weight)[order]
        self._place = np.empty(len(order), np.int32)
        self._place[order] = np.arange(len(order))
        self._usual_of: dict[str, frozenset[str]] = {}

    def weight(self, of: Iterable[str]) -> float:
        return sum(self._weight[self._numbers[word]] for word in of)

    def alike(self, one: Sequence[str], other: Sequence[str]) -> float:
        """Dice's coefficient of two texts by weight."""
        a, b = set(one), set(other)
        return 2 * self.weight(a & b) / (self.weight(a) + self.weight(b))

    def same(self, one: Said, kept: Said) -> bool:
        """Whether all names in the kept record, and those in its question, are in the other and its question."""
        if one.subject == kept.subject:
            return True
        named = (of(kept.subject) for of in (self._of_name, self._usual))
        return all(
            names.intersection(kept.question) <= set(one.question) and names & kept.all <= one.all for names in named
        )

    def _of_name(self, subject: str) -> frozenset[str]:
        """The words of a subject's name that are rare enough."""
        return self._rare(self._names.get(subject, ()), RARE_NAME)

    def _usual(self, subject: str) -> frozenset[str]:
        """The rare words in half of a subject's records, two at least."""
        if subject not in self._usual_of:
            rows = self._rows[subject]
            often = Counter(np.concatenate([self._row(row) for row in rows]).tolist())
            usual = (self._words[n] for n, count in often.items() if count > 1 and 2 * count >= len(rows))
            self._usual_of[subject] = self._rare(usual, RARE)
        return self._usual_of[subject]

    def _rare(self, of: Iterable[str], share: float) -> frozenset[str]:
        """The words that no more than `share` of all subjects have, or two."""
        most = max(2.0, share * len(self._rows))
        return frozenset(word for word in of if word in self._numbers and self._sharers[self._numbers[word]] <= most)

    @cached_property
    def _rows(self) -> dict[str, list[int]]:
        """By subject its records."""
        found: dict[str, list[int]] = defaultdict(list)
        for row, subject in enumerate(self._subjects):
            found[subject].append(row)
        return found

    @cached_property
    def _sharers(self) -> np.ndarray:
        """Of how many subjects the records have a word, by its number."""
        found = np.zeros(len(self._weight), np.int32)
        for rows in self._rows.values():
            found[np.concatenate([self._row(row) for row in rows])] += 1  # once, however many of them have the word
        return found

    def _row(self, row: int) -> np.ndarray:
        return self._columns[self._starts[row] : self._starts[row + 1]]

    def matrix(self, of: WordSets) -> _Matrix:
        """A row for each set of words."""
        from scipy import sparse

        columns = self._place[of.columns]
        shape = (len(of.subjects), len(self._place))
        weights = sparse.csr_array((self._by_place[columns], columns, of.starts), shape=shape)
        weights.sort_indices()
        return _Matrix(weights)


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
