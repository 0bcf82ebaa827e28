"""One aggregator per shard: each has its own model, updates and moments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from strategies.client_update import ClientUpdate
from strategies.flower_internals import AggregationError, valid_replies
from strategies.rules.server_rule import ServerRule
from strategies.rules.server_step import ServerStep
from strategies.shards import Shards, joined_states, prefix, state_of


class ShardRules(Strategy, ServerRule):
    """Aggregates each shard's updates on its part of the global model; one of which nobody trained stays as it is.

    Clients are drawn in one draw over all shards, as the first of `rules` draws them: who takes part does not depend on
    who belongs where. With fewer updates of a shard than its aggregator needs (`ServerStep.least`) that shard's model
    stays as it is, with a warning.

    Parameters
    ----------
    rules : sequence of ServerStep
        One for each shard, alike.
    shards : Shards
    client_of : callable (node id) -> int or None
        The client of a node.

    Raises
    ------
    ValueError
        For another number of rules than of shards.
    """

    can_reset = True

    def __init__(self, rules: Sequence[ServerStep], shards: Shards, client_of: Callable[[int], int | None]) -> None:
        if len(rules) != shards.count:
            raise ValueError(f"{len(rules)} aggregators for {shards.count} shards")
        self.rules, self.shards, self._client_of = rules, shards, client_of
        self._sent: ArrayRecord | None = None
        first = rules[0]
        self.arrayrecord_key, self.configrecord_key = first.arrayrecord_key, first.configrecord_key
        self.weighted_by_key, self.needs_steps = first.weighted_by_key, first.needs_steps
        self.min_train_nodes, self.min_available_nodes = first.min_train_nodes, first.min_available_nodes
        self.fraction_evaluate = first.fraction_evaluate

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample among all clients; see `ServerStep.configure_train`."""
        self._sent = arrays
        return self.rules[0].configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the replies of a round, each with its shard's model; see `ServerStep.aggregate_train`."""
        first = self.rules[0]
        valid = valid_replies(first, replies)
        if not valid:
            return None, None
        if self._sent is None:
            raise AggregationError("aggregate_train was called before configure_train")
        parts = {}
        for shard, own in self.shards.groups(valid, self._client).items():
            rule, sent = self.rules[shard], self.shards.part(self._sent, shard)
            rule.starts_from(sent)
            updates = [ClientUpdate.of(m.content, self.weighted_by_key, self._client(m)) for m in own]
            parts[shard] = rule.aggregate(sent, updates)
        metrics = first.train_metrics_aggr_fn([message.content for message in valid], self.weighted_by_key)
        return self.shards.changed(self._sent, parts), metrics

    def _client(self, reply: Message) -> int:
        """The client that sent a reply."""
        client = self._client_of(reply.metadata.src_node_id)
        if client is None:
            raise AggregationError(f"node {reply.metadata.src_node_id} is no known client, so that it has no shard")
        return client

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the first aggregator."""
        return self.rules[0].configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the first aggregator."""
        return self.rules[0].aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the settings, which all shards share."""
        self.rules[0].summary()

    def state_dict(self) -> dict[str, NDArray]:
        """The accumulators of each shard, as `shard-0/moment/array name`."""
        return joined_states([rule.state_dict() for rule in self.rules])

    def load_state_dict(self, state: Mapping[str, NDArray]) -> None:
        """Restore the accumulators; ValueError for a state of other shards, or that an aggregator cannot load."""
        starts = tuple(prefix(shard) for shard in range(self.shards.count))
        if unknown := [name for name in state if not name.startswith(starts)]:
            raise ValueError(f"{unknown[0]} is the state of none of {self.shards.count} shards")
        for shard, rule in enumerate(self.rules):
            rule.load_state_dict(state_of(state, shard))

    def reset_state(self) -> None:
        """Drop the accumulators of all shards."""
        for rule in self.rules:
            rule.reset_state()
