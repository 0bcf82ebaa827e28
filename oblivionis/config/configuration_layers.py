"""Layers of values, from YAML and from overrides: flat mappings from dotted path to value and place."""

from __future__ import annotations

import copy
import functools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf

from oblivionis.config.problems import Problem, did_you_mean
from oblivionis.config.values import KEYS, SECTIONS, Key, expectation, known_below
from oblivionis.config.yaml_files import CONF, YAML_ERRORS

GROUPS = {
    "model": "tiny",
    "data": "fictitious",
    "strategy": "fedavg",
    "unlearning": "auto",
    "evaluation": "light",
    "federation": "small",
    "privacy": "none",
}
_SELECTORS = {"unlearning": "method", "privacy": "level"}
KEY_PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def selector(group: str) -> str:
    """The path that holds a group's choice: `strategy.name`, but `unlearning.method` and `privacy.level`."""
    return f"{group}.{_SELECTORS.get(group, 'name')}"


def list_choices() -> dict[str, list[str]]:
    """The names that each group's folder in `conf/` offers."""
    return {group: choices_of(group) for group in GROUPS}


def choices_of(group: str) -> list[str]:
    """The names that the folder of a group in `conf/` offers."""
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


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


def differences(
    before: Mapping[Any, Any],
    now: Mapping[Any, Any],
    sections: frozenset[str] = frozenset(),
    paths: frozenset[str] = frozenset(),
) -> list[str]:
    """Dotted paths whose values differ, with both; none of these `sections` or `paths`."""
    old, new = dict(flatten(before)), dict(flatten(now))
    compared = [path for path in {**old, **new} if path.split(".")[0] not in sections and path not in paths]
    return [f"{path} was {old.get(path)}, is {new.get(path)}" for path in compared if old.get(path) != new.get(path)]


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


def parse_overrides(overrides: Sequence[str] | str, keys: Mapping[str, Key] = KEYS) -> tuple[Layer, list[Problem]]:
    """`key=value` items, or one string of them as a shell would split it, as a layer, and the malformed ones.

    A value is read as YAML (`[1, 2]`, `true`, `null`, `1e-3`), but a key whose type is text takes it literally. `keys`:
    those that there are.
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
            value, problem = _override_value(path, text, keys)
            if problem:
                problems.append(problem)
                continue
            added, more = make_layer({path: value}, {}, "override")
            problems += more
            for key, entry in added.values.items():
                layer.values.pop(key, None)
                layer.values[key] = entry
    return layer, problems


def _override_value(path: str, text: str, keys: Mapping[str, Key]) -> tuple[Any, Problem | None]:
    quoted = text.strip()[:1] in ("'", '"')
    if path in keys and keys[path].kind is str and not quoted:
        return (None if keys[path].optional and text.strip() in ("null", "~", "") else text), None
    try:
        parsed = copy.deepcopy(_yaml_value(text))
    except YAML_ERRORS as error:
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        expected = expectation(keys[path]) if path in keys else "a YAML value"
        return None, Problem(f"{path}={text}", f"malformed override: {reason}", expected, "", "override")
    value = parsed.get("value") if isinstance(parsed, dict) else None
    return (text if path in GROUPS and not isinstance(value, (str, dict)) else value), None


@functools.lru_cache(maxsize=1024)
def _yaml_value(text: str) -> Any:
    """`{"value": …}` with the value that is written so; a suite gives hundreds of configurations the same few."""
    return OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=False)


def _bare_hint(item: str) -> str:
    if item in list_experiments():
        return f"an experiment comes before the keys: {item} key=value …"
    for group, names in list_choices().items():
        if item in names:
            return f"did you mean {group}={item}?"
    return did_you_mean(item, KEYS)
