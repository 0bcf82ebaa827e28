"""Configurations from before 0.2, whose aggregators all had the same flat keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from oblivionis.config.compose import compose, from_yaml, to_yaml
from oblivionis.config.problems import ConfigError

FLAT = {
    "server_learning_rate": 0.25,
    "beta_1": 0.5,
    "beta_2": 0.75,
    "tau": 0.125,
    "momentum": 0.375,
    "proximal_mu": 0.625,
    "server_state_on_unlearn": "reset",
}
"""The section `strategy` of an old `config.yaml`, which had every key whatever the aggregator."""
ADAPTIVE = {"eta": 0.25, "beta_1": 0.5, "beta_2": 0.75, "tau": 0.125}
MEANT = {
    "fedavg": {},
    "fedavgm": {"server_learning_rate": 0.25, "server_momentum": 0.375},
    "fedprox": {"proximal_mu": 0.625},
    "fedadagrad": {"eta": 0.25, "tau": 0.125},
    "fedadam": ADAPTIVE,
    "fedyogi": ADAPTIVE,
}
"""What the program of then handed to each aggregator."""


def old(name: str) -> str:
    lines = [f"  {key}: {value}" for key, value in {"name": name, **FLAT}.items()]
    return "\n".join(["strategy:", *lines, ""])


@pytest.mark.parametrize("name", MEANT)
def test_the_config_of_an_old_run_means_what_it_meant(name: str) -> None:
    strategy = from_yaml(old(name)).strategy
    assert (strategy.name, strategy.params, strategy.server_state_on_unlearn) == (name, MEANT[name], "reset")


@pytest.mark.parametrize("name", MEANT)
def test_an_old_config_is_still_an_experiment(name: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(old(name), encoding="utf-8")
    config = compose(file)
    assert config.strategy.params == MEANT[name]
    assert from_yaml(to_yaml(config)) == config


def test_values_of_another_aggregator_stay_with_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(old("fedadam") + "per_choice: {strategy: {fedprox: {proximal_mu: 0.5}}}\n", encoding="utf-8")
    assert compose(file, "strategy=fedyogi").strategy == compose("default", "strategy=fedyogi").strategy
    assert compose(file, "strategy=fedprox").strategy.params == {"proximal_mu": 0.5}


def test_the_newer_of_both_names_wins(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: old.yaml\nstrategy: {params: {eta: 0.5}}\n", encoding="utf-8")
    (tmp_path / "old.yaml").write_text(old("fedadam"), encoding="utf-8")
    assert compose(file).strategy.params == {**ADAPTIVE, "eta": 0.5}
    assert compose(file, "strategy.server_learning_rate=2").strategy.params == {**ADAPTIVE, "eta": 2.0}


@pytest.mark.parametrize(
    ("flat", "now"), [("momentum=0.5", "server_momentum"), ("server_learning_rate=2", "server_lea")]
)
def test_an_override_may_use_the_old_name(flat: str, now: str) -> None:
    params = compose("default", f"strategy=fedavgm strategy.{flat}").strategy.params
    assert [value for key, value in params.items() if key.startswith(now)] == [float(flat.partition("=")[2])]


def test_an_override_that_the_aggregator_never_looked_at_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        compose("default", "strategy=fedprox strategy.tau=0.5")
    (problem,) = caught.value.problems
    assert (problem.path, problem.message) == ("strategy.tau", "fedprox does not look at it")
    assert problem.expected == "a parameter of fedprox: proximal_mu"
    assert problem.hint == "other aggregators have strategy.params.tau"


def test_an_old_value_out_of_range_is_told_by_its_name_of_today() -> None:
    with pytest.raises(ConfigError) as caught:
        from_yaml("strategy: {name: fedadam, beta_1: 1}\n")
    (problem,) = caught.value.problems
    assert (problem.path, problem.message) == ("strategy.params.beta_1", "1.0 is out of range")
    assert problem.where == "configuration:1"
