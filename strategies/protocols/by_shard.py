"""A protocol for each shard: requests are served in the model of the shard that the asking client belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord

from strategies.client_update import ClientUpdate
from strategies.protocols.base import Answer, Served, Train, UnlearningProtocol
from strategies.protocols.update_history import History, RoundUpdates
from strategies.shards import Shards, joined_states, state_of


class ByShard(UnlearningProtocol):
    """Each shard is a federation of its own; see `strategies.shards`. Others stay bit for bit as they are.

    Parameters
    ----------
    shards : Shards
    parts : sequence of UnlearningProtocol
        One for each shard, alike, with that shard's aggregator and history.
    histories : sequence of History
        What is remembered of each shard's rounds; empty: nothing. A round in which nobody of the shard trained leaves
        its model and its aggregator's state as they are, and is not remembered, but for the first.
    """

    def __init__(self, shards: Shards, parts: Sequence[UnlearningProtocol], histories: Sequence[History] = ()) -> None:
        super().__init__()
        self._shards, self._parts, self._histories = shards, parts, histories
        self.message_type, self.models_travel = parts[0].message_type, parts[0].models_travel

    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        """Serve the requests shard by shard; one where that is impossible does not keep the others waiting."""
        info: dict[int, Mapping[str, float]] = {}
        refused, changed = dict[int, str](), dict[int, ArrayRecord]()
        for shard, own in self._shards.groups(answers, lambda answer: answer.client).items():
            served = self._parts[shard].serve(server_round, self._shards.part(arrays, shard), own, train)
            info, refused = {**info, **served.info}, {**refused, **served.refused}
            changed[shard] = served.arrays
        return Served(self._shards.changed(arrays, changed), info, refused)

    def after_training(self, server_round: int, before: ArrayRecord, after: ArrayRecord) -> ArrayRecord:
        """Correct each shard's model; see the base class."""
        part = self._shards.part
        own = {k: p.after_training(server_round, part(before, k), part(after, k)) for k, p in enumerate(self._parts)}
        return self._shards.changed(after, own)

    def remember(
        self,
        server_round: int,
        sent: ArrayRecord,
        state: Mapping[str, np.ndarray],
        updates: Sequence[ClientUpdate],
    ) -> None:
        """Enter a FedFT exchange into the histories of the shards that took part."""
        of_shard = self._shards.groups(updates, lambda update: update.partition)
        for shard, history in enumerate(self._histories):
            own = of_shard.get(shard, [])
            if own or not history.rounds():
                model = self._shards.part(sent, shard)
                history.record(RoundUpdates(history.stage, server_round, model, state_of(state, shard), own))

    def state_dict(self) -> dict[str, np.ndarray]:
        """The states of all shards' protocols."""
        return joined_states([part.state_dict() for part in self._parts])

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore the states of all shards' protocols."""
        for shard, part in enumerate(self._parts):
            part.load_state_dict(state_of(state, shard))
