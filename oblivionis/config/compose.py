"""Composes a configuration from YAML files and overrides, and reports everything that is wrong with it at once.

Later layers win: schema defaults, the chosen file of each group, the experiment (first what it `extends`), its
`per_choice` block for the chosen name, the overrides.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from oblivionis.config.checks import cross_checks
from oblivionis.config.layers import (
    CONF,
    GROUPS,
    Layer,
    display,
    list_choices,
    list_experiments,
    make_layer,
    parse_overrides,
    parse_yaml,
    read_yaml,
    selector,
)
from oblivionis.config.problems import ConfigError, Problem, did_you_mean, render_problems
from oblivionis.config.schema import Config
from oblivionis.config.values import KEYS, check_params, check_values

__all__ = [
    "CONF",
    "GROUPS",
    "Config",
    "ConfigError",
    "Problem",
    "compose",
    "from_yaml",
    "list_choices",
    "list_experiments",
    "method_params",
    "render_problems",
    "to_yaml",
]

T = TypeVar("T")
Values = dict[str, tuple[Any, str]]


def compose(experiment: str | Path = "default", overrides: Sequence[str] | str = ()) -> Config:
    """The configuration of an experiment.

    `experiment` is a name in `conf/` or the path of a YAML file. `overrides` are `key=value` items, or one string of
    them; `strategy=fedadam` chooses a file of a group. Raises `ConfigError` with every problem found; nothing has been
    started by then.
    """
    last, problems = parse_overrides(overrides)
    layers, blocks, more = _experiment_layers(experiment)
    problems += more

    names: dict[str, str] = {}
    values: Values = {path: (key.default, "") for path, key in KEYS.items() if path != "unlearning.params"}
    idle: list[tuple[str, str, Values]] = []
    params: dict[str, Any] | None = {}
    for group, default in GROUPS.items():
        name, file, problem = _choose(group, [*layers, last], default)
        names[group] = name
        problems += [problem] if problem else []
        stored, more = _group_file(group, file)
        problems += more
        named, _ = stored.pop(selector(group), (name, ""))
        values |= stored
        if group == "unlearning":
            params = None if problem else _params_of(stored)
        for layer in layers:
            chosen = layer.choice(group)
            if chosen is None or chosen[0] == name:
                values |= layer.of(group)
            elif not problem:
                idle.append((group, chosen[0], layer.of(group)))
        for block_group, block_name, block in blocks:
            if block_group == group and block_name == name:
                values |= block
            elif block_group == group:
                idle.append((group, block_name, block))
        values |= last.of(group)
        chosen_at = next((c[1] for layer in [last, *reversed(layers)] if (c := layer.choice(group))), "")
        values[selector(group)] = (file if problem else named, chosen_at)
    for layer in [*layers, last]:
        values |= {p: v for p, v in layer.values.items() if p.split(".")[0] not in GROUPS}

    good, origins, more = _checked(values, names["unlearning"], params)
    problems += more
    for group, name, block in idle:
        known = method_params(name) if group == "unlearning" else {}
        problems += _checked(block, name, known)[2]
    config = _build(good)
    bad = {p.path.split("[")[0] for p in problems}
    crossed = [dataclasses.replace(p, where=origins.get(p.path, "")) for p in cross_checks(config, bad)]
    if problems or crossed:
        raise ConfigError(dict.fromkeys([*problems, *crossed]))
    return config


def method_params(method: str) -> dict[str, Any]:
    """Hyperparameters of an unlearning method with their defaults; empty when there is no such file."""
    if method not in list_choices()["unlearning"]:
        return {}
    return _params_of(_group_file("unlearning", method)[0])


def to_yaml(config: Config) -> str:
    """Every key of a configuration as YAML; `from_yaml` and `compose` read it back."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(dataclasses.asdict(config))))


def from_yaml(text: str) -> Config:
    """The configuration in a text made by `to_yaml`; a key that is absent has the schema's default.

    Files that the configuration names are not looked for: the text may come from another machine. Raises
    `ConfigError`.
    """
    content, places, problems = parse_yaml(text, "configuration")
    layer, more = make_layer(content, places, "configuration")
    problems += more
    method = layer.choice("unlearning")
    name = method[0] if method else GROUPS["unlearning"]
    known = method_params(name) if name in list_choices()["unlearning"] else None
    for group in GROUPS:
        chosen = layer.choice(group)
        if group in layer.values:
            layer.values[selector(group)] = layer.values.pop(group)
        if chosen and group != "model" and chosen[0] not in list_choices()[group]:
            problems.append(_unknown_choice(group, *chosen))
    good, _, more = _checked(layer.values, name, known)
    problems += more
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    return _build(good)


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _escaped(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_escaped(entry) for entry in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value


def _experiment_layers(
    experiment: str | Path,
) -> tuple[list[Layer], list[tuple[str, str, Values]], list[Problem]]:
    """The layers of an experiment, what it extends first, and its `per_choice` blocks as (group, name, values)."""
    layers: list[Layer] = []
    blocks: list[tuple[str, str, Values]] = []
    problems: list[Problem] = []
    name, base, where, seen = str(experiment), Path(), "", set()
    while name:
        file = _find(name, base)
        if file is None:
            expected = f"a YAML file, or one of {', '.join(list_experiments())}"
            hint = did_you_mean(Path(name).stem, list_experiments())
            problems.append(Problem("experiment", f"there is no {name!r}", expected, hint, where))
            break
        if file in seen:
            problems.append(Problem("extends", f"{display(file)} extends itself", "", "", where))
            break
        seen.add(file)
        content, places, more = read_yaml(file)
        problems += more
        parent, nested = content.pop("extends", None), content.pop("per_choice", None)
        where = places.get("extends", "")
        if parent is not None and not isinstance(parent, str):
            problems.append(Problem("extends", f"{parent!r} is not a text", "an experiment", "", where))
            parent = None
        layer, more = make_layer(content, places, display(file))
        problems += more
        found, more = _blocks(nested, places)
        problems += more
        layers.insert(0, layer)
        blocks[:0] = found
        name, base = parent or "", file.parent
    return layers, blocks, problems


def _find(name: str, base: Path) -> Path | None:
    """The file of an experiment: a name in `conf/`, else a path (from `base`, the folder of the file that names it)."""
    named = CONF / f"{name.removesuffix('.yaml')}.yaml"
    path = base / Path(name).expanduser()
    looks_like_path = name.endswith((".yaml", ".yml")) or "/" in name
    candidates = [path, named] if looks_like_path else [named, path]
    return next((candidate.resolve() for candidate in candidates if candidate.is_file()), None)


def _blocks(nested: Any, places: Mapping[str, str]) -> tuple[list[tuple[str, str, Values]], list[Problem]]:
    """`per_choice: {group: {name: {key: value}}}` as (group, name, values)."""
    blocks: list[tuple[str, str, Values]] = []
    problems: list[Problem] = []
    if nested is None:
        return blocks, problems
    shape = "per_choice: {group: {name: {key: value}}}"
    if not isinstance(nested, dict):
        return blocks, [Problem("per_choice", f"{nested!r} is no mapping", shape, "", places.get("per_choice", ""))]
    for group, names in nested.items():
        path = f"per_choice.{group}"
        where = places.get(path, "")
        if group not in GROUPS:
            expected = f"one of {', '.join(GROUPS)}"
            problems.append(Problem(path, "unknown group", expected, did_you_mean(group, GROUPS), where))
            continue
        if not isinstance(names, dict):
            problems.append(Problem(path, f"{names!r} is no mapping", shape, "", where))
            continue
        for name, content in names.items():
            head = f"{path}.{name}"
            where = places.get(head, "")
            if name not in list_choices()[group]:
                problems.append(dataclasses.replace(_unknown_choice(group, name, where), path=head))
            elif not isinstance(content, dict):
                problems.append(Problem(head, f"{content!r} is no mapping", shape, "", where))
            else:
                own = {f"{group}{p[len(head) :]}": w for p, w in places.items() if p.startswith(f"{head}.")}
                layer, more = make_layer({group: content}, own, where)
                problems += more
                blocks.append((group, name, layer.of(group)))
    return blocks, problems


def _unknown_choice(group: str, name: str, where: str) -> Problem:
    known = list_choices()[group]
    expected = f"one of {', '.join(known)}"
    return Problem(group, f"unknown choice {name!r}", expected, did_you_mean(name, known), where)


def _choose(group: str, layers: list[Layer], default: str) -> tuple[str, str, Problem | None]:
    """The name that the last layer chooses in a group, and the file that stands for it.

    A model with a `source` of its own may carry any name as a label; the default's file then gives the rest.
    """
    for layer in reversed(layers):
        chosen = layer.choice(group)
        if chosen is None:
            continue
        if chosen[0] in list_choices()[group]:
            return chosen[0], chosen[0], None
        if group == "model" and "model" not in layer.values and "model.source" in layer.values:
            return chosen[0], default, None
        return chosen[0], default, _unknown_choice(group, *chosen)
    return default, default, None


def _group_file(group: str, name: str) -> tuple[Values, list[Problem]]:
    """The values of a group's file. One that names another (`method: npo`) is a variant of it: values on top of its."""
    content, places, problems = read_yaml(CONF / group / f"{name}.yaml")
    below = {f"{group}.{path}": where for path, where in places.items()}
    layer, more = make_layer({group: content}, below, f"conf/{group}/{name}.yaml")
    problems += more
    named = layer.values.get(selector(group))
    if named is None:
        return layer.of(group), problems
    stored, more = _group_file(group, named[0])
    return {selector(group): named, **stored, **layer.of(group)}, problems + more


def _params_of(values: Values) -> dict[str, Any]:
    head = "unlearning.params."
    return {path[len(head) :]: value for path, (value, _) in values.items() if path.startswith(head)}


def _checked(
    values: Values, method: str, params: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, str], list[Problem]]:
    """Resolve interpolations and check the values; `params` None leaves a method's hyperparameters unchecked."""
    origins = {path: where for path, (_, where) in values.items() if where}
    tree, problems = _resolved(tree_of({path: value for path, (value, _) in values.items()}), origins)
    good, more = check_values(tree, origins, [f"unlearning.params.{name}" for name in params or {}])
    problems += more
    if params is not None and isinstance(good.get("unlearning.params", {}), dict):
        good["unlearning.params"], more = check_params(method, params, good.get("unlearning.params", {}), origins)
        problems += more
    return good, origins, problems


def tree_of(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The nested mapping of values by dotted path."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *sections, name = path.split(".")
        node = tree
        for section in sections:
            if not isinstance(node.get(section), dict):
                node[section] = {}
            node = node[section]
        node[name] = value
    return tree


def _resolved(tree: dict[str, Any], origins: Mapping[str, str]) -> tuple[dict[str, Any], list[Problem]]:
    """The tree with its `${…}` filled in; a value whose interpolation fails is left out and a problem."""
    problems: list[Problem] = []

    def visit(node: dict[str, Any], prefix: str) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, value in node.items():
            path = f"{prefix}.{name}".lstrip(".")
            if isinstance(value, dict):
                kept[name] = visit(value, path)
            elif "${" not in str(value):
                kept[name] = value
            else:
                try:
                    whole = OmegaConf.create(tree)
                    found = OmegaConf.select(whole, path, throw_on_missing=False)
                    kept[name] = OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found
                except OmegaConfBaseException as error:
                    reason = str(error).splitlines()[0]
                    message = f"cannot fill in {value!r}: {reason}"
                    problems.append(Problem(path, message, "", "", origins.get(path, "")))
        return kept

    return visit(tree, ""), problems


def _build(good: Mapping[str, Any]) -> Config:
    return instance(Config, tree_of(good))


_hints = functools.cache(typing.get_type_hints)


def instance(cls: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass of settings with these nested values; what is absent has its default."""
    hints = _hints(cls)
    parts = {
        name: instance(hints[name], value) if dataclasses.is_dataclass(hints[name]) else copy.deepcopy(value)
        for name, value in values.items()
    }
    return cls(**parts)
