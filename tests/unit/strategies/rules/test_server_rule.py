"""What FedTU asks of a strategy, and what an aggregator answers."""

from __future__ import annotations

import pytest
from flwr.serverapp.strategy import FedAvg
from support.fedtu_clients import adapter

from strategies.rules.factory import build, names
from strategies.rules.server_rule import ServerRule


def test_the_defaults_are_flowers_own_and_remember_nothing() -> None:
    rule, flower = ServerRule(), FedAvg()
    for name in ("arrayrecord_key", "configrecord_key", "weighted_by_key", "fraction_evaluate"):
        assert getattr(rule, name) == getattr(flower, name)
    assert (rule.needs_steps, rule.can_reset, rule.min_train_nodes, rule.min_available_nodes) == (False, False, 1, 1)
    rule.reset_state()
    rule.refresh_copies(adapter([0.0]))
    assert rule.state_dict() == {}


@pytest.mark.parametrize("name", names())
def test_each_aggregator_is_a_rule_whose_state_can_be_reset(name: str) -> None:
    rule = build(name)
    assert isinstance(rule, ServerRule) and rule.can_reset
    rule.reset_state()
    assert rule.state_dict() == {}
