"""The corpus of a configuration; its model's tokenizer cuts texts into records."""

from __future__ import annotations

from functools import cache
from typing import Any

from oblivionis.config import compose as configuration
from oblivionis.config import dataset_traits
from oblivionis.config.schema import Config
from oblivionis.data.corpora import load_corpus
from oblivionis.data.records import Corpus
from oblivionis.models.source import load_tokenizer, resolve


def corpus_of(config: Config) -> Corpus:
    """As `load_corpus`; texts are cut into records of `model.max_length` tokens, the start token included."""
    model = config.model
    return load_corpus(config.data, lambda: (_tokenizer(model.source, model.revision), model.max_length - 1))


def load_built_in(settings: str) -> None:
    """Have this process, and those forked from it, keep the corpus of a configuration that comes with the program."""
    config = configuration.from_yaml(settings)
    if dataset_traits.of(config.data.name).built_in:
        corpus_of(config)


def tokenizer_of(config: Config) -> Any:
    """The tokenizer of the configured model. Raises ModelError."""
    return _tokenizer(config.model.source, config.model.revision)


@cache
def _tokenizer(source: str, revision: str | None) -> Any:
    return load_tokenizer(resolve(source, revision))
