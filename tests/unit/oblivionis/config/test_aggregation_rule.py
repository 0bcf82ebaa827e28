"""Aggregators with a rule of their own and the mean of LoRA's products exclude each other."""

import pytest

from oblivionis.config.compose import compose
from oblivionis.config.problems import ConfigError
from strategies.rules.factory import build, names


@pytest.mark.parametrize("name", names())
def test_an_aggregator_that_takes_no_other_mean_refuses_products(name):
    changes = [f"strategy={name}", "model.lora.aggregation=product"]
    if build(name).takes_mean:
        assert compose("smoke", changes).strategy.name == name
        return
    with pytest.raises(ConfigError, match=f"model.lora.aggregation: {name} combines .*expected factors or freeze_a"):
        compose("smoke", changes)
    assert compose("smoke", [f"strategy={name}"]).strategy.name == name
