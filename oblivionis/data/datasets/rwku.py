"""RWKU (Jin et al. 2024): real people whom a model is to forget, and what it is asked about them and their neighbours.

Tables are named after the configurations of `jinzhuoran/RWKU` on the Hugging Face hub, or after the files of its folder
`All`:

| table                    | in `All`          | fields                        | what it is                         |
| ------------------------ | ----------------- | ----------------------------- | ---------------------------------- |
| `forget_target`          | `intro`           | `target`                      | the people, in order; may be missing |
| `train_original_passage` | `passage`         | `text`, `subject`             | texts about each of them           |
| `forget_level1`          | the same          | `query`, `answer`, `subject`  | sentences with a blank             |
| `forget_level2`          | the same          | `query`, `answer`, `subject`  | questions                          |
| `forget_level3`          | the same          | and `type`                    | the same, asked in nine hostile ways |
| `neighbor_level1`        | the same          | as `forget_level1`            | sentences about what is near them  |
| `neighbor_level2`        | the same          | as `forget_level2`            | questions about what is near them  |
| `utility_general`        | `retain_mmlu`     | those of MMLU, and `subject`  | multiple choice; may be missing    |

RWKU has neither a forget nor a retain corpus, only a person to forget and a model that knows him. Here clients hold the
passages: those about the people to forget are the forget set, those about all others the retain set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from oblivionis.config.problems import did_you_mean
from oblivionis.config.schema import Data
from oblivionis.data import benchmark_tables, multiple_choice
from oblivionis.data.errors import DataError, raise_if_any
from oblivionis.data.records import Choice, Corpus, Record
from oblivionis.data.text_pieces import Cut, pieces
from oblivionis.row_files import Row

ORDER = 7
FILES = "train_original_passage.json, forget_level1.json, …"
TEXTS = True
HUB_NAME = "jinzhuoran/RWKU"
PROBES = {
    "forget_blanks": "forget_level1",
    "forget_questions": "forget_level2",
    "forget_attacks": "forget_level3",
    "neighbor_blanks": "neighbor_level1",
    "neighbor_questions": "neighbor_level2",
}
"""Sets of questions, and the table of each."""
IN_ALL = {"forget_target": "intro", "train_original_passage": "passage", "utility_general": "retain_mmlu"}
BLANK = "Please complete the blank in the following question.\nQuestion: {}\nAnswer:"
QUESTION = "Please briefly answer the following question.\nQuestion: {}\nAnswer:"
OF_TYPE = {
    "affirmative suffix": "Please briefly answer the following question.\nQuestion: {}",
    "incontext learning": "Please briefly answer the following question.\n{}\nAnswer:",
}
"""How RWKU words a probe; an affirmative suffix is the beginning of the answer itself."""

_TRAIN = ("forget_target", "train_original_passage")
_INSTEAD = "RWKU's tables (train_original_passage.json, forget_level1.json, …)"


def configured(data: Data, cut: Cut) -> Corpus:
    """The corpus of these settings."""
    return load(data.source, cut, forget=data.forget_targets, revision=data.revision)


def load(path: Path | None, cut: Cut, *, forget: Sequence[str] = (), revision: str | None = None) -> Corpus:
    """RWKU from a folder, or from the hub (at `revision`) when `path` is None.

    forget: the people to forget, by name; empty: the first one. Their probes are asked, and the questions of MMLU in
    their rows. Every piece of a passage is a record, `rwku-00012-p001` the second one of the thirteenth passage,
    and its subject the person. Raises DataError: a missing folder or table, a row without its fields, a person without
    a passage, a hub that cannot be reached.
    """
    if path is not None and not path.is_dir():
        raise DataError(f"{path}: no such folder; expected one with train_original_passage.json, forget_level1.json, …")
    problems: list[str] = []

    def table(name: str, needed: bool = True) -> list[Row]:
        if path is None:
            split = "train" if name in _TRAIN else "test"
            return benchmark_tables.from_hub(HUB_NAME, name, split, revision, instead=_INSTEAD)
        return benchmark_tables.from_folder(
            path, [name, *([IN_ALL[name]] if name in IN_ALL else [])], problems, needed=needed
        )

    passages = _all(table("train_original_passage"), ("text", "subject"), problems)
    known = list(dict.fromkeys(row["subject"] for row in passages))
    listed = [row["target"] for row in _all(table("forget_target", False), ("target",), problems)]
    names = list(forget) or [name for name in listed if name in known][:1] or known[:1]
    for name in names:
        if passages and name not in known:
            some = f"expected one of the {len(known)} people, such as {', '.join(known[:3])}"
            hint = did_you_mean(name, known) or some
            problems.append(f"data.forget_targets: there is no passage about {name!r}; {hint}")
    if passages and set(known) <= set(names):
        problems.append("data.forget_targets: nobody is left whose passages are retained")
    probes = {name: _probes(name, table(of), names, problems) for name, of in PROBES.items()}
    utility = _utility(table("utility_general", False), names, problems)
    raise_if_any(path or HUB_NAME, problems)
    texts = cut([row["text"] for row in passages])
    train = [
        record
        for i, (row, parts) in enumerate(zip(passages, texts, strict=True))
        for record in pieces(f"rwku-{i:05d}", parts, row["subject"])
    ]
    return Corpus(
        "rwku",
        tuple(train),
        frozenset(record.id for record in train if record.subject in names),
        {name: records for name, records in probes.items() if records},
        choices={"utility": utility} if utility else {},
    )


def _all(rows: Sequence[Row], fields: Sequence[str], problems: list[str]) -> list[dict[str, str]]:
    return [values for row in rows if (values := benchmark_tables.texts(row, fields, problems)) is not None]


def _probes(name: str, rows: Sequence[Row], people: Sequence[str], problems: list[str]) -> tuple[Record, ...]:
    """The probes about these people, worded as RWKU asks them."""
    found = []
    for i, row in enumerate(rows):
        values = benchmark_tables.texts(row, ("query", "answer", "subject"), problems)
        if values is None or values["subject"] not in people:
            continue
        wording = BLANK if name.endswith("blanks") else OF_TYPE.get(str(row.values.get("type")), QUESTION)
        asked = wording.format(values["query"].strip())
        found.append(Record(f"rwku-{name.replace('_', '-')}-{i:04d}", asked, values["answer"], values["subject"]))
    return tuple(found)


def _utility(rows: Sequence[Row], people: Sequence[str], problems: list[str]) -> tuple[Choice, ...]:
    """The questions in the rows of these people, or in all rows if these name no people; each once."""
    about = [row for row in rows if row.values.get("subject", people[0] if people else "") in people]
    found = multiple_choice.read(about, "rwku-mmlu", problems)
    return tuple({(choice.question, choice.choices): choice for choice in found}.values())
