"""What a dataset declares about itself, from the literals of its code file, read without importing it.

A dataset is a module of `oblivionis/data/datasets/` and a YAML file in `conf/data/` for each of its names, with the
defaults of the keys of `data` that it reads. The module's literals say the rest, each of them optional:

- `NAMES`: what `data.name` calls it; without it, the file's name;
- `ABOUT`: what it is, after `data.name` in the reference page; without it, it is one of the benchmarks;
- `ORDER`: its place among the choices; without it, after those that have one;
- `FILES`: what a folder with its files holds, for messages, or a mapping from name to that: it is read from that folder
  (`data.path`) or, without one, from the Hugging Face hub;
- `NEEDS`: files without which such a folder is none, with keys of `data` in braces; they are those of `HUB_NAME`;
- `READS`: keys of `data` that name a file or folder from which it is read. With neither `FILES` nor `READS` it comes
  with the program;
- `ON_CLIENTS = True`: its records are on the clients' machines alone, and the server knows none;
- `TEXTS = True`: its records are pieces of plain text, not questions and answers;
- `REFERENCES`: the key of `data` that says which records no client trains on;
- `AUTHORS`, `QUESTIONS_PER_AUTHOR`: how many it has, each a number or the key of `data` that says it. Of a number of
  authors, `holdout_authors` and `reference_authors` are taken away; to as many as a key says they are added;
- `FORGET_AUTHORS`: authors to forget, by `data.forget_split`;
- `FEWER`: key of `data` -> another key than which it must be less, and what would be wrong otherwise;
- `ONLY`: name -> key of `data` -> the one value that this name can have, its title, and a name that has others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oblivionis.config import extension_traits


@dataclass(frozen=True)
class Dataset:
    """The declarations of the dataset `name`, whose code file is `module`; those of a name without a file are empty."""

    name: str
    module: str = ""
    literals: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> bool:
        """Whether its file has no other name before this one."""
        return self.literals.get("NAMES", (self.name,))[0] == self.name

    @property
    def about(self) -> str:
        """What it is, in words; empty for a benchmark."""
        return self.literals.get("ABOUT", "")

    @property
    def files(self) -> str:
        """What a folder with its files holds; empty where it is no benchmark."""
        given = self.literals.get("FILES", "")
        return given.get(self.name, "") if isinstance(given, Mapping) else given

    @property
    def needs(self) -> tuple[str, ...]:
        """Files that such a folder must hold, with keys of `data` in braces."""
        return tuple(self.literals.get("NEEDS", ()))

    @property
    def hub_name(self) -> str:
        """What the hub calls it."""
        return self.literals.get("HUB_NAME", "")

    @property
    def reads(self) -> tuple[str, ...]:
        """The keys of `data` that name what it is read from."""
        return tuple(self.literals.get("READS", ("path",) if self.files else ()))

    @property
    def built_in(self) -> bool:
        """Whether it comes with the program."""
        return bool(self.module) and not self.reads

    @property
    def on_clients(self) -> bool:
        """Whether the server knows no record."""
        return bool(self.literals.get("ON_CLIENTS"))

    @property
    def texts(self) -> bool:
        """Whether its records are pieces of plain text."""
        return bool(self.literals.get("TEXTS"))

    @property
    def references(self) -> str:
        """The key of `data` that says which records no client trains on; empty: it has none."""
        return self.literals.get("REFERENCES", "")

    @property
    def invents(self) -> bool:
        """Whether it makes as many authors as requested, and further ones that no client trains on."""
        return isinstance(self.literals.get("AUTHORS"), str)

    @property
    def withholds(self) -> bool:
        """Whether the authors that no client trains on are taken from those that it has."""
        return isinstance(self.literals.get("AUTHORS"), int)

    @property
    def fewer(self) -> Mapping[str, tuple[str, str]]:
        """Key of `data` -> a key than which it must be less, and what would be wrong otherwise."""
        return self.literals.get("FEWER", {})

    @property
    def only(self) -> Mapping[str, tuple[str, str, str]]:
        """Key of `data` -> the one value that it can have, the dataset's title, and a name that has others."""
        return self.literals.get("ONLY", {}).get(self.name, {})

    def authors(self, data: Any) -> int | None:
        """Number of authors that clients train on, if the settings `data` (`schema.Data`) give it."""
        given = self.literals.get("AUTHORS")
        if not isinstance(given, int):
            return None if given is None else getattr(data, given)
        most = given - data.holdout_authors - data.reference_authors
        forget = self.literals.get("FORGET_AUTHORS", {}).get(data.forget_split, 0)
        return most if data.retain_authors is None else min(most, data.retain_authors + forget)

    def records(self, data: Any) -> int | None:
        """Records that are trained on, where the settings tell it."""
        authors, each = self.authors(data), self.literals.get("QUESTIONS_PER_AUTHOR")
        if authors is None or each is None:
            return None
        return authors * (each if isinstance(each, int) else getattr(data, each))


def of(name: str) -> Dataset:
    """The dataset that `data.name` calls so."""
    return known().get(name, Dataset(name))


@functools.cache
def known() -> Mapping[str, Dataset]:
    """All datasets by name, in the order of the choices."""
    files = {file: extension_traits.code("data", file).literals for file in extension_traits.names("data")}
    ordered = sorted(files, key=lambda file: (files[file].get("ORDER", math.inf), file))
    return {name: Dataset(name, file, files[file]) for file in ordered for name in files[file].get("NAMES", (file,))}


def built_in() -> str:
    """The names of the datasets that come with the program, for a sentence."""
    return ", ".join(f"`{name}`" for name, dataset in known().items() if dataset.built_in)


def help_text() -> str:
    """What each name of `data.name` stands for."""
    parts, benchmarks = [], []
    for name, dataset in known().items():
        if not dataset.about:
            benchmarks.append(f"`{name}`")
        elif dataset.first:
            parts.append(f"`{name}`: {dataset.about}")
    return "; ".join([*parts, *([f"{', '.join(benchmarks)}: those benchmarks"] if benchmarks else [])]) + "."
