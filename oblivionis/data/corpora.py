"""From the configuration to a corpus and its partition: the same on the server and on every client."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

from oblivionis.config import dataset_traits
from oblivionis.config.schema import Config, Data
from oblivionis.data import datasets
from oblivionis.data.errors import DataError
from oblivionis.data.forget_choice import forgetting, forgetting_twins
from oblivionis.data.partition import Partition, partition
from oblivionis.data.records import Corpus
from oblivionis.data.text_pieces import cutting
from oblivionis.data.twins import find_twins
from oblivionis.errors import OblivionisError

Cutter = Callable[[], tuple[Any, int]]
"""The tokenizer of the model, and how many of its tokens a piece of text may have."""
NEVER_TRAINED = ("holdout", "reference")
_kept: dict[str, tuple[Data, Corpus]] = {}


def load_corpus(data: Data, cutter: Cutter | None = None) -> Corpus:
    """The corpus that `data` names. Errors of the source are DataError with the file and line.

    A holdout or reference record that says, word for word or nearly, what a training record says is left out.

    cutter: what cuts texts into records; data that are texts need it (OblivionisError).

    Of `node` data it holds the server's own questions and no training record: those are the clients' own.

    What comes with the program is the same each time; the last such corpus is kept, for large ones take seconds.
    """
    traits = dataset_traits.of(data.name)
    if traits.texts or not traits.built_in:
        return _loaded(data, cutter)
    kept = _kept.get("last")
    if kept is None or kept[0] != data:
        kept = _kept["last"] = (copy.deepcopy(data), _loaded(data, cutter))
    return kept[1]


def _loaded(data: Data, cutter: Cutter | None) -> Corpus:
    corpus = _as_the_source_says(data, cutter)
    if data.forget_subjects is not None:
        corpus = forgetting(corpus, data.forget_subjects)
    return _without_members(forgetting_twins(corpus) if data.forget_twins else corpus)


def _without_members(corpus: Corpus) -> Corpus:
    """The corpus without records of holdout and reference that are trained on in the same words or nearly."""
    sets, left_out = dict(corpus.evaluation), {}
    for name in NEVER_TRAINED:
        if found := {twin.forget for twin in find_twins(sets.get(name, ()), corpus.train)}:
            left_out[name] = tuple(record.id for record in sets[name] if record.id in found)
            sets[name] = tuple(record for record in sets[name] if record.id not in found)
            if not sets[name]:
                raise DataError(f"{corpus.name}: each record of the set {name} says what a training record says")
    return dataclasses.replace(corpus, evaluation=sets, left_out=left_out) if left_out else corpus


def _as_the_source_says(data: Data, cutter: Cutter | None) -> Corpus:
    if not dataset_traits.of(data.name).texts:
        return datasets.configured(data, None)
    if cutter is None:
        raise OblivionisError(f"the texts of {data.name} are cut by the model's tokenizer, and no model is given")
    return datasets.configured(data, cutting(*cutter()))


def load_partition(corpus: Corpus, config: Config) -> Partition:
    """Who holds what. The partition depends on the data and its own seed, not on the run seed.

    Raises OblivionisError for `node` data.
    """
    if config.data.on_clients:
        raise OblivionisError("data=node: which client holds which record is known on the clients' machines only")
    scheme = config.data.partition
    return partition(
        corpus,
        scheme=scheme.scheme,
        clients=config.federation.clients,
        alpha=scheme.alpha,
        seed=scheme.seed,
        forget_placement=scheme.forget_placement,
    )
