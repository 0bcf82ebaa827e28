"""How many clients a round asks."""

import pytest

from oblivionis.config.schema import Federation


@pytest.mark.parametrize(
    ("fraction", "clients", "drawn"), [(0.29, 100, 29), (0.57, 100, 57), (0.1, 30, 3), (1.0, 7, 7)]
)
def test_a_round_asks_the_share_that_is_written(fraction, clients, drawn):
    """0.29 times 100 in floats is a little less than 29."""
    assert Federation(clients=clients, fraction_train=fraction).per_round == drawn
