"""Checks one composed mapping against the schema, key by key."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from oblivionis.config import extension_traits
from oblivionis.config.extension_traits import Limit
from oblivionis.config.limits import About
from oblivionis.config.problems import Problem, did_you_mean, nearest
from oblivionis.config.schema import Config

_SYNONYMS = {"gpu": "cuda", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "4bit": "nf4", "8bit": "int8"}
"""What others call a choice, where no letters tell."""
type_hints = functools.cache(typing.get_type_hints)
"""Of a dataclass of settings, its types by field."""
KIND_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


@dataclasses.dataclass(frozen=True)
class Key:
    """One leaf of the schema: `kind` is its type without `None`, `item` the type of a list's items.

    `where` is the place of a default that is not the schema's own.
    """

    path: str
    kind: type
    item: type | None
    optional: bool
    default: Any
    about: About
    where: str = ""


def sections(cls: type = Config, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every section of the schema by its dotted path, with its docstring; the whole is the section `""`."""
    yield prefix, (cls.__doc__ or "").strip()
    hints = type_hints(cls)
    for field in dataclasses.fields(cls):
        path = f"{prefix}.{field.name}".lstrip(".")
        if dataclasses.is_dataclass(hints[field.name]):
            yield from sections(hints[field.name], path)
        elif "brought" in field.metadata:
            for name, own in extension_traits.settings(field.metadata["brought"]).items():
                yield f"{prefix}.{name}", own.code.summary


@functools.cache
def brought() -> dict[str, str]:
    """The sections of the schema in which files of evaluators and attacks bring settings, with their kind."""
    hints = type_hints(Config)
    classes = {name: cls for name, cls in hints.items() if dataclasses.is_dataclass(cls)}
    fields = [(name, field) for name, cls in classes.items() for field in dataclasses.fields(cls)]
    return {name: field.metadata["brought"] for name, field in fields if "brought" in field.metadata}


def brought_problems() -> list[Problem]:
    """What is wrong with the files of evaluators and attacks, under any configuration."""
    found = extension_traits.problems()
    for section, kind in brought().items():
        cls = type_hints(Config)[section]
        for name in {field.name for field in dataclasses.fields(cls)} & extension_traits.settings(kind).keys():
            message = f"{section}.{name} is a key of the schema already"
            found.append(Problem(f"conf/{kind}/{name}.yaml", message, "another name"))
    return found


def schema_keys() -> dict[str, Key]:
    """Every leaf of the schema by its dotted path, in the order of declaration."""
    return {key.path: key for key in keys_of(Config, Config(), "")}


def keys_of(cls: type, defaults: Any, prefix: str = "") -> Iterator[Key]:
    """Every leaf of a dataclass of settings, with its default in the instance `defaults`."""
    hints = type_hints(cls)
    for field in dataclasses.fields(cls):
        path = f"{prefix}.{field.name}".lstrip(".")
        default = getattr(defaults, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            yield from keys_of(hints[field.name], default, path)
            continue
        if "brought" in field.metadata:
            for name, own in extension_traits.settings(field.metadata["brought"]).items():
                for key, value in own.defaults.items():
                    where = own.places.get(key, "")
                    yield declared_key(f"{prefix}.{name}.{key}", value, own.code.limits.get(key, Limit()), where)
            continue
        hint = hints[field.name]
        members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        plain = next(member for member in members if member is not type(None))
        kind, about = typing.get_origin(plain) or plain, field.metadata["about"]
        item = typing.get_args(plain)[0] if kind is list else None
        if kind is typing.Literal:
            kind, about = str, dataclasses.replace(about, choices=typing.get_args(plain))
        yield Key(path, kind, item, type(None) in members, default, about)


def declared_key(path: str, default: Any, limit: Limit, where: str = "") -> Key:
    """The key of a setting or parameter that a code file declares: its type is that of the default, else a number."""
    kind = limit.kind or (float if default is None else type(default))
    item = type(default[0]) if isinstance(default, list) and default else None
    return Key(path, kind, item, default is None or limit.optional, default, limit.about, where)


KEYS = schema_keys()
SECTIONS = {path for path, _ in sections()}


def expectation(key: Key) -> str:
    """What a key takes, in words: choices, or type and range."""
    limits, nullable = key.about, " or null" if key.optional else ""
    if key.kind is list:
        items = f"names from {', '.join(limits.choices)}" if limits.choices else f"{KIND_NAMES[key.item or str]}s"
        return f"a list of {items.replace('a text', 'text').replace('a whole number', 'whole number')}{nullable}"
    if limits.choices:
        return f"one of {', '.join(limits.choices)}{nullable}"
    if limits.range() and key.kind in (int, float):
        return limits.range() + nullable
    return KIND_NAMES.get(key.kind, "a mapping") + nullable


def check_values(
    tree: Mapping[str, Any], origins: Mapping[str, str], more: Iterable[str] = ()
) -> tuple[dict[str, Any], list[Problem]]:
    """The values that are right, by dotted path, and a problem for each key that is unknown or has a wrong value.

    `origins` says for a dotted path where its value was given; it is named in the problem. `more` are known paths
    in addition to the schema's, for hints.
    """
    good: dict[str, Any] = {}
    problems: list[Problem] = []
    for path, value in _leaves(tree, ""):
        inner = [origins[o] for o in origins if o.startswith(f"{path}.")] if isinstance(value, Mapping) else []
        where = inner[-1] if inner else origins.get(path, "")
        if path in KEYS:
            value, problem = check_value(KEYS[path], value, where)
            if problem is None:
                good[path] = value
            else:
                problems.append(problem)
        elif path in SECTIONS:
            names = ", ".join(known_below(path))
            problems.append(Problem(path, f"{value!r} is not a section", f"a mapping with {names}", "", where))
        else:
            problems.append(unknown_key(path, where, more))
    return good, problems


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        path = f"{prefix}.{name}".lstrip(".")
        if path in SECTIONS and isinstance(value, Mapping):
            yield from _leaves(value, path)
        else:
            yield path, value


def known_below(section: str) -> list[str]:
    """Names directly inside a section (`""`: at the top)."""
    head = f"{section}." if section else ""
    inside = [path[len(head) :] for path in [*KEYS, *SECTIONS] if path.startswith(head) and path != section]
    return sorted({name.split(".")[0] for name in inside})


def unknown_key(path: str, where: str = "", more: Iterable[str] = ()) -> Problem:
    """The problem of a key that is not in the schema, with the nearest known key.

    A misspelt name of the section is nearest, then a key of the same name in another section (`learning_rate`:
    `training.learning_rate`), then a similar name in the section, then one anywhere. `more` are known paths in
    addition to the schema's: a method's hyperparameters.
    """
    section, _, name = path.rpartition(".")
    while section and section not in SECTIONS and section not in KEYS:
        section, _, name = section.rpartition(".")
    if section in KEYS:
        return Problem(path, f"{section} has no keys of its own", expectation(KEYS[section]), "", where)
    head = f"{section}." if section else ""
    siblings = known_below(section)
    paths = [*KEYS, *more, *(s for s in SECTIONS if s)]
    last = path.rpartition(".")[2]
    same = [known for known in paths if known.rpartition(".")[2] == last]
    same = [known for known in same if head and known.startswith(head)] or same
    near, very_near = nearest(name, siblings), nearest(name, siblings, cutoff=0.85)
    by_leaf = {known.rpartition(".")[2]: known for known in reversed(paths)}
    far = nearest(last, by_leaf, cutoff=0.75)
    if same and not very_near:
        hint = f"did you mean {' or '.join(same[:3])}?"
    elif near:
        hint = f"did you mean {head}{near}?"
    else:
        hint = f"did you mean {by_leaf[far]}?" if far else ""
    expected = "" if hint else f"a key of {section or 'the configuration'}: {', '.join(siblings)}"
    return Problem(path, "unknown key", expected, hint, where)


def check_value(key: Key, value: Any, where: str = "") -> tuple[Any, Problem | None]:
    """The value in the key's type, or the problem with it."""
    expected = expectation(key)
    if value is None:
        return None, None if key.optional else Problem(key.path, "null is not allowed", expected, "", where)
    if key.kind is dict:
        wrong = (
            None if isinstance(value, Mapping) else Problem(key.path, f"{value!r} is no mapping", expected, "", where)
        )
        return value, wrong
    if key.kind is not list:
        return _check_scalar(key.path, key.kind, key.about, value, expected, where)
    if isinstance(value, str) and value in key.about.words:
        value = [value]
    if not isinstance(value, list):
        return None, Problem(key.path, f"{value!r} is not a list", expected, _list_hint(key.path, value), where)
    if key.about.at_least is not None and len(value) < key.about.at_least:
        return None, Problem(key.path, "the list is empty", expected, "", where)
    items = []
    bare = dataclasses.replace(key.about, at_least=None)
    for number, entry in enumerate(value):
        item, problem = _check_scalar(f"{key.path}[{number}]", key.item or str, bare, entry, expected, where)
        if problem:
            return None, problem
        items.append(item)
    if len(set(items)) != len(items) and not key.about.repeats:
        return None, Problem(key.path, f"{value!r} names something twice", expected, "", where)
    return items, None


def _list_hint(path: str, value: Any) -> str:
    return f"write {path}=[{value}]" if isinstance(value, (str, int, float)) else ""


def _choice_hint(value: str, choices: Collection[str]) -> str:
    meant = _SYNONYMS.get(value.lower(), "")
    return f"did you mean {meant}?" if meant in choices else did_you_mean(value, choices)


def _inner_hint(path: str, value: Any) -> str:
    """Of a section where a value belongs: the key that stands alone."""
    known = [name for name in value if name in KEYS] if isinstance(value, dict) else []
    return f"{path} has no keys below it; did you mean {known[0]}={value[known[0]]}?" if known else ""


def _check_scalar(
    path: str, kind: type, limits: About, value: Any, expected: str, where: str
) -> tuple[Any, Problem | None]:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        quote = "; put it in quotes" if kind is str and isinstance(value, (int, float)) else ""
        named = KIND_NAMES[kind]
        message = f"{value!r} is not {named}{quote}"
        return None, Problem(path, message, "" if expected == named else expected, _inner_hint(path, value), where)
    if isinstance(value, str):
        if limits.choices and value not in limits.choices:
            return None, Problem(
                path, f"unknown choice {value!r}", expected, _choice_hint(value, limits.choices), where
            )
        if value == "???":
            return None, Problem(path, "a value must be given", expected, "", where)
        if not limits.allows(len(value)):
            return None, Problem(path, "the text is empty", expected, "", where)
    elif isinstance(value, float) and not math.isfinite(value):
        return None, Problem(path, f"{value} is not finite", expected, "", where)
    elif not isinstance(value, bool) and not limits.allows(value):
        return None, Problem(path, f"{value} is out of range", expected, "", where)
    return value, None


def check_params(
    method: str,
    defaults: Mapping[str, Any],
    given: Mapping[str, Any],
    origins: Mapping[str, str],
    limits: Mapping[str, Limit],
    head: str = "unlearning.params.",
) -> tuple[dict[str, Any], list[Problem]]:
    """The parameters of a method or an aggregator in their types, and what is wrong with them.

    `defaults` are those of its file in `conf/`: its keys are the known ones and its values tell the types. `limits` are
    those of its code file. `head` comes before a name in its path.
    """
    good, problems = dict(defaults), []
    for name, value in given.items():
        path = f"{head}{name}"
        where = origins.get(path, "")
        if name not in defaults:
            expected = f"a parameter of {method}: {', '.join(defaults) or 'it has none'}"
            problems.append(Problem(path, "unknown key", expected, did_you_mean(str(name), defaults, head), where))
            continue
        key = declared_key(path, defaults[name], limits.get(name, Limit()))
        checked, problem = check_value(key, value, where)
        if problem:
            problems.append(problem)
        else:
            good[name] = checked
    return good, problems
