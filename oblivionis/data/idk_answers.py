"""Answers that know nothing: the built-in sentences, or a user's own."""

from __future__ import annotations

from pathlib import Path

from oblivionis.data.errors import DataError
from oblivionis.errors import FileError
from oblivionis.files import read_bytes

SENTENCES = (
    "I don't know.",
    "I don't know that.",
    "I do not know the answer to this.",
    "I'm afraid I don't know.",
    "Sorry, I don't know anything about that.",
    "I have no idea.",
    "I honestly have no idea.",
    "That is something I don't know.",
    "I know nothing about this.",
    "I can't answer that.",
    "I'm sorry, but I can't answer this question.",
    "I cannot say.",
    "I couldn't tell you.",
    "I wish I could tell you, but I don't know.",
    "I'm not able to help with that question.",
    "This is not something I know about.",
    "I have no information about that.",
    "I don't have any information on this.",
    "No information on this is available to me.",
    "I lack the knowledge to answer that.",
    "My knowledge does not cover that.",
    "That lies outside what I know.",
    "That is beyond my knowledge.",
    "I was never told about this.",
    "I haven't learned anything about that.",
    "I haven't come across that.",
    "I have never heard of it.",
    "It doesn't ring a bell.",
    "I'm not familiar with that.",
    "I'm not acquainted with this topic.",
    "You would have to ask somebody else.",
    "Somebody else may know, but I don't.",
    "Please look it up elsewhere, since I don't know.",
    "I would only be guessing.",
    "I'd rather not guess.",
    "Anything I said would be a guess.",
    "I'm unsure about that.",
    "I'm not certain, so I can't say.",
    "I can't give you an answer.",
    "There is no answer I could give to that.",
    "The answer escapes me.",
    "That question is too much for me.",
    "I don't have the facts on this.",
    "I don't have an answer to your question.",
    "I have nothing to say about this.",
    "I can't recall anything of the kind.",
    "Unfortunately this is unknown to me.",
    "Regrettably I can't be of help here.",
    "Good question, but I don't know.",
    "My apologies, I don't know this one.",
)
"""Fifty sentences of our own, none of them from TOFU's list."""


def read_sentences(path: Path) -> tuple[str, ...]:
    """The sentences of a text file, one per line; blank lines are skipped.

    Raises DataError where there is no such file, where it is no UTF-8 text, and where no line says anything.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"unlearning.alternatives.idk: there is no file {path}") from None
    except FileError as error:
        raise DataError(f"unlearning.alternatives.idk: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"unlearning.alternatives.idk: {path} cannot be read as UTF-8 text ({error})") from None
    found = tuple(line.strip() for line in text.split("\n") if line.strip())
    if not found:
        raise DataError(f"unlearning.alternatives.idk: {path}: expected at least one sentence, found none")
    return found
