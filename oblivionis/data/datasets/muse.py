"""MUSE (Shi et al. 2024): texts to forget among texts to retain, and what is asked afterwards.

Tables are named after the configurations and splits of `muse-bench/MUSE-News` and `muse-bench/MUSE-Books` on the
Hugging Face hub:

| table                        | fields             | what it is                                           |
| ---------------------------- | ------------------ | ---------------------------------------------------- |
| `raw/forget`                 | `text`             | the texts to forget                                  |
| `raw/retain2`                | `text`             | the other texts that the model is trained on         |
| `scal/forget_1` … `forget_4` | `text`             | larger and larger sets to forget (News only)         |
| `verbmem/forget`             | `prompt`, `gt`     | beginnings of forget texts and how they go on        |
| `knowmem/forget_qa`          | `question`, `answer` | questions about the texts to forget                |
| `knowmem/retain_qa`          | `question`, `answer` | questions about the other texts                    |
| `knowmem/forget_qa_icl`, `knowmem/retain_qa_icl` | `question`, `answer` | answered examples; may be missing |
| `privleak/forget`            | `text`             | texts that are trained on, whose membership is asked |
| `privleak/holdout`           | `text`             | texts like them that are not trained on              |

What files a table may be: `oblivionis.data.benchmark_tables`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from oblivionis.config.schema import Data
from oblivionis.data import benchmark_tables
from oblivionis.data.errors import DataError, raise_if_any
from oblivionis.data.records import Corpus, Record
from oblivionis.data.text_pieces import Cut, pieces

NAMES = ("muse_news", "muse_books")
ORDER = 6
FILES = "raw/forget.json, raw/retain2.json, verbmem/forget.json, …"
TEXTS = True
ONLY = {"muse_books": {"muse_forget": ("raw", "MUSE-Books", "muse_news")}}
HUB_NAMES = {"muse_news": "muse-bench/MUSE-News", "muse_books": "muse-bench/MUSE-Books"}
FORGET_SETS = ("raw", "scal_1", "scal_2", "scal_3", "scal_4")

_QUESTIONS = ("question", "answer")
_INSTEAD = "MUSE's tables (raw/forget.json, verbmem/forget.json, …)"


def configured(data: Data, cut: Cut) -> Corpus:
    """The corpus of these settings."""
    return load(data.name, data.source, cut, forget_set=data.muse_forget, revision=data.revision)


def load(name: str, path: Path | None, cut: Cut, *, forget_set: str = "raw", revision: str | None = None) -> Corpus:
    """The corpus `muse_news` or `muse_books` from a folder, or from the hub (at `revision`) when `path` is None.

    Raises DataError: a missing folder or table, a row without its fields (file and line), a hub that cannot be reached.
    """
    if path is not None and not path.is_dir():
        raise DataError(f"{path}: no such folder; expected one with raw/forget.json, verbmem/forget.json, …")
    problems: list[str] = []

    def table(table_name: str, fields: Sequence[str], needed: bool = True) -> list[dict[str, str]]:
        if path is None:
            configuration, split = table_name.split("/")
            rows = benchmark_tables.from_hub(HUB_NAMES[name], configuration, split, revision, instead=_INSTEAD)
        else:
            rows = benchmark_tables.from_folder(path, [table_name], problems, needed=needed)
        return [values for row in rows if (values := benchmark_tables.texts(row, fields, problems)) is not None]

    forget = "raw/forget" if forget_set == "raw" else f"scal/forget_{forget_set.removeprefix('scal_')}"
    found: dict[str, list[dict[str, str]]] = {
        "forget": table(forget, ("text",)),
        "retain": table("raw/retain2", ("text",)),
        "verbmem": table("verbmem/forget", ("prompt", "gt")),
        "members": table("privleak/forget", ("text",)),
        "holdout": table("privleak/holdout", ("text",)),
    }
    for key in ("forget", "retain"):
        found[f"knowmem_{key}"] = table(f"knowmem/{key}_qa", _QUESTIONS)
        found[f"knowmem_{key}_examples"] = table(f"knowmem/{key}_qa_icl", _QUESTIONS, False)
    raise_if_any(path or HUB_NAMES[name], problems)
    return assemble(name, found, cut)


def assemble(name: str, found: Mapping[str, Sequence[Mapping[str, str]]], cut: Cut) -> Corpus:
    """The corpus of the tables that were `found`.

    Every piece of a text is a record: `muse-forget-0007-p002` is the third piece of the eighth text to forget, and its
    subject the text, `muse-forget-0007`. Of texts whose membership is asked the first piece is taken.
    """
    train: list[Record] = []
    forget_ids: set[str] = set()
    for group in ("forget", "retain"):
        texts = cut([row["text"] for row in found[group]])
        records = [r for i, parts in enumerate(texts) for r in pieces(f"muse-{group}-{i:04d}", parts)]
        train += records
        forget_ids |= {r.id for r in records} if group == "forget" else set()
    evaluation: dict[str, tuple[Record, ...]] = {}
    for key in ("members", "holdout"):
        texts = cut([row["text"] for row in found[key]])
        evaluation[key] = tuple(r for i, p in enumerate(texts) for r in pieces(f"muse-{key}-{i:04d}", p[:1]))
    for key, rows in found.items():
        if key.startswith(("verbmem", "knowmem")) and rows:
            first, second = ("prompt", "gt") if key == "verbmem" else _QUESTIONS
            label = key.replace("_", "-")
            evaluation[key] = tuple(
                Record(f"muse-{label}-{i:04d}", row[first], row[second], f"muse-{label}-{i:04d}")
                for i, row in enumerate(rows)
            )
    return Corpus(name, tuple(train), frozenset(forget_ids), evaluation)
