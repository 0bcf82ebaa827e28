"""TOFU (Maini et al. 2024): 200 made-up authors with 20 questions each, and what is asked after forgetting some.

Files are named after the configurations of the data set `locuslab/TOFU` on the Hugging Face hub, one JSON object per
line: `full.json`, `forget01.json`, `forget01_perturbed.json` (05 and 10 likewise), `retain_perturbed.json`,
`real_authors_perturbed.json`, `world_facts_perturbed.json`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from oblivionis.config.schema import Data
from oblivionis.data import benchmark_tables
from oblivionis.data.errors import DataError, raise_if_any
from oblivionis.data.own_records import by_content, to_record
from oblivionis.data.records import Corpus, Record
from oblivionis.row_files import Row, read_rows

ORDER = 2
ABOUT = "the TOFU benchmark"
FILES = "full.json, forget01.json, …"
NEEDS = ("full.json", "{forget_split}.json")
REFERENCES = "reference_authors"
AUTHORS = 200
FORGET_AUTHORS = {"forget01": 2, "forget05": 10, "forget10": 20}
HUB_NAME = "locuslab/TOFU"
FORGET_SPLITS = tuple(FORGET_AUTHORS)
QUESTIONS_PER_AUTHOR = 20
SET_SIZES = {"retain": 400, "real_authors": 100, "world_facts": 117}

_INSTEAD = "TOFU's files (full.json, forget01.json, …)"
_PLAIN = ("question", "answer")
_PERTURBED = (*_PLAIN, "perturbed_answer")
_PARAPHRASED = (*_PERTURBED, "paraphrased_answer")


def configured(data: Data) -> Corpus:
    """The corpus of these settings."""
    return load(
        data.source,
        data.forget_split,
        revision=data.revision,
        holdout_authors=data.holdout_authors,
        reference_authors=data.reference_authors,
        retain_authors=data.retain_authors,
        seed=data.seed,
    )


def in_words(data: Data) -> str:
    """The data of these settings and what of them is to be forgotten."""
    return f"TOFU, records to forget: {data.forget_split}"


def set_size(data: Data, name: str) -> int:
    """Questions of the set `name`."""
    return FORGET_AUTHORS[data.forget_split] * QUESTIONS_PER_AUTHOR if name == "forget" else SET_SIZES[name]


def load(
    path: Path | None,
    forget_split: str = "forget01",
    *,
    revision: str | None = None,
    holdout_authors: int = 0,
    reference_authors: int = 0,
    retain_authors: int | None = None,
    seed: int = 0,
) -> Corpus:
    """TOFU from a folder of JSON lines, or from the hub (at `revision`) when `path` is None.

    Training records are the rows of `full` in order, `tofu-0000` …, with the subjects `author-000` … of 20 rows each.
    Records of the evaluation keep the id and subject of the training row with the same question and answer.
    holdout_authors, reference_authors: `withhold` so many, chosen by `seed`; retain_authors: `keep_first` so many of
    the others. Raises DataError: a missing or malformed file, a missing field (file and line), a row of the forget
    split that is no row of `full`, a hub that cannot be reached.
    """
    if forget_split not in FORGET_SPLITS:
        raise DataError(f"TOFU has no forget split {forget_split!r}; expected one of {', '.join(FORGET_SPLITS)}")
    if path is not None and not path.is_dir():
        raise DataError(
            f"{path}: no such folder; expected the folder that holds TOFU's full.json, {forget_split}.json, …"
        )
    problems: list[str] = []

    def rows(name: str) -> list[Row]:
        before = len(problems)
        if path is None:
            found = benchmark_tables.from_hub(HUB_NAME, name, "train", revision, instead=_INSTEAD)
        else:
            found = list(read_rows(path / f"{name}.json", problems))
        if not found and len(problems) == before:
            problems.append(f"{name}.json: expected at least one question, found none")
        return found

    full = rows("full")
    train = _train(full, problems)
    content = by_content(train)
    forget_ids = _forget_ids(rows(forget_split), content, problems)
    sets = {
        "forget": (f"{forget_split}_perturbed", _PARAPHRASED),
        "retain": ("retain_perturbed", _PARAPHRASED),
        "real_authors": ("real_authors_perturbed", _PERTURBED),
        "world_facts": ("world_facts_perturbed", _PERTURBED),
    }
    evaluation = {key: _questions(key, rows(name), need, content, problems) for key, (name, need) in sets.items()}
    raise_if_any(path or HUB_NAME, problems)
    places = {"train": {record.id: row.where for record, row in zip(train, full, strict=True)}}
    corpus = Corpus(f"tofu-{forget_split}", tuple(train), forget_ids, evaluation, places)
    for name, authors in (("holdout", holdout_authors), ("reference", reference_authors)):
        corpus = withhold(corpus, authors, seed, name) if authors else corpus
    return corpus if retain_authors is None else keep_first(corpus, retain_authors)


def withhold(corpus: Corpus, authors: int, seed: int, name: str = "holdout") -> Corpus:
    """The corpus without the records of `authors` retain authors, which become the evaluation set `name`.

    They are drawn at random among the authors with nothing to forget; questions about them leave the set `retain`.
    Raises DataError if that leaves no retain author.
    """
    to_forget = {r.subject for r in corpus.train if r.id in corpus.forget_ids}
    others = [s for s in dict.fromkeys(r.subject for r in corpus.train) if s not in to_forget]
    if authors >= len(others):
        raise DataError(
            f"data.{name}_authors: {authors} of {len(others)} authors to retain cannot be withheld from training; "
            f"expected at most {len(others) - 1}"
        )
    apart = set(random.Random(f"oblivionis tofu {name} {seed}").sample(others, authors))
    evaluation = {
        **corpus.evaluation,
        "retain": tuple(r for r in corpus.evaluation["retain"] if r.subject not in apart),
        name: tuple(r for r in corpus.train if r.subject in apart),
    }
    train = tuple(r for r in corpus.train if r.subject not in apart)
    return replace(corpus, train=train, evaluation=evaluation)


def keep_first(corpus: Corpus, authors: int) -> Corpus:
    """The corpus with all that is to be forgotten and the first `authors` authors to retain, for small machines.

    TOFU's questions on the retain set are about the first 20 authors. Raises DataError for more than there are.
    """
    to_forget = {r.subject for r in corpus.train if r.id in corpus.forget_ids}
    others = [s for s in dict.fromkeys(r.subject for r in corpus.train) if s not in to_forget]
    if authors > len(others):
        raise DataError(f"data.retain_authors: {authors} of {len(others)} authors to retain; expected at most as many")
    kept = to_forget | set(others[:authors])
    train = tuple(r for r in corpus.train if r.subject in kept)
    retain = tuple(r for r in corpus.evaluation["retain"] if r.subject in kept)
    return replace(corpus, train=train, evaluation={**corpus.evaluation, "retain": retain})


def _train(rows: Sequence[Row], problems: list[str]) -> list[Record]:
    digits = max(3, len(str((len(rows) - 1) // QUESTIONS_PER_AUTHOR)))
    records = (
        to_record(
            row,
            problems,
            identifier=f"tofu-{i:04d}",
            subject=f"author-{i // QUESTIONS_PER_AUTHOR:0{digits}d}",
            need=_PLAIN,
        )
        for i, row in enumerate(rows)
    )
    return [record for record in records if record is not None]


def _forget_ids(
    rows: Sequence[Row], content: dict[tuple[str, str], list[Record]], problems: list[str]
) -> frozenset[str]:
    """Ids of the training records that the rows of the forget split name by question and answer."""
    forget_ids: set[str] = set()
    for row in rows:
        record = to_record(row, problems, need=_PLAIN)
        if record is None:
            continue
        same = content.get((record.question, record.answer))
        if same is None:
            problems.append(f"{row.where}: no row of full has this question and answer: {record.question!r}")
        else:
            forget_ids.update(r.id for r in same)
    return frozenset(forget_ids)


def _questions(
    key: str,
    rows: Sequence[Row],
    need: Sequence[str],
    content: dict[tuple[str, str], list[Record]],
    problems: list[str],
) -> tuple[Record, ...]:
    records = []
    for i, row in enumerate(rows):
        asked = (row.values.get("question"), row.values.get("answer"))
        same = content.get(asked, []) if all(isinstance(text, str) for text in asked) else []  # type: ignore[arg-type]
        record = to_record(
            row,
            problems,
            identifier=same[0].id if same else f"tofu-{key.replace('_', '-')}-{i:04d}",
            subject=same[0].subject if same else None,
            need=need,
        )
        if record is not None:
            records.append(record)
    return tuple(records)
