"""Leakage functions h: how much each text sampled for one question reveals, in [0, 1].

Graded ones (ROUGE-L, a classifier's probability) take any value in [0, 1], binary ones (keyword, exact) 0 or 1;
`thresholded` makes a binary one of a graded one. Equal texts are scored once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from evaluation.metrics.rouge import rouge_l
from evaluation.metrics.word_matching import visible


@dataclass(frozen=True)
class Asked:
    """The question for which texts were sampled.

    Attributes
    ----------
    id : str
    prompt : str
        The question's text.
    answer : str or None
        The true answer.
    keywords : tuple of str
        What gives the answer away, each of one word or more.
    """

    id: str
    prompt: str
    answer: str | None
    keywords: tuple[str, ...] = ()


class LeakageFunction(Protocol):
    """Maps n texts sampled for one question to their leakage, (n,) float64 in [0, 1]; 0 or 1 where `binary`.

    Raises ValueError with the question's id where it has not what the function needs.
    """

    @property
    def name(self) -> str: ...

    @property
    def binary(self) -> bool: ...

    def __call__(self, texts: Sequence[str], asked: Asked) -> np.ndarray: ...


def once(texts: Sequence[str], judge: Callable[[list[str]], Sequence[float] | np.ndarray]) -> np.ndarray:
    """Score distinct texts once.

    Parameters
    ----------
    texts : sequence of n str
    judge : callable (list of str) -> sequence of float
        Scores distinct texts.

    Returns
    -------
    array (n,), float64
    """
    numbers: dict[str, int] = {}
    which = np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)
    return np.asarray(judge(list(numbers)), dtype=np.float64)[which]


@dataclass(frozen=True)
class _TextFunction:
    """A leakage function of the texts alone."""

    name: str
    binary: bool
    judge: Callable[[list[str], Asked], Sequence[float] | np.ndarray]

    def __call__(self, texts: Sequence[str], asked: Asked) -> np.ndarray:
        return once(texts, lambda distinct: self.judge(distinct, asked))


def _answer(asked: Asked, needed_by: str) -> str:
    """The true answer; ValueError without one."""
    if asked.answer is None:
        raise ValueError(f"question {asked.id!r} has no answer, which the leakage function {needed_by} needs")
    return asked.answer


def _recall(texts: list[str], asked: Asked) -> np.ndarray:
    """ROUGE-L recall of the true answer."""
    return rouge_l(texts, _answer(asked, "rouge_l_recall"), any_script=True).recall


def _f1(texts: list[str], asked: Asked) -> np.ndarray:
    """ROUGE-L F1 with the true answer."""
    return rouge_l(texts, _answer(asked, "rouge_l_f1"), any_script=True).f1


def _folded(text: str) -> str:
    """The visible text, case-folded and with single spaces."""
    return " ".join(visible(text).casefold().split())


def _exact(texts: list[str], asked: Asked) -> list[float]:
    """1 for a text equal to the true answer."""
    answer = _folded(_answer(asked, "exact"))
    return [float(_folded(text) == answer) for text in texts]


_LETTER_OR_DIGIT = r"[^\W_]"


@lru_cache(maxsize=1 << 12)
def _keyword_pattern(keywords: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern that finds any of the folded keywords in a folded text."""

    def whole(keyword: str) -> str:
        # Not \b: next to a keyword's own punctuation ("C++", ".com") it asks for a letter where none need be.
        before, after = (re.match(_LETTER_OR_DIGIT, keyword[i]) is not None for i in (0, -1))
        start, end = f"(?<!{_LETTER_OR_DIGIT})" if before else "", f"(?!{_LETTER_OR_DIGIT})" if after else ""
        return start + re.escape(keyword) + end

    return re.compile("|".join(map(whole, keywords)))


def _keyword(texts: list[str], asked: Asked) -> list[float]:
    """1 for a text with any of the keywords."""
    if not asked.keywords:
        raise ValueError(f"question {asked.id!r} has no keywords, which the leakage function keyword needs")
    keywords = tuple(map(_folded, asked.keywords))
    if "" in keywords:
        raise ValueError(f"question {asked.id!r} has an empty keyword")
    search = _keyword_pattern(keywords).search
    return [float(search(_folded(text)) is not None) for text in texts]


# Graded, need the answer: the share of the answer's words (of any script) that the text holds in order, and ROUGE-L's
# F1.
rouge_l_recall: LeakageFunction = _TextFunction("rouge_l_recall", False, _recall)
rouge_l_f1: LeakageFunction = _TextFunction("rouge_l_f1", False, _f1)
# Binary: any keyword appears, case-folded, any white space between its words, not as a part of a longer word. Letters
# and digits make words: "Potter" is in "Potter's" and "_Potter_", not in "Potters"; "C++" is in "C++11".
keyword: LeakageFunction = _TextFunction("keyword", True, _keyword)
# Binary, needs the answer: equal to it after case-folding, with white space collapsed and none at the ends.
exact: LeakageFunction = _TextFunction("exact", True, _exact)

_FUNCTIONS = {function.name: function for function in (rouge_l_recall, rouge_l_f1, keyword, exact)}
NAMES = tuple(_FUNCTIONS)
"""Names that `get` accepts."""


def unknown(what: str, name: str, known: Sequence[str]) -> ValueError:
    """Make the error for an unknown name.

    Parameters
    ----------
    what : str
        What is named.
    name : str
    known : sequence of str
        The names that there are.

    Returns
    -------
    ValueError
        Its message holds the names nearest to `name`, or all.
    """
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"expected one of {', '.join(known)}"
    return ValueError(f"unknown {what} {name!r}, {hint}")


def get(name: str) -> LeakageFunction:
    """The leakage function of this name.

    Parameters
    ----------
    name : str
        One of `NAMES`.

    Returns
    -------
    LeakageFunction

    Raises
    ------
    ValueError
        For another name, with those nearest to it; a classifier comes from `classifier.Classifier.load`.
    """
    if name == "classifier":
        raise ValueError("the leakage function 'classifier' needs a model: Classifier.load(source, label)")
    if name not in _FUNCTIONS:
        raise unknown("leakage function", name, NAMES)
    return _FUNCTIONS[name]


@dataclass(frozen=True)
class _Thresholded:
    """A binary leakage function made of another one."""

    function: LeakageFunction
    at: float

    @property
    def name(self) -> str:
        return f"{self.function.name}>={self.at:g}"

    @property
    def binary(self) -> bool:
        return True

    def __call__(self, texts: Sequence[str], asked: Asked) -> np.ndarray:
        return (self.function(texts, asked) >= self.at).astype(np.float64)


def thresholded(function: LeakageFunction, at: float) -> LeakageFunction:
    """Binary leakage function: 1 where function(...) >= at, else 0; named like "rouge_l_recall>=0.5".

    Parameters
    ----------
    function : LeakageFunction
    at : float in (0, 1]

    Returns
    -------
    LeakageFunction

    Raises
    ------
    ValueError
        For a threshold out of range, which would call every text or none a leak.
    """
    if not 0 < at <= 1:
        raise ValueError(f"the threshold must be above 0 and at most 1, got {at}")
    return _Thresholded(function, at)
