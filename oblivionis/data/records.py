"""The records that clients hold and the corpora that they form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Triple:
    """One fact as subject, property and value."""

    subject: str
    property: str
    value: str


@dataclass(frozen=True, slots=True)
class Record:
    """One question about a subject with its answer, or a piece of plain text.

    `id` is stable: it survives re-partitioning, resume and re-reading of the corpus. `subject` is the natural
    identifier (the author, the patient; of a text the passage that it is a piece of). `paraphrased_answer` and
    `perturbed_answers` are needed by the truth ratio only and may be empty. `tokens`: the ids of a piece of text, all
    of which are learned; it has an empty question, and `answer` is the text that they stand for.
    """

    id: str
    question: str
    answer: str
    subject: str
    paraphrased_answer: str | None = None
    perturbed_answers: tuple[str, ...] = ()
    triples: tuple[Triple, ...] = ()
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A question with several answers, of which `choices[answer]` is the true one. `about`: its field, may be empty."""

    id: str
    question: str
    choices: tuple[str, ...]
    answer: int
    about: str = ""


TEXT_SETS = (
    "verbmem",
    "knowmem_forget",
    "knowmem_forget_examples",
    "knowmem_retain",
    "knowmem_retain_examples",
    "members",
    "holdout",
)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Everything that a run reads: what clients hold, what is to be forgotten and what is asked afterwards.

    `train` keeps the order of the source. `forget_ids` names records of `train`. `evaluation` maps the question sets
    `forget`, `retain`, `real_authors` and `world_facts` to their records, and `holdout` and `reference` to records that
    no client trains on and that are otherwise like those to forget: evaluators measure the former, and by the latter
    clients estimate the loss of records that a model never saw. A set that the source does not have is absent. A corpus
    of texts has the sets of `TEXT_SETS` instead, `members` and `holdout` of texts, the others of questions (`verbmem`:
    of beginnings and continuations), that of RWKU the probes of `rwku.PROBES`. `places`: file and line by record id, by
    `train` or the question set, where a source has them. `choices`: multiple-choice questions about what is to be
    forgotten (`forget`) and about anything else (`utility`). `left_out`: by set the ids of records of `holdout` and
    `reference` that are not there because they say what a training record says.
    """

    name: str
    train: tuple[Record, ...]
    forget_ids: frozenset[str]
    evaluation: Mapping[str, tuple[Record, ...]] = field(default_factory=dict)
    places: Mapping[str, Mapping[str, str]] = field(default_factory=dict, compare=False, repr=False)
    choices: Mapping[str, tuple[Choice, ...]] = field(default_factory=dict)
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ids = [record.id for record in self.train]
        if len(set(ids)) != len(ids):
            seen: set[str] = set()
            twice = next(i for i in ids if i in seen or seen.add(i))
            raise ValueError(f"corpus {self.name}: record id {twice!r} occurs twice; ids must be unique")
        unknown = sorted(self.forget_ids.difference(ids))
        if unknown:
            raise ValueError(f"corpus {self.name}: forget id {unknown[0]!r} is no training record")

    @property
    def is_text(self) -> bool:
        """Whether the clients hold pieces of text instead of questions."""
        return bool(self.train) and bool(self.train[0].tokens)
