"""WMDP (Li et al. 2024): texts about hazardous biology and cybersecurity, and what a model still knows of them.

| table | fields | what it is |
| --- | --- | --- |
| `bio-forget-corpus`, `cyber-forget-corpus` | `text` | texts to forget |
| `bio-retain-corpus`, `cyber-retain-corpus` | `text` | texts to retain |
| `wmdp-bio`, `wmdp-cyber` | those of MMLU | multiple-choice questions about what is to be forgotten |
| `mmlu` | `oblivionis.data.multiple_choice` | the same about 57 other fields; may be missing |

On the hub they are configurations of `cais/wmdp-corpora`, `cais/wmdp` and `cais/mmlu`; `cais/wmdp-bio-forget-corpus`
is given on request only. A folder may also hold the corpora as WMDP's code names them, `bio_remove_dataset.jsonl` and
`bio_retain_dataset.jsonl`.
As in that code, texts of fewer than 50 characters are left out.
"""

from __future__ import annotations

from pathlib import Path

from oblivionis.config.schema import Data
from oblivionis.data import benchmark_tables, multiple_choice
from oblivionis.data.errors import DataError, raise_if_any
from oblivionis.data.records import Choice, Corpus, Record
from oblivionis.data.text_pieces import Cut, pieces

NAMES = ("wmdp_bio", "wmdp_cyber")
ORDER = 8
FILES = {
    "wmdp_bio": "bio-forget-corpus.jsonl, bio-retain-corpus.jsonl, wmdp-bio.json, …",
    "wmdp_cyber": "cyber-forget-corpus.jsonl, cyber-retain-corpus.jsonl, wmdp-cyber.json, …",
}
TEXTS = True
QUESTIONS, CORPORA, MMLU = "cais/wmdp", "cais/wmdp-corpora", "cais/mmlu"
BIO_FORGET = "cais/wmdp-bio-forget-corpus"
DOMAINS = {"wmdp_bio": ("bio", "biology"), "wmdp_cyber": ("cyber", "cybersecurity")}
ALSO_CALLED = {"bio-forget-corpus": "bio_remove_dataset", "bio-retain-corpus": "bio_retain_dataset"}
LEAST_CHARACTERS = 50

_INSTEAD = "WMDP's tables (cyber-forget-corpus.jsonl, cyber-retain-corpus.jsonl, wmdp-cyber.json, …)"


def configured(data: Data, cut: Cut) -> Corpus:
    """The corpus of these settings."""
    return load(data.name, data.source, cut, max_texts=data.max_texts, revision=data.revision)


def load(
    name: str, path: Path | None, cut: Cut, *, max_texts: int | None = None, revision: str | None = None
) -> Corpus:
    """The corpus `wmdp_bio` or `wmdp_cyber` from a folder, or from the hub when `path` is None.

    max_texts: so many texts of each corpus, the first ones; revision: of `cais/wmdp-corpora`. Every piece of a text is
    a record, `wmdp-forget-0007-p002` the third one of the eighth text to forget, and its subject the text. Raises
    DataError: a missing folder or table, a row without its fields, a hub that cannot be reached.
    """
    domain, about = DOMAINS[name]
    if path is not None and not path.is_dir():
        raise DataError(f"{path}: no such folder; expected {domain}-forget-corpus.jsonl, wmdp-{domain}.json, … in it")
    problems: list[str] = []

    def corpus(group: str) -> list[str]:
        table = f"{domain}-{group}-corpus"
        if path is not None:
            names = [table, *([ALSO_CALLED[table]] if table in ALSO_CALLED else [])]
            rows = benchmark_tables.from_folder(path, names, problems, limit=max_texts)
        elif table == "bio-forget-corpus":
            rows = benchmark_tables.from_hub(BIO_FORGET, None, "train", None, instead=_INSTEAD, limit=max_texts)
        else:
            rows = benchmark_tables.from_hub(CORPORA, table, "train", revision, instead=_INSTEAD, limit=max_texts)
        found = [
            values["text"] for row in rows if (values := benchmark_tables.texts(row, ("text",), problems)) is not None
        ]
        kept = [text for text in found if len(text) >= LEAST_CHARACTERS]
        if not kept and not problems:
            problems.append(f"{table}: expected at least one text of {LEAST_CHARACTERS} characters, found none")
        return kept

    def asked(table: str, hub: tuple[str, str], needed: bool) -> tuple[Choice, ...]:
        if path is None:
            rows = benchmark_tables.from_hub(*hub, "test", None, instead=_INSTEAD)
        else:
            rows = benchmark_tables.from_folder(path, [table], problems, needed=needed)
        return multiple_choice.read(rows, table, problems, about if needed else "")

    groups = {"forget": corpus("forget"), "retain": corpus("retain")}
    questions = {
        "forget": asked(f"wmdp-{domain}", (QUESTIONS, f"wmdp-{domain}"), True),
        "utility": asked("mmlu", (MMLU, "all"), False),
    }
    raise_if_any(path or CORPORA, problems)
    train: list[Record] = []
    forget_ids: set[str] = set()
    for group, texts in groups.items():
        records = [r for i, parts in enumerate(cut(texts)) for r in pieces(f"wmdp-{group}-{i:04d}", parts)]
        train += records
        forget_ids |= {r.id for r in records} if group == "forget" else set()
    asked_of = {key: found for key, found in questions.items() if found}
    return Corpus(name.replace("_", "-"), tuple(train), frozenset(forget_ids), choices=asked_of)
