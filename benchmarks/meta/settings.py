"""The keys of a suite of the kind `metrics_meta`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from oblivionis.config import compose, dataset_traits
from oblivionis.config.configuration_layers import flatten
from oblivionis.config.limits import about
from oblivionis.config.problems import ConfigError, Problem
from oblivionis.config.schema import Config


@dataclass
class Intervals:
    """Bootstrap over federations."""

    resamples: int = field(default=2000, metadata=about("Resamples.", at_least=1, at_most=1000000))
    confidence: float = field(default=0.95, metadata=about("Confidence of intervals.", above=0, below=1))
    seed: int = field(default=0, metadata=about("Seed of the resamples.", at_least=0))


@dataclass
class Settings:
    """Everything that a suite of this kind says, but its `kind`."""

    title: str = field(default="", metadata=about("Headline of tables and report."))
    description: str = field(default="", metadata=about("What the suite is for, in a sentence or two."))
    experiment: str = field(default="default", metadata=about("A name in `conf/`, or a YAML file.", at_least=1))
    base: dict[str, Any] = field(
        default_factory=dict, metadata=about("Keys of the configuration that every federation has.")
    )
    seeds: list[int] = field(
        default_factory=lambda: list(range(25)),
        metadata=about("A federation each, with its own people, partition, adapters and samples.", at_least=1),
    )
    intervals: Intervals = field(default_factory=Intervals)

    def configuration(self, seed: int) -> Config:
        """That of a federation. Raises ConfigError.

        Clients have one thread, so that values do not depend on how many federations are made at once.
        """
        own = {"seed": seed, "data.seed": seed, "federation.client_threads": 1}
        given = [*flatten(self.base), *own.items()]
        return compose.compose(self.experiment, [f"{path}={_text(value)}" for path, value in given])


EXTENDABLE = frozenset({"title", "description", "seeds", "intervals"})
"""Keys that change no measured model: a federation more or fewer, and what is computed of the values."""
LEAST = 2
"""Fewest federations: the threshold of one is chosen on the others."""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def problems(settings: Settings, places: Mapping[str, str]) -> list[Problem]:
    """What is wrong beyond types and ranges. `places` says for a dotted path where its value stands ("": the file)."""
    where = places.get("seeds", "")
    if min(settings.seeds) < 0:
        return [Problem("seeds", f"{min(settings.seeds)} is out of range", "values >= 0", "", where)]
    if len(settings.seeds) < LEAST:
        return [Problem("seeds", "one federation says nothing of another", f"at least {LEAST} seeds", "", where)]
    try:
        config = settings.configuration(settings.seeds[0])
    except ConfigError as error:
        return error.problems
    found = []
    for path, message, expected in _unfit(config):
        place = next((places[p] for p in (f"base.{path}", "base", "") if p in places), "")
        found.append(Problem(f"base.{path}", message, expected, "", place))
    return found


def _unfit(config: Config) -> Iterator[tuple[str, str, str]]:
    """Path, message and expectation of what a configuration has that this kind of suite cannot do with."""
    data = config.data
    if not dataset_traits.of(data.name).invents:
        inventing = [name for name, dataset in dataset_traits.known().items() if dataset.invents]
        yield "data", f"{data.name!r} has no records about further people", " or ".join(inventing)
        return
    if data.reference_authors < data.forget_authors:
        message = f"{data.reference_authors} are fewer than the {data.forget_authors} authors that they replace"
        yield "data.reference_authors", message, "data.forget_authors or more"
    if not data.holdout_authors:
        yield "data.holdout_authors", "membership inference has nobody to compare with", "1 or more"
    if (config.model.mode, config.model.quantization) != ("lora", "none"):
        yield "model", "only adapters on an unquantised model are quantised here", "mode lora, quantization none"
    if len(config.attack.quantisers) != 1:
        yield "attack.quantisers", f"{config.attack.quantisers} are not one", "one number format"
    if len(config.attack.relearn.steps) != 1 or config.attack.relearn.steps[0] < 1:
        yield "attack.relearn.steps", f"{config.attack.relearn.steps} are not one", "one number of updates, 1 or more"
