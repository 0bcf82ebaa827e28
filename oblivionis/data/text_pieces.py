"""Plain texts as records: the pieces into which a tokenizer cuts each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oblivionis.data.records import Record
from oblivionis.data.tokenize import cut

Piece = tuple[tuple[int, ...], str]
"""A piece of a text, as token ids and as text."""
Cut = Callable[[Sequence[str]], list[list[Piece]]]
"""Texts -> for each its pieces in order."""


def cutting(tokenizer: Any, size: int) -> Cut:
    """What cuts texts into pieces of at most `size` tokens."""

    def pieces_of(texts: Sequence[str]) -> list[list[Piece]]:
        found = cut(texts, tokenizer, size)
        return [[(ids, tokenizer.decode(ids, skip_special_tokens=True)) for ids in text] for text in found]

    return pieces_of


def pieces(name: str, parts: Sequence[Piece], subject: str | None = None) -> list[Record]:
    """The records of the pieces of the text `name`, which is also whom they are about unless `subject` is."""
    about = subject or name
    return [Record(f"{name}-p{i:03d}", "", text, about, tokens=tokens) for i, (tokens, text) in enumerate(parts)]
