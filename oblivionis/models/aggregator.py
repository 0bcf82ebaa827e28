"""The aggregator that the configuration names."""

from __future__ import annotations

from oblivionis.config.schema import Config
from strategies.arrays import Mean
from strategies.rules import factory
from strategies.rules.server_step import ServerStep


def aggregator(config: Config, mean: Mean | None = None) -> ServerStep:
    """The configured aggregator with its settings and the sampling of the federation, averaging by `mean`."""
    strategy, federation = config.strategy, config.federation
    return factory.build(
        strategy.name,
        **strategy.params,
        fraction_train=federation.fraction_train,
        min_train_nodes=federation.min_clients,
        mean=mean,
    )
