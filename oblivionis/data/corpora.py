"""From the configuration to a corpus and its partition: the same on the server and on every client."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oblivionis.config.schema import TEXTS, Config, Data
from oblivionis.data import fictitious, knowundo, muse, muse_tiny, own_records, rwku, tofu, wmdp
from oblivionis.data.errors import DataError
from oblivionis.data.forget_choice import forgetting, forgetting_twins
from oblivionis.data.partition import Partition, partition
from oblivionis.data.records import Corpus
from oblivionis.data.tokenize import cut
from oblivionis.data.twins import find_twins
from oblivionis.errors import OblivionisError

Cutter = Callable[[], tuple[Any, int]]
"""The tokenizer of the model, and how many of its tokens a piece of text may have."""
NEVER_TRAINED = ("holdout", "reference")
TINY_HOLDOUT = 2
"""Articles of `muse_tiny` that are held out, for each one to forget."""


def load_corpus(data: Data, cutter: Cutter | None = None) -> Corpus:
    """The corpus that `data` names. Errors of the source are DataError with the file and line.

    A holdout or reference record that says, word for word or nearly, what a training record says is left out.

    cutter: what cuts texts into records; data that are texts need it (OblivionisError).

    Of `node` data it holds the server's own questions and no training record: those are the clients' own.
    """
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
    path = Path(data.path).expanduser() if data.path else None
    if data.name == "node":
        return Corpus("node", (), frozenset(), own_records.read_questions(path, _fields(data)) if path else {})
    if data.name == "fictitious":
        return fictitious.corpus(
            authors=data.authors,
            questions_per_author=data.questions_per_author,
            forget_authors=data.forget_authors,
            seed=data.seed,
            holdout_authors=data.holdout_authors,
            reference_authors=data.reference_authors,
            same_questions=data.same_questions,
            namesakes=data.namesakes,
        )
    if data.name == "tofu":
        return tofu.load(
            path,
            data.forget_split,
            revision=data.revision,
            holdout_authors=data.holdout_authors,
            reference_authors=data.reference_authors,
            retain_authors=data.retain_authors,
            seed=data.seed,
        )
    if data.name in TEXTS:
        return _texts(data, path, cutter)
    if data.name in knowundo.DOMAINS:
        return knowundo.load(data.name, path, revision=data.revision)
    assert path is not None, "the configuration check demands data.path for your own records"
    files = {name: getattr(data, name) for name in ("forget_file", "holdout_file", "reference_file")}
    given = {name: Path(file).expanduser() for name, file in files.items() if file}
    return own_records.load(path, **given, fields=_fields(data), revision=data.revision)


def _fields(data: Data) -> dict[str, str]:
    """What the files call our fields, where they call them otherwise."""
    return {field: name for field, name in dataclasses.asdict(data.fields).items() if name is not None}


def _texts(data: Data, path: Path | None, cutter: Cutter | None) -> Corpus:
    if cutter is None:
        raise OblivionisError(f"the texts of {data.name} are cut by the model's tokenizer, and no model is given")
    tokenizer, size = cutter()

    def pieces(texts: Any) -> list[list[tuple[tuple[int, ...], str]]]:
        found = cut(texts, tokenizer, size)
        return [[(ids, tokenizer.decode(ids, skip_special_tokens=True)) for ids in text] for text in found]

    if data.name == "muse_tiny":
        tables = muse_tiny.tables(data.passages, data.forget_passages, TINY_HOLDOUT * data.forget_passages, data.seed)
        return muse.assemble("muse_tiny", tables, pieces)
    if data.name == "rwku":
        return rwku.load(path, pieces, forget=data.forget_targets, revision=data.revision)
    if data.name in wmdp.DOMAINS:
        return wmdp.load(data.name, path, pieces, max_texts=data.max_texts, revision=data.revision)
    return muse.load(data.name, path, pieces, forget_set=data.muse_forget, revision=data.revision)


def load_partition(corpus: Corpus, config: Config) -> Partition:
    """Who holds what. The partition depends on the data and its own seed, not on the run seed.

    Raises OblivionisError for `node` data.
    """
    if config.data.name == "node":
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
