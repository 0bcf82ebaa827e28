"""Each aggregator is one code file and one file in conf/strategy, and both say the same of its parameters."""

from __future__ import annotations

import importlib
import inspect
import math

import pytest
import yaml
from conftest import PROJECT
from support.fedtu_clients import adapter, federation, flat, noise

from strategies.rounds.fedtu import FedTU
from strategies.rules.factory import build, names
from strategies.rules.server_step import ServerStep

FILES = {file.stem: yaml.safe_load(file.read_text()) for file in sorted((PROJECT / "conf/strategy").glob("*.yaml"))}
OWN = {name: content["params"] for name, content in FILES.items() if "params" in content}


def declared(name: str, literal: str, default):
    return getattr(importlib.import_module(f"strategies.rules.{name}"), literal, default)


def test_every_aggregator_has_its_file():
    assert sorted(FILES) == names()


@pytest.mark.parametrize("name", sorted(OWN))
def test_it_is_built_from_its_file_and_trains(name):
    grid = federation(5)
    result = FedTU(build(name, **OWN[name], fraction_train=1.0)).start(grid, adapter(noise("start")), num_rounds=2)
    assert grid.sent["train"] == 10
    assert flat(result.arrays).dtype == "float32" and (flat(result.arrays) != noise("start")).any()


@pytest.mark.parametrize("name", sorted(OWN))
def test_parameters_are_those_of_the_class(name):
    shared = inspect.signature(ServerStep).parameters
    signature = inspect.signature(type(build(name))).parameters.values()
    own = [p for p in signature if p.name not in shared and p.kind is p.POSITIONAL_OR_KEYWORD]
    assert OWN[name] == {p.name: p.default for p in own}
    assert declared(name, "LIMITS", {}).keys() == OWN[name].keys()
    assert set(type(build(name)).settings) == OWN[name].keys()


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        (name, key, value)
        for name in sorted(OWN)
        for key, limits in declared(name, "LIMITS", {}).items()
        for word, value in (
            ("above", limits.get("above")),
            ("at_least", limits.get("at_least", math.nan) - 1),
            ("below", limits.get("below")),
        )
        if word in limits
    ],
)
def test_values_beyond_the_limits_are_refused(name, key, value):
    with pytest.raises(ValueError, match=key):
        build(name, **{**OWN[name], key: value})


@pytest.mark.parametrize("name", names())
def test_whether_it_takes_another_mean_can_be_read_without_importing_it(name):
    assert declared(name, "TAKES_MEAN", True) == type(build(name)).takes_mean
