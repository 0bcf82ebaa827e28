"""YAML files as nested mappings, with the line of every key; where `conf/` lies."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from oblivionis.config.problems import Problem
from oblivionis.errors import FileError
from oblivionis.files import read_bytes


def conf_folder(package: Path) -> Path:
    """The folder of the configurations that ship: inside the package in a wheel, else next to it."""
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


CONF = conf_folder(Path(__file__).resolve().parents[1])
LARGEST = 100_000
"""Values of a YAML file: aliases can make a few lines into more than any memory holds."""
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's quick parser where it was built with it."""
# PyYAML's constructors raise the plain ones for a tagged value that does not fit its tag.
YAML_ERRORS = (yaml.YAMLError, OmegaConfBaseException, RecursionError, ValueError, TypeError, AttributeError)


def read_yaml(file: Path) -> tuple[dict[str, Any], dict[str, str], list[Problem]]:
    """A YAML file as nested mapping, the place (`file:line`) of each dotted path, and what is wrong with the file."""
    try:
        text = read_bytes(file).decode("utf-8-sig")
    except FileNotFoundError:
        return {}, {}, [Problem(display(file), "cannot be read: there is no such file")]
    except FileError as error:
        return {}, {}, [Problem(display(file), str(error).removeprefix(f"{file}: "))]
    except UnicodeDecodeError:
        return {}, {}, [Problem(display(file), "cannot be read: it is not UTF-8 text")]
    return parse_yaml(text, display(file))


def parse_yaml(text: str, place: str) -> tuple[dict[str, Any], dict[str, str], list[Problem]]:
    """As `read_yaml`, of a text; `place` names it in problems."""
    content, lines, problems = _parsed(text, place)
    return copy.deepcopy(content), dict(lines), list(problems)


@functools.lru_cache(maxsize=256)
def _parsed(text: str, place: str) -> tuple[dict[str, Any], dict[str, str], list[Problem]]:
    """A suite composes hundreds of configurations of the same few files."""
    try:
        node = _composed(text)
        if node is None:
            return {}, {}, []
        if not isinstance(node, yaml.MappingNode):
            return {}, {}, [Problem(place, "is no mapping", "lines of the form key: value", "", f"{place}:1")]
        if _size(node, {}) > LARGEST:
            message = f"repeats itself by aliases to more than {LARGEST:,} values"
            return {}, {}, [Problem(place, message, "", "", place)]
        content = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
        lines = {path: f"{place}:{line}" for path, line in _lines(node, "", set())}
        return _text_keys(content), lines, []
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{place}:{mark.line + 1}" if mark else place
        hint = ""
        if mark and "\t" in text.splitlines()[mark.line : mark.line + 1]:
            hint = "indent with spaces"
        return {}, {}, [Problem(place, f"is not valid YAML: {error.problem or error.context}", "", hint, where)]
    except YAML_ERRORS as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return {}, {}, [Problem(place, f"is not valid YAML: {reason}", "", "", place)]


def _composed(text: str) -> yaml.Node | None:
    """A text's tree by the quick parser; what that refuses, the other one explains as PyYAML does everywhere."""
    try:
        return yaml.compose(text, Loader=LOADER)
    except (yaml.YAMLError, ValueError):
        return yaml.compose(text, Loader=yaml.SafeLoader)


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a document has once its aliases are written out."""
    if id(node) not in known:
        known[id(node)] = 1  # of one that holds itself, which another check refuses
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        within = parts if isinstance(node, yaml.CollectionNode) else []
        known[id(node)] = 1 + sum(_size(part, known) for part in within)
    return known[id(node)]


def _text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _text_keys(entry) for name, entry in value.items()}
    return value


def _lines(node: yaml.Node, prefix: str, above: set[int]) -> Iterator[tuple[str, int]]:
    if not isinstance(node, yaml.MappingNode) or id(node) in above:
        return
    for name, value in node.value:
        path = f"{prefix}.{name.value}".lstrip(".")
        yield path, name.start_mark.line + 1
        yield from _lines(value, path, above | {id(node)})


def display(file: Path) -> str:
    """A file as a reader knows it: below `conf/`, below the working directory, or in full."""
    file = file.resolve()
    for base in (CONF.parent, Path.cwd()):
        if file.is_relative_to(base):
            return str(file.relative_to(base))
    return str(file)
