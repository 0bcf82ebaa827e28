"""What FedTU tells about itself while it runs: hooks for progress, metrics and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord


class Listener:
    """Every hook does nothing here; override the ones you need. Clients are named by partition id.

    An exception that a hook raises ends the run: that is also the way to stop it between exchanges.
    """

    def round_started(self, server_round: int, total: int) -> None:
        """Before anything else in a round; `total` is the number of the last planned round."""

    def exchange_started(self, kind: str, nodes: Sequence[int]) -> None:
        """Messages are about to leave; `kind` is `unlearn`, `train`, `calibrate` or `evaluate`."""

    def reply(self, node: int, ok: bool, reason: str) -> None:
        """One client answered well (`reason` is empty), badly or not at all (`node` is -1 for an unknown sender)."""

    def arrived(self, answers: int, sent: int) -> None:
        """So many answers of the exchange in progress have come; they are judged when it goes on."""

    def late(self, node: int, reason: str) -> None:
        """The exchange goes on without the answer of one client, which is slow: whatever still comes is thrown away."""

    def discarded(self, node: int) -> None:
        """An answer of one client came that nobody waits for any more, and was thrown away."""

    def barrier(self, server_round: int, version: int, discarded: int) -> None:
        """A FedTU exchange changed the model, which is version `version` now, while clients were training.

        No update computed from an earlier version is merged any more: `discarded` clients train for nothing.
        """

    def clock(self, seconds: float) -> None:
        """At a round's end: what the simulated clock says."""

    def cut(self, node: int, what: str, told: float, used: float) -> None:
        """Of a good reply less counts than was told: `what` is its `weight`, or the `norm` of its update."""

    def exchange_ended(self, kind: str, accepted: int, left_out: int, seconds: float) -> None:
        """All replies were judged; the new global model, if any, follows."""

    def evaluating(self, server_round: int, moment: str) -> None:
        """An evaluation on the server starts; `moment` is `initial`, `after_unlearn` or `round`."""

    def evaluated(self, server_round: int, moment: str, metrics: Mapping[str, object], seconds: float) -> None:
        """An evaluation on the server ended with `metrics` (empty when it returned none)."""

    def checkpoint(self, server_round: int, moment: str, arrays: ArrayRecord, state: Mapping[str, np.ndarray]) -> None:
        """The place to save: `moment` is `after_unlearn` or `round`; `state` is the strategy's `state_dict()`.

        From `round` a run continues with `start(…, start_round=server_round + 1)`; from `after_unlearn` with
        `start_round=server_round`, its requests being served already.
        """

    def round_completed(
        self, server_round: int, arrays: ArrayRecord, metrics: Mapping[str, object], seconds: float
    ) -> None:
        """After the round's checkpoint; `metrics` are the clients' training metrics, averaged."""


class Listeners(Listener):
    """Several listeners, called one after another."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def round_started(self, server_round: int, total: int) -> None:
        for listener in self._listeners:
            listener.round_started(server_round, total)

    def exchange_started(self, kind: str, nodes: Sequence[int]) -> None:
        for listener in self._listeners:
            listener.exchange_started(kind, nodes)

    def reply(self, node: int, ok: bool, reason: str) -> None:
        for listener in self._listeners:
            listener.reply(node, ok, reason)

    def arrived(self, answers: int, sent: int) -> None:
        for listener in self._listeners:
            listener.arrived(answers, sent)

    def late(self, node: int, reason: str) -> None:
        for listener in self._listeners:
            listener.late(node, reason)

    def discarded(self, node: int) -> None:
        for listener in self._listeners:
            listener.discarded(node)

    def barrier(self, server_round: int, version: int, discarded: int) -> None:
        for listener in self._listeners:
            listener.barrier(server_round, version, discarded)

    def clock(self, seconds: float) -> None:
        for listener in self._listeners:
            listener.clock(seconds)

    def cut(self, node: int, what: str, told: float, used: float) -> None:
        for listener in self._listeners:
            listener.cut(node, what, told, used)

    def exchange_ended(self, kind: str, accepted: int, left_out: int, seconds: float) -> None:
        for listener in self._listeners:
            listener.exchange_ended(kind, accepted, left_out, seconds)

    def evaluating(self, server_round: int, moment: str) -> None:
        for listener in self._listeners:
            listener.evaluating(server_round, moment)

    def evaluated(self, server_round: int, moment: str, metrics: Mapping[str, object], seconds: float) -> None:
        for listener in self._listeners:
            listener.evaluated(server_round, moment, metrics, seconds)

    def checkpoint(self, server_round: int, moment: str, arrays: ArrayRecord, state: Mapping[str, np.ndarray]) -> None:
        for listener in self._listeners:
            listener.checkpoint(server_round, moment, arrays, state)

    def round_completed(
        self, server_round: int, arrays: ArrayRecord, metrics: Mapping[str, object], seconds: float
    ) -> None:
        for listener in self._listeners:
            listener.round_completed(server_round, arrays, metrics, seconds)
