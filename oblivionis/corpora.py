"""From the configuration to a corpus and its partition: the same on the server and on every client."""

from __future__ import annotations

from pathlib import Path

from oblivionis.config import Config
from oblivionis.data import fictitious, jsonl, tofu
from oblivionis.data.partition import Partition, partition
from oblivionis.data.records import Corpus
from oblivionis.schema import Data


def load_corpus(data: Data) -> Corpus:
    """The corpus that `data` names. Errors of the source are DataError with the file and line."""
    path = Path(data.path).expanduser() if data.path else None
    if data.name == "fictitious":
        return fictitious.corpus(
            authors=data.authors,
            questions_per_author=data.questions_per_author,
            forget_authors=data.forget_authors,
            seed=data.seed,
        )
    if data.name == "tofu":
        return tofu.load(path, data.forget_split, revision=data.revision)
    assert path is not None, "the configuration check demands data.path for data.name=jsonl"
    return jsonl.load(path, forget_file=Path(data.forget_file) if data.forget_file else None)


def load_partition(corpus: Corpus, config: Config) -> Partition:
    """Who holds what. The partition depends on the data and its own seed, not on the run seed."""
    scheme = config.data.partition
    return partition(
        corpus,
        scheme=scheme.scheme,
        clients=config.federation.clients,
        alpha=scheme.alpha,
        seed=scheme.seed,
        forget_placement=scheme.forget_placement,
    )
