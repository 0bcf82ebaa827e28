"""What losses, protocols, aggregators, evaluators, attacks and datasets declare, read without importing them.

Each is one code file and one YAML file of the same name:

| | code | YAML | keys |
| --- | --- | --- | --- |
| loss | `clients/losses/` | `conf/unlearning/` | `unlearning.params.<key>` |
| protocol | `strategies/protocols/` | `conf/unlearning/` | `unlearning.params.<key>` |
| aggregator | `strategies/rules/` | `conf/strategy/` | `strategy.params.<key>` |
| evaluator (or `<name>/evaluator.py`) | `oblivionis/measures/` | `conf/evaluator/` | `evaluation.<name>.<key>` |
| attack | `oblivionis/audits/attacks/` | `conf/attack/` | `attack.<name>.<key>` |
| dataset | `oblivionis/data/datasets/` | `conf/data/` | those of `data` |

The YAML file has the keys and their defaults (under `params:` those of the first three). The code file may say more by
literals at its top level, so that a mistake in a configuration is reported before anything heavy is loaded:

    LIMITS = {"beta": {"help": "Inverse temperature.", "above": 0}, "questions": {"type": "int", "at_least": 1}}

By key: the keywords of `limits.About`; `type` (`bool`, `int`, `float`, `str`) where the default is null;
`optional: True` where null is allowed though it is not the default. What a loss and a protocol declare besides:
`config.method_traits`; what a dataset does: `config.dataset_traits`. An unlearning method may be both a loss and a
protocol, in two files of its name: what they say counts together.

A loss may also lie anywhere else: `unlearning=my_loss.py`. Such a file has no YAML file, and its function the defaults.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clients.own_code import read_code
from oblivionis.config.limits import About
from oblivionis.config.problems import Problem
from oblivionis.config.yaml_files import CONF, display, read_yaml

CODE = {
    "unlearning": ("clients/losses", "strategies/protocols"),
    "strategy": ("strategies/rules",),
    "evaluator": ("oblivionis/measures",),
    "attack": ("oblivionis/audits/attacks",),
    "data": ("oblivionis/data/datasets",),
}
"""Where the code files of a kind lie, the one that says what it is first; a kind is a folder of `conf/`."""
SHARING = ("unlearning", "evaluator")
"""Kinds whose folders also have files that several share."""
IN_FOLDER = "evaluator.py"
TYPES: dict[str, type] = {"bool": bool, "int": int, "float": float, "str": str}
UNLIMITED = About("")

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Limit:
    """What a code file says of one key: `kind` is its type where the default does not tell it."""

    about: About = UNLIMITED
    kind: type | None = None
    optional: bool = False


@dataclass(frozen=True)
class CodeFile:
    """What a code file says: the first paragraph of its docstring, its literals by name, what is wrong with it.

    `quantities`: the positional parameters of the function that has the file's name, each with whether it is optional;
    `keywords`: its keyword parameters with their defaults, `...` for one that has none or that is no literal. `builds`:
    whether it has a function `build`, or a class derived from `Measure`.
    """

    summary: str = ""
    quantities: Mapping[str, bool] = field(default_factory=dict)
    keywords: Mapping[str, Any] = field(default_factory=dict)
    literals: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    builds: bool = False


@dataclass(frozen=True)
class Settings:
    """The settings of one evaluator or attack: defaults by key, where each stands, and what is wrong with the files."""

    code: CodeFile
    defaults: Mapping[str, Any]
    places: Mapping[str, str]
    problems: tuple[Problem, ...] = ()


def names(kind: str) -> list[str]:
    """The names of a kind's code files, sorted, without those of what unlearning methods or evaluators share."""
    files = [file for folder in CODE[kind] for file in (_ROOT / folder).glob("*.py")]
    if kind == "evaluator":
        files += [file for folder in CODE[kind] for file in (_ROOT / folder).glob(f"*/{IN_FOLDER}")]
    files = [file for file in files if kind not in SHARING or _is_one(kind, file)]
    return sorted({name for file in files if not (name := _name(file)).startswith("_")})


def _is_one(kind: str, file: Path) -> bool:
    """Whether a file is of a kind, and not shared by those that are; one that cannot be read may be an evaluator."""
    found = _read(file)
    return found.builds or bool(found.quantities if kind == "unlearning" else found.problems)


def code_files(kind: str, name: str) -> list[Path]:
    """The code files of this name; an evaluator's may be `IN_FOLDER` in a folder of its name."""
    places = [f"{name}.py", *([f"{name}/{IN_FOLDER}"] if kind == "evaluator" else [])]
    return [file for folder in CODE[kind] for place in places if (file := _ROOT / folder / place).is_file()]


def _name(file: Path) -> str:
    return file.parent.name if file.name == IN_FOLDER else file.stem


def attacks() -> list[str]:
    """The kinds of attack in the order of tables: by the literal `ORDER` of each file, then by name."""
    return sorted(names("attack"), key=lambda name: (code("attack", name).literals.get("ORDER", math.inf), name))


def own_loss(method: str) -> Path | None:
    """The file of a loss that is no part of the program: a method that is the path of a Python file."""
    return Path(method).expanduser().absolute() if method.endswith(".py") else None


def code(kind: str, name: str) -> CodeFile:
    """What the code files `name` of a kind declare; nothing where there are none.

    A loss of the user's own is read anew each time; what is missing in it is among its problems.
    """
    if kind == "unlearning" and (file := own_loss(name)) is not None:
        found = _parse(file)
        return found if found.problems else replace(found, problems=tuple(_missing_parts(file, found)))
    files = code_files(kind, name)
    if not files:
        return CodeFile()
    first, *more = (_read(file) for file in files)
    if kind == "unlearning" and not (first.quantities or any(found.builds for found in (first, *more))):
        message = f"has neither a function {name!r} of a batch, which would be a loss, nor `build`, as a protocol has"
        return replace(first, problems=(*first.problems, Problem(display(files[0]), message)))
    for other in more:
        literals, limits = {**other.literals, **first.literals}, {**other.limits, **first.limits}
        first = replace(first, literals=literals, limits=limits, problems=(*first.problems, *other.problems))
    return first


@functools.cache
def settings(kind: str) -> dict[str, Settings]:
    """Of every file in `conf/<kind>/`, sorted by name."""
    return {file.stem: _settings(kind, file) for file in sorted((CONF / kind).glob("*.yaml"))}


def defaults(kind: str) -> dict[str, dict[str, Any]]:
    """The default settings of every file in `conf/<kind>/`: name -> key -> value."""
    return {name: dict(own.defaults) for name, own in settings(kind).items()}


def problems() -> list[Problem]:
    """What is wrong with the files of evaluators, attacks and datasets, under any configuration."""
    found = [*settings("evaluator").values(), *settings("attack").values(), *(code("data", n) for n in names("data"))]
    return [problem for own in found for problem in own.problems]


def _settings(kind: str, file: Path) -> Settings:
    content, places, found = read_yaml(file)
    own = code(kind, file.stem)
    if file.stem not in names(kind):
        what = " with a class derived from Measure" if kind == "evaluator" else ""
        found.append(Problem(display(file), "has no code file", f"{CODE[kind][0]}/{file.stem}.py{what}"))
    for key in own.limits:
        if key not in content:
            message = f"LIMITS names {key!r}, which is no key of {display(file)}"
            found.append(Problem(display(code_files(kind, file.stem)[0]), message))
    return Settings(own, content, places, (*found, *own.problems))


def _missing_parts(file: Path, found: CodeFile) -> Iterator[Problem]:
    """What keeps a file of the user's from being a loss."""
    place = display(file)
    if not found.quantities:
        shape = f"def {file.stem}(forget_nll, …, *, key=default) -> Tensor"
        yield Problem(place, f"has no function {file.stem!r} of a batch", shape)
    for key in (key for key, value in found.keywords.items() if value is ...):
        yield Problem(place, f"the hyperparameter {key!r} has no default that can be read", "a number, text or null")
    for key in found.limits.keys() - found.keywords.keys():
        yield Problem(place, f"LIMITS names {key!r}, which is no hyperparameter of {file.stem}")
    for literal in sorted(found.literals.keys() & {"BALL", "SCALED_BY"}):
        if found.literals[literal] not in list(found.keywords):
            message = f"{literal} names {found.literals[literal]!r}, which is no hyperparameter of {file.stem}"
            yield Problem(place, message)


def _parse(file: Path) -> CodeFile:
    place = display(file)
    try:
        if not file.exists():
            return CodeFile(problems=(Problem(place, "there is no such file"),))
        tree = ast.parse(read_code(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return CodeFile(problems=(Problem(place, f"cannot be read: {error}"),))
    summary = (ast.get_docstring(tree) or "").split("\n\n")[0].replace("\n", " ")
    found, problems = {}, []
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if not (isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and value):
            continue
        try:
            found[target.id] = ast.literal_eval(value)
        except (ValueError, TypeError):
            if target.id == "LIMITS":
                problems.append(Problem(place, "LIMITS is no literal", "{key: {keyword: number}}", "", place))
    limits = _limits(found.get("LIMITS", {}), f"{place}: LIMITS", problems)
    if not isinstance(found.get("NOT_WITH", {}), dict):
        problems.append(Problem(f"{place}: NOT_WITH", "is no mapping", "{name: reason}"))
        del found["NOT_WITH"]
    builds = any(_builds(node) for node in tree.body)
    return CodeFile(summary, *_parameters(tree, file.stem), found, limits, tuple(problems), builds)


_read = functools.cache(_parse)


def _builds(node: ast.stmt) -> bool:
    """Whether a statement defines what builds a protocol or an evaluator."""
    if isinstance(node, ast.ClassDef):
        return any(isinstance(base, ast.Name) and base.id == "Measure" for base in node.bases)
    return isinstance(node, ast.FunctionDef) and node.name == "build"


def _parameters(tree: ast.Module, name: str) -> tuple[dict[str, bool], dict[str, Any]]:
    """Quantities and keywords of the function `name`, as `CodeFile` has them."""
    function = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name), None)
    if function is None:
        return {}, {}
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    required = len(names) - len(function.args.defaults)
    keywords: dict[str, Any] = {}
    for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        keywords[argument.arg] = ...
        with suppress(ValueError, TypeError):
            keywords[argument.arg] = ... if default is None else ast.literal_eval(default)
    return {argument: number >= required for number, argument in enumerate(names)}, keywords


def _limits(given: Any, place: str, problems: list[Problem]) -> dict[str, Limit]:
    """The limits by key; what cannot be read goes to `problems`."""
    if not isinstance(given, dict):
        problems.append(Problem(place, "is no mapping", "{key: {keyword: number}}"))
        return {}
    found = {}
    for key, entry in given.items():
        try:
            words = dict(entry)
            kind = TYPES[words.pop("type")] if "type" in words else None
            optional = bool(words.pop("optional", False))
            words["choices"] = tuple(words.get("choices", ()))
            found[str(key)] = Limit(About(**{"help": "", **words}), kind, optional)
        except (TypeError, ValueError, KeyError) as error:
            known = ", ".join([*About.__dataclass_fields__, "type", "optional"])
            problems.append(Problem(f"{place}[{key!r}]", f"cannot be understood ({error})", f"keywords of {known}"))
    return found
