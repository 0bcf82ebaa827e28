"""What is searched: the hyperparameters that a method declares, its learning rate and its epochs, each in a range.

A hyperparameter's range goes by its default d and the limits that its code file declares: d/10 to 10·d on a logarithmic
scale (a whole number: d/4 to 4·d); 0 to 1 where d is 0; all of it where the limits have two ends; all choices of a text
or a switch. What has no default number, or is a seed, is left as it is. The learning rate goes from a tenth of the
untuned one to ten times it, the epochs from 1 to the same most for every method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oblivionis.config import extension_traits, method_traits
from oblivionis.config.limits import About
from oblivionis.config.problems import ConfigError, Problem, did_you_mean
from oblivionis.config.schema import Config
from oblivionis.config.values import KEYS, Key, check_value, declared_key, expectation
from oblivionis.config.yaml_files import display, read_yaml

RATE, EPOCHS = "unlearning.learning_rate", "unlearning.epochs"
PARAMS = "unlearning.params."
FIXED = ("unlearning.method", "unlearning.requests", "unlearning.params")
"""What a space cannot name: the method is chosen, the requests are those of the tuning."""
WORDS = ("low", "high", "log")
RANGE = "{low: number, high: number, log: true or false}, a list of values, or null"
Value = bool | int | float | str


@dataclass(frozen=True)
class Dimension:
    """One key and what it may be: `choices`, or a number from `low` to `high`, both included."""

    path: str
    low: float | None = None
    high: float | None = None
    log: bool = False
    whole: bool = False
    choices: tuple[Value, ...] = ()

    def words(self) -> str:
        """As people read it."""
        if self.choices:
            return ", ".join(map(str, self.choices))
        return f"{self.low:g} to {self.high:g}{', log' if self.log else ''}"

    def plain(self) -> dict[str, Any]:
        """As a space in YAML has it."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items() if key != "path"}


def space(method: str, config: Config, max_epochs: int, given: Mapping[str, Any] | None = None) -> list[Dimension]:
    """What is searched for `method`, `config` having its untuned settings; `given` replaces ranges, null leaves out.

    Raises ConfigError with everything that is wrong with `given`.
    """
    keys = _keys(config)
    found = {path: _usual(key, untuned(config, path), max_epochs) for path, key in keys.items() if _usually(path)}
    if not method_traits.is_loss(config.unlearning.method):
        found = {path: d for path, d in found.items() if path not in (RATE, EPOCHS)}
    problems: list[Problem] = []
    for path, entry in (given or {}).items():
        head = f"{method}.{path}"
        if path not in keys:
            hint = did_you_mean(path, keys)
            expected = f"{', '.join(found)}, or another number or choice of the section unlearning"
            problems.append(Problem(head, "unknown key", expected, hint))
        else:
            dimension, more = _read(keys[path], entry, head)
            problems += more
            found[path] = dimension
    if problems:
        raise ConfigError(problems)
    dimensions = [d for d in found.values() if d is not None]
    if not dimensions:
        raise ConfigError([Problem(method, "nothing is left to search", "at least one key with a range")])
    return dimensions


def read_file(file: Path, chosen: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A file of spaces: by method, by key a range. Raises ConfigError."""
    content, places, problems = read_yaml(file)
    found: dict[str, dict[str, Any]] = {}
    for method, entries in content.items():
        where = places.get(str(method), display(file))
        if method not in chosen:
            expected = f"one of those that are tuned: {', '.join(chosen)}"
            problems.append(Problem(str(method), "no method that is tuned", expected, "", where))
        elif not isinstance(entries, Mapping):
            problems.append(Problem(str(method), f"{entries!r} is no mapping", "a mapping from a key to a range"))
        else:
            found[str(method)] = _entries(entries)
    if problems:
        raise ConfigError(problems)
    return found


def untuned(config: Config, path: str) -> Any:
    """The value of a key of `config`; of the learning rate the one that is in force where it is null."""
    value: Any = config
    for name in path.split("."):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return config.training.learning_rate if path == RATE and value is None else value


def _entries(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """Ranges by dotted path, whether the keys are nested or written with dots."""
    found: dict[str, Any] = {}
    for name, entry in tree.items():
        if isinstance(entry, Mapping) and not set(entry) & set(WORDS):
            found |= {f"{name}.{path}": value for path, value in _entries(entry).items()}
        else:
            found[str(name)] = entry
    return found


def _usually(path: str) -> bool:
    return (path.startswith(PARAMS) and not path.endswith("seed")) or path in (RATE, EPOCHS)


def _keys(config: Config) -> dict[str, Key]:
    """The keys that a space may name: the method's own, and those of the section `unlearning`."""
    limits = extension_traits.code("unlearning", config.unlearning.method).limits
    own = {
        f"{PARAMS}{name}": declared_key(f"{PARAMS}{name}", value, limits.get(name, extension_traits.Limit()))
        for name, value in config.unlearning.params.items()
    }
    others = {
        path: key
        for path, key in KEYS.items()
        if path.startswith("unlearning.") and not path.startswith(FIXED) and key.kind in (bool, int, float, str)
    }
    return {**own, **others}


def _usual(key: Key, default: Any, max_epochs: int) -> Dimension | None:
    """The range of a key that nobody has given one; None where there is none to guess."""
    if key.path == EPOCHS:
        return Dimension(key.path, 1, max_epochs, log=True, whole=True)
    if key.about.choices:
        return Dimension(key.path, choices=key.about.choices)
    if isinstance(default, bool):
        return Dimension(key.path, choices=(False, True))
    if not isinstance(default, int | float):
        return None
    return _around(key, default, key.about)


def _around(key: Key, default: float, about: About) -> Dimension | None:
    whole = key.kind is int
    factor = 4 if whole else 10
    low, high = sorted((default / factor, default * factor))
    log = default > 0
    if default == 0:
        low, high = (-1.0, 0.0) if about.at_most == 0 else (0.0, 10.0 if whole else 1.0)
    least, most = _ends(about)
    if least is not None and most is not None and not whole:
        low, high, log = least, most, False
    low = low if least is None else max(low, least)
    high = high if most is None else min(high, most)
    if whole:
        low, high = max(1, math.ceil(low)) if default > 0 else math.ceil(low), math.floor(high)
    return Dimension(key.path, low, high, bool(log), whole) if low < high else None


def _ends(about: About) -> tuple[float | None, float | None]:
    """The ends of a range; one that is not itself allowed is moved in by a hundredth of the range, or of itself."""
    least, most = about.at_least, about.at_most
    if about.above is not None:
        top = most if most is not None else about.below
        least = (
            about.above + (top - about.above) / 100 if top is not None else None if about.above == 0 else about.above
        )
    if about.below is not None:
        bottom = least if least is not None else 0.0
        most = about.below - (about.below - bottom) / 100
    return least, most


def _read(key: Key, entry: Any, head: str) -> tuple[Dimension | None, list[Problem]]:
    """A range as it is given, and what is wrong with it."""
    if entry is None:
        return None, []
    if isinstance(entry, list) and entry:
        checked = [check_value(key, value, "") for value in entry]
        problems = [Problem(head, p.message, p.expected) for _, p in checked if p is not None]
        return Dimension(key.path, choices=tuple(value for value, _ in checked)), problems
    if not isinstance(entry, Mapping):
        return None, [Problem(head, f"{entry!r} is no range", RANGE)]
    problems = [
        Problem(f"{head}.{word}", "unknown word", f"of {', '.join(WORDS)}", did_you_mean(str(word), WORDS))
        for word in entry
        if word not in WORDS
    ]
    ends = []
    for word in ("low", "high"):
        value, problem = check_value(key, entry.get(word), "")
        if key.kind not in (int, float) or value is None or problem is not None:
            message = problem.message if problem else f"{entry.get(word)!r} is no number"
            problems.append(Problem(f"{head}.{word}", message, expectation(key)))
        else:
            ends.append(value)
    log = entry.get("log", False)
    if not isinstance(log, bool):
        problems.append(Problem(f"{head}.log", f"{log!r} is neither true nor false", "true or false"))
    elif len(ends) == 2 and (ends[0] >= ends[1] or (log and ends[0] <= 0)):
        expected = "0 < low < high" if log else "low < high"
        problems.append(Problem(head, f"{ends[0]} to {ends[1]} is no range", expected))
    return (None, problems) if problems else (Dimension(key.path, ends[0], ends[1], log, key.kind is int), [])
