"""What is called the same everywhere: people, the folders of clients, the models of a run."""

from __future__ import annotations

import functools
import re
import unicodedata
from pathlib import Path

import regex

from evaluation.metrics.word_matching import folded

_DIRECTIONS = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
DATA_FOLDER = "data"
"""Below a client's own folder: its records."""
REFERENCES_TABLE = "references"
"""In it, with the ending of its format: records on which nobody trains, by which the client judges what a model makes
of those that it never saw."""
LONGEST_ID = 512
"""Characters of a record's id."""
PLAIN_NAME = re.compile(r"\w+")
"""What attention is called that comes with transformers; any other name fetches code from the hub and runs it."""
BASE = "base"
"""What is kept of the untouched base model lies where a stage's would, under this name."""
MODELS = {
    BASE: "base",
    "finetune": "finetuned",
    "unlearn": "unlearned",
    "retrain": "retrained",
    "local": "local (mean)",
    "local_unlearned": "local, unlearned (mean)",
}
"""What readers call the model that a stage ends with."""
SETS = {"forget": "Forget", "retain": "Retain", "real_authors": "Real authors", "world_facts": "World facts"}
"""What readers call the question sets."""
LOG_SETS = {
    "forget": "eval_log_forget",
    "retain": "eval_log",
    "real_authors": "eval_real_author_wo_options",
    "world_facts": "eval_real_world_wo_options",
}
"""What the question sets are called in per-question logs (as `evaluation.metrics.tofu.SECTIONS`)."""


_DASH = regex.compile(r"\p{Dash}")
_APOSTROPHES = "`\u00b4\u02b9\u02bb\u02bc\u02bd\u02be\u02bf\u055a\u05f3\u2018\u2019\u201b\u2032\ua78c\uff07"
_ONE_SIGN = str.maketrans({**dict.fromkeys(_APOSTROPHES, "'"), "\u06cc": "\u064a", "\u06a9": "\u0643"})
"""Apostrophes, and the two letters (yeh, kaf) that Arabic and Persian keyboards write by different characters."""


@functools.lru_cache(maxsize=1 << 16)
def subject_key(name: str) -> str:
    """The name of a subject without what does not tell two apart.

    That is letter case, the width of white space, what no reader sees, compatibility forms, and vowel points
    (`evaluation.metrics.word_matching.folded`); besides, which apostrophe, dash, yeh or kaf it is written with. Other
    letters that look alike are other letters (`oblivionis.data.similar_names`).
    """
    # Some of the signs become others by folding, and some come of it.
    key = " ".join(_DASH.sub("-", folded(name.translate(_ONE_SIGN)).translate(_ONE_SIGN)).split())
    return key or " ".join(name.split())


def simulated_folder(nodes: str, client: int) -> Path:
    """The folder of a simulated client among `nodes` (`data.nodes`)."""
    return Path(nodes).expanduser() / f"node{client}"


def unfit_character(name: str) -> str:
    """The first character that no id may have, as `U+001B`; empty where there is none.

    Such are controls, line and paragraph separators, marks that turn the direction of writing, and half characters
    (lone surrogates): an id stands in terminals, ledgers, pages and the names of files.
    """
    for character in name:
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _DIRECTIONS:
            return f"U+{ord(character):04X}"
    return ""


def counted(number: float, what: str) -> str:
    """So many of a thing, in the plural but for one."""
    return f"{f'{number:g}' if isinstance(number, float) else number} {what}{'' if number == 1 else 's'}"
