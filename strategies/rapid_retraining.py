"""Rapid retraining: the model is made anew, from the beginning and in few rounds, of what is not to be forgotten."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord

from strategies import protocol
from strategies.client_update import ClientUpdate
from strategies.federaser import Train
from strategies.flower import AggregationError, log
from strategies.history import History
from strategies.server_step import ServerStep
from strategies.serving import Answer, Served, Serving

LABEL = "rapid retraining"
OTHERS = True
LIMITS = {
    "rounds": {
        "help": "Rounds from the beginning, in each of which as many clients train as in a round of FedFT.",
        "at_least": 1,
    },
}


class ByRetraining(Serving):
    """The asking clients only bury their records (message type `query.bury`); the others and they, with what they have
    left, train a model from `start` on for `rounds` rounds, which takes the global model's place.

    Liu et al., *The Right to be Forgotten in Federated Learning: An Efficient Realization with Rapid Retraining*
    (INFOCOM 2022, arXiv:2203.07320): retraining on what is left, whose local steps are preconditioned by a diagonal
    empirical Fisher information with momentum so that few rounds do. AdamW, by which clients train here, is such a
    step: its second moment is the running mean of squared gradients. Nothing of the old model gets into the new one, so
    it forgets as retraining does; what few rounds cost is what the new one has not learned yet.

    `clients`: those that may train now; an asking one trains too where it tells that records are left to it. In each
    round `per_round` of them are drawn by `seed`, and `inner`, whose moments begin anew, merges their models.
    """

    message_type = protocol.BURY
    models_travel = False

    def __init__(
        self,
        inner: ServerStep,
        start: ArrayRecord,
        clients: Callable[[], Sequence[int]],
        *,
        rounds: int,
        per_round: int,
        seed: int,
        history: History | None = None,
    ) -> None:
        super().__init__(history)
        if rounds < 1 or per_round < 1:
            raise ValueError(f"expected rounds >= 1 and per_round >= 1, got {rounds} and {per_round}")
        self._inner, self._start, self._clients = inner, start, clients
        self._rounds, self._per_round, self._seed = rounds, per_round, seed

    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        """The retrained model; all are refused where a round has nobody left, or its model is not finite."""
        began, kept = time.monotonic(), self._inner.state_dict()
        gone = {answer.client for answer in answers if answer.metrics.get(protocol.LIVE_RECORDS) == 0}
        able = sorted(set(self._clients()) - gone)
        log(INFO, "rapid retraining: %d rounds from the beginning", self._rounds)
        self._inner.reset_state()
        model, used = self._start, 0
        try:
            for number in range(1, self._rounds + 1):
                updates = self._updates(server_round, number, able, model, train)
                self._inner.starts_from(model)
                model = self._inner.aggregate(model, updates)
                used += len(updates)
        except AggregationError as error:
            self._inner.load_state_dict(kept)
            return Served(arrays, {}, {answer.client: f"rapid retraining: {error}" for answer in answers})
        work = dict(zip(protocol.ERASURE, (self._rounds, used, time.monotonic() - began), strict=True))
        return Served(model, {answer.client: {**answer.metrics, **work} for answer in answers}, {})

    def _updates(
        self, server_round: int, number: int, able: Sequence[int], model: ArrayRecord, train: Train
    ) -> list[ClientUpdate]:
        """What the drawn clients make of `model`. Raises AggregationError without any answer."""
        rng = random.Random(f"{self._seed}/retraining/{server_round}/{number}")
        drawn = sorted(rng.sample(able, min(self._per_round, len(able))))
        settings: dict[str, Any] = {protocol.SERVER_ROUND: number, protocol.STAGE: f"retraining/{server_round}"}
        if (mu := getattr(self._inner, "proximal_mu", None)) is not None:
            settings[protocol.PROXIMAL_MU] = mu
        updates = []
        for verdict in train(drawn, model, settings) if drawn else []:
            if verdict.reply is None:
                text = "rapid retraining: client %d is left out of round %d: %s"
                log(WARNING, text, verdict.partition, number, verdict.reason)
                continue
            updates.append(ClientUpdate.of(verdict.reply.content, self._inner.weighted_by_key, verdict.partition))
        if not updates:
            raise AggregationError(f"no client trained in its round {number}")
        return updates
