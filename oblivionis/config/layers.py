"""Reads YAML files and overrides into layers: flat mappings from dotted path to value and place."""

from __future__ import annotations

import copy
import functools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from oblivionis.config.problems import Problem, did_you_mean
from oblivionis.config.values import KEYS, SECTIONS, expectation, known_below


def conf_folder(package: Path) -> Path:
    """The folder of the configurations that ship: inside the package in a wheel, else beside it."""
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


CONF = conf_folder(Path(__file__).resolve().parents[1])
GROUPS = {
    "model": "tiny",
    "data": "fictitious",
    "strategy": "fedavg",
    "unlearning": "npo",
    "evaluation": "light",
    "federation": "small",
}
# PyYAML's constructors raise the plain ones for a tagged value that does not fit its tag.
YAML_ERRORS = (yaml.YAMLError, OmegaConfBaseException, RecursionError, ValueError, TypeError, AttributeError)
KEY_PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def selector(group: str) -> str:
    """The path that holds a group's choice: `strategy.name`, but `unlearning.method`."""
    return f"{group}.method" if group == "unlearning" else f"{group}.name"


def list_choices() -> dict[str, list[str]]:
    """The names that each group's folder in `conf/` offers."""
    return {group: sorted(file.stem for file in (CONF / group).glob("*.yaml")) for group in GROUPS}


def list_experiments() -> list[str]:
    """The names of the complete experiments in `conf/`."""
    return sorted(file.stem for file in CONF.glob("*.yaml"))


@dataclass
class Layer:
    """Values of one source by dotted path, each with the place it comes from."""

    values: dict[str, tuple[Any, str]] = field(default_factory=dict)
    place: str = ""

    def choice(self, group: str) -> tuple[str, str] | None:
        """The name that this layer chooses in a group, and where; None when it chooses none."""
        for path in (group, selector(group)):
            value, where = self.values.get(path, (None, ""))
            if isinstance(value, str):
                return value, where
        return None

    def of(self, group: str) -> dict[str, tuple[Any, str]]:
        """The values below a group, its choice left out."""
        head = f"{group}."
        return {p: v for p, v in self.values.items() if p.startswith(head) and p != selector(group)}


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings by dotted path."""
    for name, value in tree.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping) and (value or path in SECTIONS):
            yield from flatten(value, path)
        elif value is not None or path not in SECTIONS:
            yield path, value


def read_yaml(file: Path) -> tuple[dict[str, Any], dict[str, str], list[Problem]]:
    """A YAML file as nested mapping, the place (`file:line`) of each dotted path, and what is wrong with the file."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        return {}, {}, [Problem(display(file), f"cannot be read: {reason}")]
    return parse_yaml(text, display(file))


def parse_yaml(text: str, place: str) -> tuple[dict[str, Any], dict[str, str], list[Problem]]:
    """As `read_yaml`, of a text; `place` names it in problems."""
    content, lines, problems = _parsed(text, place)
    return copy.deepcopy(content), dict(lines), list(problems)


@functools.lru_cache(maxsize=256)
def _parsed(text: str, place: str) -> tuple[dict[str, Any], dict[str, str], list[Problem]]:
    """A suite composes hundreds of configurations of the same few files."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return {}, {}, []
        if not isinstance(node, yaml.MappingNode):
            return {}, {}, [Problem(place, "is no mapping", "lines of the form key: value", "", f"{place}:1")]
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


def make_layer(content: Mapping[str, Any], places: Mapping[str, str], place: str) -> tuple[Layer, list[Problem]]:
    """Flatten a nested mapping into a layer; a section that is given a bare value is a problem."""
    layer, problems = Layer(place=place), []
    for path, value in flatten(content):
        where = places.get(path, place)
        if path in GROUPS and isinstance(value, str):
            layer.values[path] = (value, where)
        elif path in SECTIONS:
            kind = "the name of a choice or a mapping" if path in GROUPS else "a mapping"
            expected = f"{kind} with {', '.join(known_below(path))}"
            problems.append(Problem(path, f"{value!r} is not a section", expected, "", where))
        else:
            layer.values[path] = (value, where)
    return layer, problems


def parse_overrides(overrides: Sequence[str] | str) -> tuple[Layer, list[Problem]]:
    """`key=value` items, or one string of them as a shell would split it, as a layer, and the malformed ones.

    A value is read as YAML (`[1, 2]`, `true`, `null`, `1e-3`), but a key whose type is text takes it literally.
    """
    if isinstance(overrides, str):
        try:
            overrides = shlex.split(overrides)
        except ValueError as error:
            return Layer(), [Problem(overrides, f"cannot be split: {error}", "key=value key=value …", "", "override")]
    layer, problems = Layer(place="override"), []
    for item in overrides:
        path, equals, text = item.partition("=")
        path = path.strip()
        if not equals:
            problems.append(Problem(item, "malformed override: no `=`", "key=value", _bare_hint(item), "override"))
        elif not KEY_PATTERN.fullmatch(path):
            problems.append(Problem(item, f"malformed override: {path!r} is no key", "key=value", "", "override"))
        else:
            value, problem = _override_value(path, text)
            if problem:
                problems.append(problem)
                continue
            added, more = make_layer({path: value}, {}, "override")
            problems += more
            for key, entry in added.values.items():
                layer.values.pop(key, None)
                layer.values[key] = entry
    return layer, problems


def _override_value(path: str, text: str) -> tuple[Any, Problem | None]:
    quoted = text.strip()[:1] in ("'", '"')
    if path in KEYS and KEYS[path].kind is str and not quoted:
        return (None if KEYS[path].optional and text.strip() in ("null", "~", "") else text), None
    try:
        parsed = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=False)
    except YAML_ERRORS as error:
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        expected = expectation(KEYS[path]) if path in KEYS else "a YAML value"
        return None, Problem(f"{path}={text}", f"malformed override: {reason}", expected, "", "override")
    value = parsed.get("value") if isinstance(parsed, dict) else None
    return (text if path in GROUPS and not isinstance(value, (str, dict)) else value), None


def _bare_hint(item: str) -> str:
    for group, names in list_choices().items():
        if item in names:
            return f"did you mean {group}={item}?"
    return did_you_mean(item, KEYS)
