"""What the tests of benchmarks have in common: the corpus of a folder, how it is dealt, what is refused, a hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from oblivionis.config import compose as configuration
from oblivionis.data.corpora import load_partition
from oblivionis.data.errors import DataError
from oblivionis.data.records import Corpus
from oblivionis.models.configured_corpus import corpus_of


def corpus(name: str, folder: Path | None, *overrides: str) -> Corpus:
    """The corpus that a run with this dataset has, its texts cut into pieces of 23 tokens."""
    path = "null" if folder is None else str(folder)
    more = ["model.max_length=24", "federation.clients=2", *overrides]
    return corpus_of(configuration.compose("default", [f"data={name}", f"data.path={path}", *more]))


def check_that_every_record_lies_with_a_client(name: str, folder: Path) -> None:
    """Each record has one client, and all about a subject the same one, where records are dealt by author."""
    overrides = [f"data={name}", f"data.path={folder}", "federation.clients=3", "data.partition.scheme=by_author"]
    config = configuration.compose("default", overrides)
    found = corpus_of(config)
    division = load_partition(found, config)
    assert sorted(i for ids in division.ids for i in ids) == sorted(r.id for r in found.train)
    subject_of = {r.id: r.subject for r in found.train}
    held = [{subject_of[i] for i in ids} for ids in division.ids]
    assert not held[0] & held[1] and not held[0] & held[2] and not held[1] & held[2]


def check_that_it_is_told(name: str, folder: Path, override: str, file: str, content: str | None, message: str) -> None:
    """With this content of a file of the folder (None: without the file) the corpus is refused with the message."""
    if file:
        (folder / file).unlink()
        if content is not None:
            (folder / file).write_text(content)
    with pytest.raises(DataError) as error:
        corpus(name, folder, override)
    assert message in str(error.value)


class Hub:
    """Serves rows instead of the hub's tables, and remembers what was asked for."""

    def __init__(self, served: Mapping[tuple[str, str | None, str], Any]) -> None:
        self.served, self.asked = served, []

    def load_dataset(self, name: str, config: str | None, *, split: str, revision: Any, streaming: bool = False) -> Any:
        """As `datasets.load_dataset`."""
        self.asked.append((name, config, split, revision, streaming))
        return self.served[name, config, split]
