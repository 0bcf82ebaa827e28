"""The keys of a suite of the kind `ruler_tabular`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.tabular import data, unlearning
from clients import losses
from oblivionis.config import extension_traits
from oblivionis.config.limits import About, about
from oblivionis.config.problems import Problem, did_you_mean
from oblivionis.config.values import Key, check_params, check_value


@dataclass
class Network:
    """The classifier: two hidden layers, each with ReLU and dropout."""

    width: int = field(default=128, metadata=about("Units of each hidden layer.", at_least=1))
    dropout: float = field(default=0.2, metadata=about("Share of units dropped in training.", at_least=0, below=1))


@dataclass
class Pretraining:
    """How original models and oracles are trained: Adam, cross-entropy, all records in every update."""

    epochs: int = field(default=50, metadata=about("Updates.", at_least=1))
    learning_rate: float = field(default=1e-3, metadata=about("Adam's rate.", above=0))


@dataclass
class Measures:
    """How much of the retain set is measured."""

    retain_sample: int | None = field(
        default=None, metadata=about("Retain records behind the median of the gap; null: all.", at_least=1)
    )
    rank_sample: int | None = field(
        default=2000, metadata=about("Most records of each side in the mean rank; null: all.", at_least=2)
    )
    sample_seed: int = field(default=42, metadata=about("Seed of these samples.", at_least=0))


@dataclass
class Settings:
    """Everything that a suite of this kind says, but its `kind`."""

    datasets: list[str] = field(
        default_factory=lambda: list(data.SOURCES),
        metadata=about("What the models learn.", choices=tuple(data.SOURCES), at_least=1),
    )
    data_home: str | None = field(
        default=None, metadata=about("scikit-learn's folder of fetched data; null: its default.", at_least=1)
    )
    test_fraction: float = field(default=0.2, metadata=about("Share of records held out.", above=0, below=1))
    split_seed: int = field(
        default=999, metadata=about("Random state of split and forget sets.", at_least=0, at_most=2**32 - 1)
    )
    forget_fractions: list[float] = field(
        default_factory=lambda: [0.01, 0.05, 0.10],
        metadata=about("Shares of the training records to forget.", at_least=1),
    )
    min_forget: int = field(default=10, metadata=about("Fewest records to forget.", at_least=1))
    seeds: list[int] = field(
        default_factory=lambda: list(range(10)),
        metadata=about("Seeds of training; an original model and its oracle share one.", at_least=1),
    )
    unlearning_seed: int = field(default=100, metadata=about("Seed of every unlearning.", at_least=0))
    pair_seed_offset: int = field(
        default=1000, metadata=about("From an oracle's seed to that of its independent partner.", at_least=1)
    )
    network: Network = field(default_factory=Network)
    pretraining: Pretraining = field(default_factory=Pretraining)
    methods: dict[str, Any] = field(
        default_factory=dict,
        metadata=about("By name of the loss: epochs, learning_rate, and its hyperparameters that differ."),
    )
    measures: Measures = field(default_factory=Measures)

    def plans(self) -> list[unlearning.Plan]:
        """The methods with all hyperparameters, in the suite's order."""
        plans = []
        for name, given in self.methods.items():
            own = {key: value for key, value in given.items() if key not in _OPTIMISER}
            parameters = losses.get(name).parameters(own)
            plans.append(unlearning.Plan(name, given["epochs"], given["learning_rate"], parameters))
        return plans


EXTENDABLE = frozenset({"datasets", "data_home", "forget_fractions", "seeds"})
"""Keys that change no finished cell: a dataset, a fraction and a seed."""

_OPTIMISER = {
    "epochs": (int, About("Updates of the full batch.", at_least=1)),
    "learning_rate": (float, About("Adam's rate.", above=0)),
}
_FRACTION = About("", above=0, below=1)


def problems(settings: Settings, places: Mapping[str, str]) -> list[Problem]:
    """What is wrong beyond types and ranges. `places` says for a dotted path where its value stands ("": the file).

    Afterwards `settings.methods` has its values in their types, and no method that is null.
    """
    found = []
    for number, fraction in enumerate(settings.forget_fractions):
        path, where = f"forget_fractions[{number}]", places.get("forget_fractions", "")
        found.append(check_value(Key(path, float, None, False, None, _FRACTION), fraction, where)[1])
    if min(settings.seeds) < 0:
        found.append(
            Problem("seeds", f"{min(settings.seeds)} is out of range", "values >= 0", "", places.get("seeds", ""))
        )
    reached = {seed + settings.pair_seed_offset for seed in settings.seeds} & set(settings.seeds)
    if reached:
        where = places.get("pair_seed_offset", places.get("seeds", ""))
        message = f"leads from one of the seeds to another, {min(reached)}"
        found.append(Problem("pair_seed_offset", message, "seeds + offset outside seeds", "", where))
    settings.methods = {name: given for name, given in settings.methods.items() if given is not None}
    if not settings.methods:
        expected, where = f"some of {', '.join(unlearning.names())}", places.get("methods", places.get("", ""))
        found.append(Problem("methods", "no method is given", expected, "", where))
    for name, given in settings.methods.items():
        found += _method_problems(name, given, settings.methods, places)
    return [problem for problem in found if problem is not None]


def _method_problems(name: str, given: Any, methods: dict[str, Any], places: Mapping[str, str]) -> list[Problem]:
    path = f"methods.{name}"
    known, where = unlearning.names(), places.get(f"methods.{name}", "")
    if name not in known:
        expected = f"one of {', '.join(known)}"
        return [Problem(path, "unknown method", expected, did_you_mean(name, known, "methods."), where)]
    if not isinstance(given, Mapping):
        return [Problem(path, f"{given!r} is no mapping", "{epochs: …, learning_rate: …}", "", where)]
    found, good = [], {}
    for key, (kind, limits) in _OPTIMISER.items():
        place = places.get(f"{path}.{key}", where)
        good[key], problem = check_value(Key(f"{path}.{key}", kind, None, False, None, limits), given.get(key), place)
        found += [problem] if problem else []
    defaults = losses.hyperparameters(name)
    own = {key: value for key, value in given.items() if key not in _OPTIMISER}
    limits = extension_traits.code("unlearning", name).limits
    values, more = check_params(name, defaults, own, places, limits, f"{path}.")
    methods[name] = {**good, **{key: values[key] for key in own if key in values}}
    return found + more
