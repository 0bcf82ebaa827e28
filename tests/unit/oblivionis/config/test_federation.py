"""How many clients a round asks, and an aggregator needs."""

import pytest

from oblivionis.config.compose import ConfigError, compose
from oblivionis.config.schema import Federation
from strategies.rules.factory import build


@pytest.mark.parametrize(
    ("fraction", "clients", "drawn"), [(0.29, 100, 29), (0.57, 100, 57), (0.1, 30, 3), (1.0, 7, 7)]
)
def test_a_round_asks_the_share_that_is_written(fraction, clients, drawn):
    """0.29 times 100 in floats is a little less than 29."""
    assert Federation(clients=clients, fraction_train=fraction).per_round == drawn


@pytest.mark.parametrize(("f", "m"), [(f, m) for f in range(4) for m in (1, 2, 5, 9)])
def test_a_configuration_that_asks_for_more_clients_than_there_are_is_told_at_once(f, m):
    for name, own in (("krum", {}), ("multikrum", {"num_nodes_to_select": m})):
        settings = {"num_malicious_nodes": f, **own}
        least = build(name, **settings).least
        overrides = [f"strategy={name}", *(f"strategy.params.{k}={v}" for k, v in settings.items())]
        compose("default", [*overrides, f"federation.clients={least}"])
        if least > 1:
            with pytest.raises(ConfigError) as error:
                compose("default", [*overrides, f"federation.clients={least - 1}"])
            (problem,) = error.value.problems
            assert problem.path == "federation.clients" and f"needs the answers of {least} clients" in problem.message
