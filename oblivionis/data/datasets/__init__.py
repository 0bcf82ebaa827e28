"""Datasets, one file each: to add a dataset is to add a file here and a YAML file in `conf/data/`.

A module declares what the configuration must know of it by literals (`oblivionis.config.dataset_traits`) and defines

- `configured(data)`: the `Corpus` of the settings `data` (`config.schema.Data`); of a dataset with `TEXTS = True`
  `configured(data, cut)`, where `cut` gives the pieces of texts (`data.text_pieces.Cut`).

It may define besides

- `in_words(data)`: the data of these settings and what of them is to be forgotten, for reports;
- `set_size(data, name)`: how many questions the set `name` has, to tell the memory that an evaluation needs.

Modules whose names begin with an underscore are no datasets.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from oblivionis.config import dataset_traits
from oblivionis.config.schema import Data
from oblivionis.data.records import Corpus
from oblivionis.data.text_pieces import Cut
from oblivionis.errors import OblivionisError


def configured(data: Data, cut: Cut | None) -> Corpus:
    """The corpus of these settings. `cut` is given where the records are texts.

    Raises DataError for a faulty source, and OblivionisError for a dataset whose file does not define `configured`.
    """
    make = _defined("configured", data)
    if make is None:
        raise OblivionisError(
            f"data={data.name}: its code file defines no function 'configured', which makes the corpus"
        )
    return make(data) if cut is None else make(data, cut)


def in_words(data: Data) -> str:
    """The data of these settings and, where the dataset tells it, what of them is to be forgotten."""
    tell = _defined("in_words", data)
    if tell is not None:
        return tell(data)
    return f"{data.name}: {Path(data.path).name}" if data.path else data.name


def set_size(data: Data, name: str) -> int | None:
    """Questions of the set `name`; None where only the records tell."""
    count = _defined("set_size", data)
    return None if count is None else count(data, name)


def _defined(what: str, data: Data) -> Any:
    """The function of this name of the dataset's module, None where it has none."""
    module = dataset_traits.of(data.name).module
    return getattr(importlib.import_module(f"{__name__}.{module}"), what, None) if module else None
