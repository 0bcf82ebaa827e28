"""Callbacks of a federated run: hooks for progress, metrics and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord


class Listener:
    """Callbacks that FedTU calls while it runs; each does nothing until overridden. Clients are named by partition id.

    An exception that a hook raises ends the run: that is also the way to stop it between exchanges.
    """

    def round_started(self, server_round: int, total: int) -> None:
        """Called first in a round; `total` is the number of the last planned round."""

    def exchange_started(self, kind: str, nodes: Sequence[int]) -> None:
        """Called before messages go to the clients `nodes`.

        `kind` is `unlearn`, `train`, `calibrate`, `replay` or `evaluate`.
        """

    def reply(self, node: int, ok: bool, reason: str) -> None:
        """Called once for each checked reply.

        Parameters
        ----------
        node : int
            The client; -1 for an unknown sender.
        ok : bool
            Whether the reply is valid.
        reason : str
            Why it is not; empty if it is.
        """

    def arrived(self, answers: int, sent: int) -> None:
        """Called when `answers` of `sent` replies of the current exchange have come; they are checked later."""

    def late(self, node: int, reason: str) -> None:
        """Called when the exchange goes on without the reply of a slow client, which is discarded if it still comes."""

    def discarded(self, node: int) -> None:
        """Called when a reply came that nobody waits for any more, and was discarded."""

    def barrier(self, server_round: int, version: int, discarded: int) -> None:
        """Called when a FedTU exchange changed the model while clients were training (asynchronous rounds).

        Parameters
        ----------
        server_round : int
        version : int
            The new version of the model; no update computed from an earlier one is merged any more.
        discarded : int
            Clients whose current training is therefore lost.
        """

    def clock(self, seconds: float) -> None:
        """Called at a round's end with the seconds on the simulated clock."""

    def cut(self, node: int, what: str, told: float, used: float) -> None:
        """Called when a good reply counts less than it reported.

        Parameters
        ----------
        node : int
        what : str
            `weight`, or `norm` of the update.
        told, used : float
            The reported value and the one that counts.
        """

    def exchange_ended(self, kind: str, accepted: int, left_out: int, seconds: float) -> None:
        """Called when all replies were checked, with their numbers and the seconds taken; the new model may follow."""

    def evaluating(self, server_round: int, moment: str) -> None:
        """Called before an evaluation on the server; `moment` is its phase: `initial`, `after_unlearn` or `round`."""

    def evaluated(self, server_round: int, moment: str, metrics: Mapping[str, object], seconds: float) -> None:
        """Called after an evaluation on the server with its metrics (empty if it gave none) and the seconds taken."""

    def checkpoint(self, server_round: int, moment: str, arrays: ArrayRecord, state: Mapping[str, np.ndarray]) -> None:
        """Called where a checkpoint can be saved.

        From `round` a run continues with `start(…, start_round=server_round + 1)`; from `after_unlearn` with
        `start_round=server_round`, since its requests are served already.

        Parameters
        ----------
        server_round : int
        moment : str
            The phase: `after_unlearn` or `round`.
        arrays : ArrayRecord
            The global model.
        state : mapping of arrays
            The strategy's `state_dict()`.
        """

    def round_completed(
        self, server_round: int, arrays: ArrayRecord, metrics: Mapping[str, object], seconds: float
    ) -> None:
        """Called after the round's checkpoint.

        Parameters
        ----------
        server_round : int
        arrays : ArrayRecord
            The global model.
        metrics : mapping
            The clients' training metrics, averaged.
        seconds : float
            Duration of the round.
        """


class Listeners(Listener):
    """Several listeners, called one after another in the given order."""

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
