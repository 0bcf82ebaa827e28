"""ROUGE-1 and ROUGE-L with or without Porter stemming, with exactly the numbers of the package rouge-score.

With `any_script` words are those of `evaluation.metrics.word_matching`: equal on English, and meaningful in every
script. `measurable` says which texts the published rule can measure at all.

A text becomes a str with one character per stemmed word, so that strings are compared instead of lists of words.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from rapidfuzz.distance import LCSseq
from rapidfuzz.process import cpdist

from evaluation.metrics.word_matching import visible, words, words_as_written

PAPER, ANY_SCRIPT = "paper", "any_script"
RULES = (PAPER, ANY_SCRIPT)
"""What a word is: a run of a-z and 0-9, as in rouge-score and the published numbers; or a word of any script."""
LEAST_SHARE = 0.5
"""Least share of a true text's words with a letter or digit of the rule, for the text to count; and least share of a
set's texts that count, for the set to have a mean."""
_READS = "the paper's ROUGE reads Latin letters and digits alone"
_INSTEAD = "evaluation.rouge=any_script reads words of every script"
NOT_READ = f"{_READS}, and most true answers are written in others; {_INSTEAD}"
"""Why a set has no ROUGE by the paper's rule."""
UNREAD = {PAPER: f"{_READS}; {_INSTEAD}", ANY_SCRIPT: "the true answer has no letter and no digit"}
"""By rule, why one answer has no ROUGE."""
_CHOSEN = "ROUGE by words of every script (evaluation.rouge=any_script), not the paper's"

_WORD = re.compile(r"[a-z0-9]+")

FIRST = 0xE000  # all code points from here on are characters; below lie the surrogates
KEPT_WORDS = 1 << 18
CHUNK = 1 << 18  # characters: at most 2^17 words, so that the dictionary stays below the 2^20 code points there are

# Words stay (in lower case), NUL becomes a word of its own, everything else a space.
_BETWEEN_TEXTS = b"."
_TO_WORDS = bytes(
    _BETWEEN_TEXTS[0] if i == 0 else ord(chr(i).lower()) if i < 128 and chr(i).isalnum() else 32 for i in range(256)
)


@dataclass(frozen=True)
class Rouge:
    """ROUGE of n pairs.

    Attributes
    ----------
    precision, recall, f1 : array (n,), in [0, 1]
    """

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray


@lru_cache(maxsize=1 << 17)
def _stem(word: str) -> str:
    """The Porter stem of a word; words of at most three characters stay."""
    return _stemmer().stem(word) if len(word) > 3 else word


@cache
def _stemmer() -> Any:
    """The Porter stemmer."""
    from nltk.stem.porter import PorterStemmer  # half a second to import

    return PorterStemmer()


def tokens(text: str, stemmed: bool = True) -> tuple[str, ...]:
    """Words by rouge-score: lower-cased runs of a-z and 0-9.

    Parameters
    ----------
    text : str
    stemmed : bool
        Words of more than three characters are stemmed (Porter).

    Returns
    -------
    tuple of str
    """
    found = _WORD.findall(text.lower())
    return tuple(map(_stem, found) if stemmed else found)


def unicode_tokens(text: str, stemmed: bool = True) -> tuple[str, ...]:
    """Words of a text in any script.

    Parameters
    ----------
    text : str
    stemmed : bool
        Words of a-z and 0-9 are stemmed.

    Returns
    -------
    tuple of str
    """
    found = words(text)
    return tuple(_stem(word) if word.isascii() else word for word in found) if stemmed else found


def new_words(text: str, question: str) -> tuple[str, ...]:
    """Words of a text that its question does not have: what an answer says beyond repeating the question.

    Parameters
    ----------
    text, question : str

    Returns
    -------
    tuple of str
        In order, as `words` has them; words with the stem of one of the question are left out.
    """
    asked = frozenset(unicode_tokens(question))
    return tuple(word for word in words(text) if (_stem(word) if word.isascii() else word) not in asked)


class Characters(dict[bytes, str]):
    """Dictionary from words to the characters that stand for their stems (or themselves), assigned as words come."""

    def __init__(self, stemmed: bool) -> None:
        super().__init__({_BETWEEN_TEXTS: "\n"})
        self.stemmed = stemmed
        self._of_stem: dict[str, str] = {}
        self._lock = threading.Lock()

    def __missing__(self, word: bytes) -> str:
        character = self[word] = self.of(_stem(word.decode()) if self.stemmed else word.decode())
        return character

    def of(self, stem: str) -> str:
        """The character of a stem."""
        with self._lock:
            character = self._of_stem.get(stem)
            if character is None:
                character = self._of_stem[stem] = chr(FIRST + len(self._of_stem))
        return character

    @property
    def size(self) -> int:
        """How many characters are assigned, at least."""
        return max(len(self), len(self._of_stem))


CHARACTERS = {stemmed: Characters(stemmed) for stemmed in (True, False)}


def current_characters(stemmed: bool) -> Characters:
    """The dictionary of this process, renewed after `KEPT_WORDS` words; strings of two dictionaries are not comparable.

    Parameters
    ----------
    stemmed : bool

    Returns
    -------
    Characters
    """
    characters = CHARACTERS[stemmed]
    if characters.size > KEPT_WORDS:
        characters = CHARACTERS[stemmed] = Characters(stemmed)
    return characters


def _encoded_any(texts: list[str], characters: Characters) -> list[str]:
    """As `encode_texts`, of texts in any script."""
    texts = list(map(visible, texts))
    plain = [text for text in texts if text.isascii()]
    known = dict(zip(plain, encode_texts(plain, characters), strict=True)) if plain else {}
    stemmed = characters.stemmed
    return [known[t] if t in known else "".join(map(characters.of, unicode_tokens(t, stemmed))) for t in texts]


def encode_texts(texts: list[str], characters: Characters) -> list[str]:
    """Encode texts as the characters of their words.

    Parameters
    ----------
    texts : list of n >= 1 str
    characters : Characters

    Returns
    -------
    list of n str
    """
    # str.lower makes ASCII letters of two characters that are not ASCII; what is ASCII is lower-cased below.
    joined = "\0".join([text if text.isascii() else text.lower() for text in texts])
    if joined.count("\0") >= len(texts):
        return encode_texts([text.replace("\0", " ") for text in texts], characters)
    apart = joined.encode("ascii", "replace").replace(b"\0", b" \0 ").translate(_TO_WORDS).split()
    return "".join(map(characters.__getitem__, apart)).split("\n")


def _lengths(items: Sequence[str]) -> np.ndarray:
    """Lengths of the texts, (n,)."""
    return np.fromiter(map(len, items), np.int64, len(items))


def slices_of(sizes: np.ndarray) -> Iterator[slice]:
    """Consecutive slices of a total size of at most `CHUNK`; a larger item is a slice of its own.

    Parameters
    ----------
    sizes : array (n,), int

    Yields
    ------
    slice
    """
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start] - sizes[start])
        stop = max(int(np.searchsorted(ends, before + CHUNK, side="right")), start + 1)
        yield slice(start, stop)
        start = stop


def _sorted(text: str) -> str:
    """The characters of a text in order."""
    return "".join(sorted(text))


def _overlap(
    predictions: Sequence[str], references: Sequence[str], ordered: bool, stemmed: bool, any_script: bool
) -> np.ndarray:
    """Common words, words of the prediction and of the reference of the pairs of one chunk, (3, n)."""
    if len(predictions) == 1 and len(predictions[0]) + len(references[0]) > CHUNK:
        numbers: dict[str, int] = {}
        taken_apart = unicode_tokens if any_script else tokens
        pair = (taken_apart(x[0], stemmed) for x in (predictions, references))
        first, second = ([numbers.setdefault(w, len(numbers)) for w in words] for words in pair)
        lists = (first, second) if ordered else (sorted(first), sorted(second))
        return np.array([[LCSseq.similarity(*lists)], [len(first)], [len(second)]], dtype=np.int64)
    distinct = list(dict.fromkeys((*references, *predictions)))
    encoded = (_encoded_any if any_script else encode_texts)(distinct, current_characters(stemmed))
    # The longest common subsequence of two sorted texts is what they have in common in any order.
    of_text = dict(zip(distinct, encoded if ordered else map(_sorted, encoded), strict=True))
    pairs = [of_text[x] for x in predictions], [of_text[x] for x in references]
    common = cpdist(*pairs, scorer=LCSseq.similarity, dtype=np.int32, workers=1)
    return np.stack([common, *map(_lengths, pairs)])


def _rouge(
    predictions: Sequence[str], references: Sequence[str] | str, ordered: bool, stemmed: bool, any_script: bool
) -> Rouge:
    """ROUGE-L if `ordered`, else ROUGE-1."""
    references = [references] * len(predictions) if isinstance(references, str) else references
    if len(predictions) != len(references):
        raise ValueError(f"{len(predictions)} predictions for {len(references)} references")
    chunks = slices_of(_lengths(predictions) + _lengths(references))
    parts = [_overlap(predictions[c], references[c], ordered, stemmed, any_script) for c in chunks]
    common, predicted, expected = np.concatenate([np.zeros((3, 0), np.int64), *parts], axis=1)
    # Without a word there is nothing in common: 0 / 1.
    precision, recall = common / np.maximum(predicted, 1), common / np.maximum(expected, 1)
    f1 = 2 * precision * recall / np.where(common > 0, precision + recall, 1.0)
    return Rouge(precision, recall, f1)


def rouge_1(
    predictions: Sequence[str], references: Sequence[str] | str, *, stemmed: bool = True, any_script: bool = False
) -> Rouge:
    """ROUGE-1: overlap of words, each counted as often as in both texts.

    Parameters
    ----------
    predictions : sequence of n str
    references : sequence of n str, or str
        A single one is for all.
    stemmed : bool
        Porter stemming.
    any_script : bool
        Words of any script.

    Returns
    -------
    Rouge
        0 where either text has no word.

    Raises
    ------
    ValueError
        Where the lists differ in length.
    """
    return _rouge(predictions, references, ordered=False, stemmed=stemmed, any_script=any_script)


def rouge_l(
    predictions: Sequence[str], references: Sequence[str] | str, *, stemmed: bool = True, any_script: bool = False
) -> Rouge:
    """ROUGE-L: longest common subsequence of words, over the complete text and not per sentence.

    Recall is what TOFU reports (Oblivionis eq. 12), with stems; MUSE takes the words as they are; `any_script` is for
    conclusions about a person's records.

    Parameters
    ----------
    predictions : sequence of n str
    references : sequence of n str, or str
        A single one is for all.
    stemmed : bool
        Porter stemming.
    any_script : bool
        Words of any script.

    Returns
    -------
    Rouge
        0 where either text has no word.

    Raises
    ------
    ValueError
        Where the lists differ in length.
    """
    return _rouge(predictions, references, ordered=True, stemmed=stemmed, any_script=any_script)


def measurable(truth: str, rule: str = PAPER) -> bool:
    """Whether ROUGE against a true text can tell anything.

    Parameters
    ----------
    truth : str
        What the ROUGE of an answer is taken against.
    rule : {"paper", "any_script"}
        What a word is.

    Returns
    -------
    bool
        By the paper's rule, whether at least `LEAST_SHARE` of the words of any script hold one of a-z and 0-9: words
        that hold none vanish, and an answer equal to the truth has ROUGE 0 where all of them do. "Müller" counts, since
        its pieces "m" and "ller" stay; of "COVID-19 是一种疾病" only two words of seven do. By the other rule, whether
        there is a word at all.
    """
    if rule == ANY_SCRIPT:
        return bool(words(truth))
    found = words_as_written(truth)
    return bool(found) and sum(_WORD.search(word) is not None for word in found) >= LEAST_SHARE * len(found)


def rouge_by(rule: str, predictions: Sequence[str], references: Sequence[str], *, stemmed: bool = True) -> Rouge:
    """ROUGE-L by a rule for what a word is, with NaN where the reference is not `measurable` by it.

    Parameters
    ----------
    rule : str
        One of `RULES`.
    predictions, references : sequence of n str
    stemmed : bool

    Returns
    -------
    Rouge

    Raises
    ------
    ValueError
        For another rule, or where the lists differ in length.
    """
    if rule not in RULES:
        raise ValueError(f"unknown rule {rule!r} of ROUGE, expected {' or '.join(RULES)}")
    found = rouge_l(predictions, references, stemmed=stemmed, any_script=rule == ANY_SCRIPT)
    counts = np.array([measurable(truth, rule) for truth in references], dtype=bool)
    return Rouge(*(np.where(counts, values, np.nan) for values in (found.precision, found.recall, found.f1)))


def rule_for(truth: str, rule: str) -> str:
    """The rule by which a single answer is measured.

    Parameters
    ----------
    truth : str
        The true text.
    rule : {"paper", "any_script"}

    Returns
    -------
    str
        `rule` where it can measure the true text, else words of any script.
    """
    return rule if measurable(truth, rule) else ANY_SCRIPT


def mean_of(scores: np.ndarray) -> float | None:
    """Mean score of the answers that count.

    Parameters
    ----------
    scores : array (n,)
        NaN where an answer does not count.

    Returns
    -------
    float or None
        None where fewer than `LEAST_SHARE` of the scores count.
    """
    counted = scores[~np.isnan(scores)]
    return float(counted.mean()) if counted.size and counted.size >= LEAST_SHARE * scores.size else None


def note_of(scores: np.ndarray, rule: str) -> str:
    """What a reader must know about `mean_of` these scores.

    Parameters
    ----------
    scores : array (n,)
    rule : str

    Returns
    -------
    str
        Why there is no mean, what it leaves out, or which words it counts; empty for a mean of all by the paper's rule.
    """
    counted, whole = int((~np.isnan(scores)).sum()), mean_of(scores) is not None
    if rule == ANY_SCRIPT:
        missing = "most true answers have no letter and no digit"
        left_out = f"{_CHOSEN}; the mean over the {counted} of {scores.size} true answers with a letter or a digit"
    else:
        missing = NOT_READ
        left_out = f"{_READS}: the mean over the {counted} of {scores.size} true answers written in them; {_INSTEAD}"
    if not whole or counted < scores.size:
        return left_out if whole else missing
    return _CHOSEN if rule == ANY_SCRIPT else ""


def left_out(truths: Mapping[str, Sequence[str]], rule: str) -> list[str]:
    """Question sets that have no mean ROUGE by `rule`.

    Parameters
    ----------
    truths : mapping of sequences of str
        True texts by set.
    rule : str

    Returns
    -------
    list of str
        A line for each reason, with the sets.
    """
    found: dict[str, list[str]] = {}
    for name, of in truths.items():
        counts = np.array([1.0 if measurable(truth, rule) else np.nan for truth in of])
        if of and mean_of(counts) is None:
            found.setdefault(note_of(counts, rule), []).append(name)
    return [f"ROUGE is left out ({', '.join(names)}): {why}" for why, names in found.items()]


def or_none(scores: np.ndarray) -> list[float | None]:
    """Scores as plain values.

    Parameters
    ----------
    scores : array (n,)

    Returns
    -------
    list of n float or None
        None for NaN.
    """
    return [None if np.isnan(score) else float(score) for score in scores]
