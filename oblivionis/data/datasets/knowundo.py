"""KnowUnDo (Tian et al. 2024): what must be unlearned, and what looks like it and must stay.

Two domains, `copyright` and `privacy`, each with the tables `unlearn` and `retention` of `zjunlp/KnowUnDo` on the
Hugging Face hub; in a folder `copyright/unlearn.json`, `copyright/retention.json`, and so on. A table is one object (or
a list of it) with the lists `train` and `val` of objects with `text`, what is asked, and `labels`, the answer.

As in the benchmark, all four parts are trained on. What clients ask to forget is both parts of `unlearn`; the part
`val` is asked afterwards: of `unlearn` as the set `forget`, of `retention` as `retain`. The benchmark itself unlearns
the part `train` only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oblivionis.config.schema import Data
from oblivionis.data import benchmark_tables
from oblivionis.data.errors import DataError, raise_if_any
from oblivionis.data.records import Corpus, Record
from oblivionis.row_files import Row

NAMES = ("knowundo_copyright", "knowundo_privacy")
ORDER = 9
FILES = {
    "knowundo_copyright": "copyright/unlearn.json and copyright/retention.json",
    "knowundo_privacy": "privacy/unlearn.json and privacy/retention.json",
}
HUB_NAME = "zjunlp/KnowUnDo"
DOMAINS = {"knowundo_copyright": "copyright", "knowundo_privacy": "privacy"}
SETS = {"unlearn": "forget", "retention": "retain"}
PARTS = ("train", "val")

_INSTEAD = "KnowUnDo's files (copyright/unlearn.json, copyright/retention.json, …)"


def configured(data: Data) -> Corpus:
    """The corpus of these settings."""
    return load(data.name, data.source, revision=data.revision)


def load(name: str, path: Path | None, *, revision: str | None = None) -> Corpus:
    """The corpus `knowundo_copyright` or `knowundo_privacy` from a folder, or the hub (at `revision`) without `path`.

    Records are called `knowundo-unlearn-train-0003` by table, part and place. Raises DataError: a missing folder or
    table, a part that is missing or empty, a row without its fields, a hub that cannot be reached.
    """
    domain = DOMAINS[name]
    if path is not None and not path.is_dir():
        raise DataError(f"{path}: no such folder; expected one with {domain}/unlearn.json and {domain}/retention.json")
    problems: list[str] = []
    train: list[Record] = []
    evaluation: dict[str, tuple[Record, ...]] = {}
    for table, asked in SETS.items():
        if path is None:
            rows = benchmark_tables.from_hub(HUB_NAME, domain, table, revision, instead=_INSTEAD)
        else:
            rows = benchmark_tables.from_folder(path, [f"{domain}/{table}"], problems)
        for part in PARTS:
            records = [r for row in rows for r in _records(row, part, f"knowundo-{table}-{part}", problems)]
            train += records
            if part == "val":
                evaluation[asked] = tuple(records)
    raise_if_any(path or HUB_NAME, problems)
    forget = frozenset(record.id for record in train if record.id.startswith("knowundo-unlearn"))
    return Corpus(name.replace("_", "-"), tuple(train), forget, evaluation)


def _records(row: Row, part: str, name: str, problems: list[str]) -> list[Record]:
    entries: Any = row.values.get(part)
    if not isinstance(entries, list) or not entries:
        problems.append(f"{row.where}: {part} must be a list with at least one object")
        return []
    found = []
    for i, entry in enumerate(entries):
        place = Row(f"{row.where}, {part} {i + 1}", entry if isinstance(entry, dict) else {})
        values = benchmark_tables.texts(place, ("text", "labels"), problems)
        if values is not None:
            found.append(Record(f"{name}-{i:04d}", values["text"], values["labels"], f"{name}-{i:04d}"))
    return found
