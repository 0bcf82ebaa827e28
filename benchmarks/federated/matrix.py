"""From the axes of a suite to its cells, each with a complete configuration."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oblivionis.config import compose as configuration
from oblivionis.config.configuration_layers import GROUPS, flatten
from oblivionis.config.problems import ConfigError, Problem
from oblivionis.config.schema import Config
from oblivionis.config.yaml_files import read_yaml

SEED = "seed"
LABEL = "label"
TUNED = "tuned"
"""A value may name the `tuned.yaml` of a tuning: it sets the method and all that was found for it."""


class MatrixError(ValueError):
    """An axis is malformed; `path` is its key in the suite."""

    def __init__(self, path: str, message: str, expected: str = "") -> None:
        super().__init__(message)
        self.path, self.expected = path, expected


@dataclass(frozen=True)
class Value:
    """One value of an axis: its label in tables, and the keys of the configuration that it sets."""

    label: str
    keys: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Axis:
    """A dimension of the matrix."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Cell:
    """One combination of the axes' values: its labels by axis, and how its configuration is composed."""

    labels: Mapping[str, str]
    experiment: str
    overrides: tuple[str, ...]
    stages: tuple[str, ...]

    @property
    def id(self) -> str:
        """The labels in one text, e.g. `fedavg/npo/seed=0`."""
        return identifier(self.labels)

    @functools.cached_property
    def config(self) -> Config:
        """The complete configuration. Raises ConfigError."""
        return configuration.compose(self.experiment, list(self.overrides))


def identifier(labels: Mapping[str, str]) -> str:
    """Labels by axis in one text; the choice of a group needs no name."""
    return "/".join(label if axis in GROUPS else f"{axis.rpartition('.')[2]}={label}" for axis, label in labels.items())


def axes_of(matrix: Mapping[str, Any]) -> list[Axis]:
    """The axes in the given order; one that is null is left out. Raises MatrixError."""
    axes = []
    for name, values in flatten(matrix):
        path = f"matrix.{name}"
        if values is None:
            continue
        if not isinstance(values, list) or not values:
            raise MatrixError(path, f"{values!r} is no list of values", "a list with at least one value")
        found = tuple(_value(name, value, path) for value in values)
        twice = [v.label for n, v in enumerate(found) if v.label in [other.label for other in found[:n]]]
        if twice:
            raise MatrixError(path, f"names {twice[0]!r} twice", "each value once")
        axes.append(Axis(name, found))
    return axes


def _value(name: str, value: Any, path: str) -> Value:
    if not isinstance(value, Mapping):
        return Value(_text(value), ((name, value),))
    label = value.get(LABEL)
    found = _tuned(value[TUNED], path) if TUNED in value else ()
    keys = (*found, *((key, entry) for key, entry in flatten(value) if key not in (LABEL, TUNED)))
    if not isinstance(label, str) or not keys:
        raise MatrixError(
            path, f"{dict(value)!r} has no {LABEL}, or sets nothing", f"`{LABEL}: …` and keys with values"
        )
    return Value(label, keys)


def _tuned(file: Any, path: str) -> tuple[tuple[str, Any], ...]:
    """The keys of the section `unlearning` of a `tuned.yaml`; requests are the suite's."""
    where = Path(str(file)).expanduser()
    if not where.is_file():
        raise MatrixError(f"{path}.{TUNED}", f"there is no file {file}", "the tuned.yaml of a tuning: oblivionis tune")
    content, _, problems = read_yaml(where)
    section = content.get("unlearning")
    if problems or not isinstance(section, Mapping) or "method" not in section:
        reason = str(problems[0]) if problems else f"{file} has no unlearning.method"
        raise MatrixError(f"{path}.{TUNED}", reason, "the tuned.yaml of a tuning: oblivionis tune")
    rest = {name: entry for name, entry in section.items() if name not in ("method", "requests")}
    return ("unlearning", section["method"]), *((f"unlearning.{key}", entry) for key, entry in flatten(rest))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def cells_of(axes: Sequence[Axis], base: Mapping[str, Any], experiment: str, stages: Sequence[str]) -> list[Cell]:
    """Every combination of the axes' values, the last axis fastest."""
    common = [_override(path, value) for path, value in flatten(base)]
    last = _override("stages", list(stages))
    cells = []
    for chosen in itertools.product(*(axis.values for axis in axes)):
        own = [_override(key, entry) for value in chosen for key, entry in value.keys]
        labels = {axis.name: value.label for axis, value in zip(axes, chosen, strict=True)}
        cells.append(Cell(labels, experiment, (*common, *own, last), tuple(stages)))
    return cells


def _override(path: str, value: Any) -> str:
    return f"{path}={value}" if isinstance(value, str) else f"{path}={json.dumps(value)}"


def experiments(cells: Sequence[Cell]) -> list[Problem]:
    """What is wrong with the configurations of the cells; a mistake of many is reported once, with the first."""
    found: dict[tuple[str, str], Problem] = {}
    for cell in cells:
        for problem in _problems(cell):
            where = f"{problem.where}; cell {cell.id}" if problem.where else f"cell {cell.id}"
            found.setdefault((problem.path, problem.message), replace(problem, where=where))
    return list(found.values())


def _problems(cell: Cell) -> Iterator[Problem]:
    try:
        config = cell.config
    except ConfigError as error:
        yield from error.problems
        return
    for key in ("name", "start_from"):
        if getattr(config, key) is not None:
            yield Problem(key, "a suite names its runs and shares their stages itself", "null")
