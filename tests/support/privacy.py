"""Looks through everything that a client sends for a piece of what its records say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.common.serde import message_to_proto

RUN_LENGTH = 3
"""So many token ids of a record in a row are a piece of it."""


class Wire:
    """For `InProcessGrid.tamper`: keeps every reply with its sender; `change` may replace it first."""

    def __init__(self, change=None) -> None:
        self.replies: list[tuple[int, str, Message]] = []
        self._change = change or (lambda client, message, reply: reply)

    def __call__(self, client: int, message: Message, reply: Message) -> Message | None:
        self.replies.append((client, message.metadata.message_type, reply))
        return self._change(client, message, reply)

    def of(self, kind: str) -> list[Message]:
        return [reply for _, found, reply in self.replies if found == kind]


def texts_of(rows: Iterable[dict[str, Any]]) -> set[str]:
    """The questions, answers (also without the name) and subjects, and every longer proper name in them."""
    rows = list(rows)
    whole = {row[key] for row in rows for key in ("question", "answer", "subject")}
    said = {row["answer"].removeprefix(row["subject"]).strip(" .") for row in rows}
    names = {name for row in rows for name in re.findall(r"\b[A-Z]\w{3,}", f"{row['answer']} {row['subject']}")}
    return whole | said | names


def found_texts(data: bytes, texts: Iterable[str]) -> list[str]:
    """Those of `texts` that occur in `data`, whatever the letter case."""
    lower = data.lower()
    return sorted(text for text in texts if text.lower().encode() in lower)


def found_tokens(numbers: Sequence[float] | np.ndarray, sequences: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """Pieces of `RUN_LENGTH` token ids of `sequences` that stand in a row in `numbers`."""
    flat = np.asarray(numbers, dtype=np.float64).ravel()
    whole = np.where((flat == np.round(flat)) & (flat >= 0), flat, -1)
    if len(flat) < RUN_LENGTH:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(whole, RUN_LENGTH)
    seen = {tuple(map(int, window)) for window in windows[(windows >= 0).all(axis=1) & (windows.max(axis=1) > 0)]}
    pieces = {tuple(s[i : i + RUN_LENGTH]) for s in sequences for i in range(len(s) - RUN_LENGTH + 1)}
    return sorted(seen & pieces)


def leaks(reply: Message, texts: Iterable[str], sequences: Sequence[Sequence[int]]) -> list[str]:
    """What of the records is in a message as it goes over the wire."""
    found = found_texts(message_to_proto(reply).SerializeToString(), texts)
    if not reply.has_content():
        return found
    content = reply.content
    lists = [v for r in (*content.metric_records.values(), *content.config_records.values()) for v in r.values()]
    numbers = [v for v in lists if isinstance(v, list) and v and all(isinstance(x, int | float) for x in v)]
    numbers += [array.numpy() for record in content.array_records.values() for array in record.values()]
    return found + [f"tokens {piece}" for values in numbers for piece in found_tokens(values, sequences)]
