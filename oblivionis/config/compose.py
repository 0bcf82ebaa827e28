"""Composes a configuration from YAML files and overrides, and reports everything that is wrong with it at once.

Later layers win: schema defaults, the chosen file of each group, the experiment (first what it `extends`), its
`per_choice` block for the chosen name, the overrides.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from clients.own_code import code_hash
from oblivionis.config import dataset_traits, extension_traits, renamed_keys
from oblivionis.config.adapter_folder import lora_settings, read_adapter
from oblivionis.config.checks import cross_checks
from oblivionis.config.configuration_layers import (
    GROUPS,
    Layer,
    choices_of,
    list_choices,
    list_experiments,
    make_layer,
    parse_overrides,
    selector,
)
from oblivionis.config.problems import ConfigError, Problem, did_you_mean, render_problems
from oblivionis.config.schema import Config
from oblivionis.config.values import (
    KEYS,
    brought,
    brought_problems,
    check_params,
    check_value,
    check_values,
    keys_of,
    sections,
    type_hints,
)
from oblivionis.config.yaml_files import CONF, display, parse_yaml, read_yaml
from oblivionis.errors import FileError

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
    "parameters",
    "render_problems",
    "to_tree",
    "to_yaml",
]

T = TypeVar("T")
Values = dict[str, tuple[Any, str]]
Block = tuple[str, str, Values]
"""Values for a choice: group, name, values."""
PARAMETRISED = ("strategy", "unlearning")
"""Groups whose choice has parameters of its own, `<group>.params`."""
AUTO = "auto"
"""The choice of `unlearning` that leaves it to the data."""


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Those of a choice: their defaults, and what its code file says of them."""

    owner: str
    defaults: Mapping[str, Any]
    code: extension_traits.CodeFile


def compose(
    experiment: str | Path = "default", overrides: Sequence[str] | str = (), *, unlearns: bool = True
) -> Config:
    """The configuration of an experiment.

    `experiment` is a name in `conf/` or the path of a YAML file. `overrides` are `key=value` items, or one string of
    them; `strategy=fedadam` chooses a file of a group. unlearns: whether anything is to be unlearned by it; where
    finished models are asked alone, what their method takes need not be there. Raises `ConfigError` with every problem
    found; nothing has been started by then.
    """
    last, problems = parse_overrides(overrides)
    layers, blocks, more = _experiment_layers(experiment)
    problems += more

    values: Values = {p: (k.default, k.where) for p, k in KEYS.items() if p not in _PARAMS}
    chosen: dict[str, Parameters] = {}
    idle: list[Block] = []
    for group in GROUPS:
        own, unused, more = _group_values(group, [*layers, last], [b for b in blocks if b[0] == group], values)
        problems += more
        idle += unused
        if own is not None:
            chosen[group] = own
    for layer in [*layers, last]:
        values |= {p: v for p, v in layer.values.items() if p.split(".")[0] not in GROUPS}

    good, origins, more = _checked(values, chosen)
    problems += more
    problems += _idle_problems(idle)
    config = _build(good)
    bad = {p.path.split("[")[0] for p in problems} | (set() if unlearns else {"unlearning"})
    crossed = [dataclasses.replace(p, where=origins.get(p.path, "")) for p in cross_checks(config, bad)]
    if problems or crossed:
        raise ConfigError(dict.fromkeys([*problems, *crossed]))
    return config


def _group_values(
    group: str, layers: list[Layer], blocks: Sequence[Block], values: Values
) -> tuple[Parameters | None, list[Block], list[Problem]]:
    """Put the values of a group, with its choice, into `values`: its file's, the layers', `blocks`, the last layer's.

    Returns the parameters of the choice, the values that are for other choices, and what is wrong.
    """
    *before, last = layers
    name, file, problem = _choose(group, layers, GROUPS[group])
    names = {name}
    if group == "unlearning" and file == AUTO:
        file = _automatic(values, layers)
        name = name if problem else file
        names.add(file)
    stored, problems = _group_file(group, file)
    problems += [problem] if problem else []
    named, _ = stored.pop(selector(group), (name, ""))
    own = None
    if group in PARAMETRISED and not problem:
        own = Parameters(name, _params_of(group, stored), extension_traits.code(group, named))
    own_layers: list[Values] = []
    idle: list[Block] = []
    for layer in before:
        at = layer.choice(group)
        if at is None or at[0] in names:
            own_layers.append(layer.of(group))
        elif not problem:
            idle.append((group, at[0], layer.of(group)))
    own_layers += [block[2] for block in blocks if block[1] in names]
    idle += [block for block in blocks if block[1] not in names]
    given: Values = {}
    for layer_values in [*own_layers, last.of(group)]:
        today, more = renamed_keys.current(layer_values, name, own and own.defaults)
        problems += more
        given |= today
    chosen_at = next((c[1] for layer in reversed(layers) if (c := layer.choice(group))), "")
    if group == "model":
        stored |= _of_adapter(given.get("model.adapter", (None, "")))
    values |= stored | given | {selector(group): (file if problem else named, chosen_at)}
    return own, idle, problems


def _of_adapter(given: tuple[Any, str]) -> Values:
    """What the adapter of a model says of `model.lora`; nothing where it cannot be read, which a check tells."""
    folder, where = given
    if not isinstance(folder, str):
        return {}
    try:
        settings = lora_settings(read_adapter(Path(folder).expanduser()))
    except FileError:
        return {}
    return {f"model.lora.{name}": (value, where) for name, value in settings.items()}


def _automatic(values: Values, layers: list[Layer]) -> str:
    """The method that `AUTO` stands for, by the values of the groups before: `conf/unlearning/auto.yaml` says when."""
    key = dataset_traits.of(values[selector("data")][0]).references
    references = bool(key) and values[f"data.{key}"][0] not in (None, 0)
    private = _choose("privacy", layers, GROUPS["privacy"])[0] != "none"
    return "calibrated" if references and not private else "npo"


def _idle_problems(idle: Sequence[Block]) -> list[Problem]:
    """What is wrong with values for choices, as (group, name, values), that were not chosen."""
    problems: list[Problem] = []
    for group, name, block in idle:
        own = parameters(group, name) if group in PARAMETRISED else None
        block, more = renamed_keys.current(block, name, own and own.defaults)
        problems += more
        problems += _checked(block, {group: own} if own else {})[2]
    return problems


def method_params(method: str) -> dict[str, Any]:
    """Hyperparameters of an unlearning method with their defaults; empty when there is no such file."""
    own = parameters("unlearning", method)
    return dict(own.defaults) if own else {}


def parameters(group: str, name: str) -> Parameters | None:
    """Those of a choice of `strategy` or `unlearning`; None when there is no such file."""
    if not _is_choice(group, name):
        return None
    stored, _ = _group_file(group, name)
    return Parameters(
        name, _params_of(group, stored), extension_traits.code(group, stored.get(selector(group), (name, ""))[0])
    )


def to_yaml(config: Config) -> str:
    """Every key of a configuration as YAML; `from_yaml` and `compose` read it back."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(to_tree(config))))


def to_tree(config: Config) -> dict[str, Any]:
    """Every key of a configuration as nested mappings of plain values, as `to_yaml` writes it."""
    tree = dataclasses.asdict(config)
    for section in ("evaluation", "attack"):
        tree[section] |= tree[section].pop("more")
    return tree


def from_yaml(text: str, place: str = "configuration") -> Config:
    """The configuration in a text made by `to_yaml`; a key that is absent has the schema's default.

    `place` names the text in problems, such as the file that it comes from.

    It is not checked whether files that the configuration names exist: the text may come from another machine. Raises
    `ConfigError`.
    """
    content, places, problems = parse_yaml(text, place)
    layer, more = make_layer(content, places, place)
    problems += more
    known: dict[str, Parameters] = {}
    for group in PARAMETRISED:
        at = layer.choice(group)
        name = at[0] if at else KEYS[selector(group)].default
        own = parameters(group, name) if name in choices_of(group) else _unread(group, name, layer.values)
        if own is not None:
            known[group] = own
        if group == "strategy":
            layer.values, more = renamed_keys.current(layer.values, name, own and own.defaults)
            problems += more
    for group in GROUPS:
        chosen = layer.choice(group)
        if group in layer.values:
            layer.values[selector(group)] = layer.values.pop(group)
        if chosen and group != "model" and not _is_choice(group, chosen[0]):
            problems.append(_unknown_choice(group, *chosen))
    good, _, more = _checked(layer.values, known)
    problems += more
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    return _build(good)


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _escaped(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_escaped(entry) for entry in value]
    # A backslash before what would be filled in is itself escaped.
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


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
            if not _is_choice(group, name):
                problems.append(dataclasses.replace(_unknown_choice(group, name, where), path=head))
            elif not isinstance(content, dict):
                problems.append(Problem(head, f"{content!r} is no mapping", shape, "", where))
            else:
                own = {f"{group}{p[len(head) :]}": w for p, w in places.items() if p.startswith(f"{head}.")}
                layer, more = make_layer({group: content}, own, where)
                problems += more
                blocks.append((group, name, layer.of(group)))
    return blocks, problems


def _is_choice(group: str, name: str) -> bool:
    """Whether `conf/` has that choice of a group, or the name is the path of a loss of the user's own."""
    return name in choices_of(group) or (group == "unlearning" and extension_traits.own_loss(name) is not None)


def _unread(group: str, name: str, values: Values) -> Parameters | None:
    """The given parameters of a loss of the user's own, whose file may lie on another machine; else None."""
    return Parameters(name, _params_of(group, values), extension_traits.CodeFile()) if _is_choice(group, name) else None


def _unknown_choice(group: str, name: str, where: str) -> Problem:
    known = choices_of(group)
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
        if _is_choice(group, chosen[0]):
            return chosen[0], chosen[0], None
        if group == "model" and "model" not in layer.values and "model.source" in layer.values:
            return chosen[0], default, None
        return chosen[0], default, _unknown_choice(group, *chosen)
    return default, default, None


def _group_file(group: str, name: str) -> tuple[Values, list[Problem]]:
    """The values of a group's file. One that names another (`method: npo`) is a variant of it: values on top of its.

    Of a loss of the user's own: its absolute path as the method, the hash of its file, and its defaults.
    """
    if group == "unlearning" and (file := extension_traits.own_loss(name)) is not None:
        keywords, place = extension_traits.code(group, name).keywords, display(file)
        stored = {f"{group}.params.{key}": (value, place) for key, value in keywords.items() if value is not ...}
        with suppress(ValueError):  # that it cannot be read is reported with what it declares
            stored[f"{group}.code"] = (code_hash(file), place)
        return {selector(group): (str(file), ""), **stored}, []
    content, places, problems = read_yaml(CONF / group / f"{name}.yaml")
    below = {f"{group}.{path}": where for path, where in places.items()}
    layer, more = make_layer({group: content}, below, f"conf/{group}/{name}.yaml")
    problems += more
    named = layer.values.get(selector(group))
    if named is None:
        return layer.of(group), problems
    stored, more = _group_file(group, named[0])
    return {selector(group): named, **stored, **layer.of(group)}, problems + more


def _params_of(group: str, values: Values) -> dict[str, Any]:
    head = f"{group}.params."
    return {path[len(head) :]: value for path, (value, _) in values.items() if path.startswith(head)}


def _checked(values: Values, chosen: Mapping[str, Parameters]) -> tuple[dict[str, Any], dict[str, str], list[Problem]]:
    """Resolve interpolations and check the values; a group's parameters are checked where `chosen` has them."""
    origins = {path: where for path, (_, where) in values.items() if where}
    tree, problems = _resolved(tree_of({path: value for path, (value, _) in values.items()}), origins)
    known = [f"{group}.params.{name}" for group, own in chosen.items() for name in own.defaults]
    good, more = check_values(tree, origins, known)
    problems += [*more, *brought_problems()]
    for group, own in chosen.items():
        path = f"{group}.params"
        given = good.get(path, {})
        if isinstance(given, dict):
            good[path], more = check_params(own.owner, own.defaults, given, origins, own.code.limits, f"{path}.")
            problems += [*more, *own.code.problems]
    return good, origins, problems


def tree_of(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The nested mapping of values by dotted path; what lies below a choice (`data: tofu`) keeps its dotted name."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        names = path.split(".")
        above = (n for n, group in enumerate(names[:-1]) if group in GROUPS and ".".join(names[: n + 1]) in flat)
        chosen = next(above, len(names) - 1)
        sections, name, node = names[:chosen], ".".join(names[chosen:]), tree
        for section in sections:
            if not isinstance(node.get(section), dict):
                node[section] = {}
            node = node[section]
        node[name] = dict(value) if isinstance(value, dict) else value
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
    tree = tree_of(good)
    for section, kind in brought().items():
        own = tree.get(section, {})
        more = {name: {**values, **own.pop(name, {})} for name, values in extension_traits.defaults(kind).items()}
        tree[section] = {**own, "more": more}
    return instance(Config, tree)


_PARAMS = [f"{group}.params" for group in PARAMETRISED]


def settings_of(cls: type[T], values: Values) -> T:
    """The dataclass of settings with these values by dotted path, each with its place, checked by its own keys.

    Raises ConfigError with every problem.
    """
    keys = {key.path: key for key in keys_of(cls, cls())}
    groups = [path for path, _ in sections(cls) if path]
    mappings = [path for path, key in keys.items() if key.kind is dict]
    good: dict[str, Any] = {}
    problems: list[Problem] = []
    for path, (value, where) in values.items():
        if path in keys:
            good[path], problem = check_value(keys[path], value, where)
            problems += [problem] if problem else []
        elif path in groups:
            problems.append(Problem(path, f"{value!r} is not a section", "a mapping", "", where))
        elif any(path.startswith(f"{mapping}.") for mapping in mappings):
            good[path] = value
        else:
            hint = did_you_mean(path, [*keys, *groups])
            expected = "" if hint else f"one of {', '.join(sorted({key.split('.')[0] for key in keys}))}"
            problems.append(Problem(path, "unknown key", expected, hint, where))
    if problems:
        raise ConfigError(problems)
    return instance(cls, tree_of(good))


def instance(cls: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass of settings with these nested values; what is absent has its default."""
    hints = type_hints(cls)
    parts = {
        name: instance(hints[name], value) if dataclasses.is_dataclass(hints[name]) else copy.deepcopy(value)
        for name, value in values.items()
    }
    return cls(**parts)
