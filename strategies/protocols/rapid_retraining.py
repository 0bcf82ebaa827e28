"""Rapid retraining: the model is made anew, from the beginning and in few rounds, of what is not to be forgotten."""

from __future__ import annotations

import time
from collections.abc import Sequence
from logging import INFO

from flwr.app import ArrayRecord

from strategies import message_keys
from strategies.flower_internals import AggregationError, log
from strategies.protocols.auxiliary_rounds import AuxiliaryRounds
from strategies.protocols.base import Answer, ProtocolContext, Served, Train, UnlearningProtocol
from strategies.protocols.update_history import History

LABEL = "rapid retraining"
OTHERS = True
LIMITS = {
    "rounds": {
        "help": "Rounds from the beginning, in each of which as many clients train as in a round of FedFT.",
        "at_least": 1,
    },
}


class RapidRetrainingProtocol(UnlearningProtocol):
    """The asking clients only bury their records (message type `query.bury`); the others and they, with what they have
    left, train a model from `start` on in the rounds of `beside`, which takes the global model's place.

    Liu et al., *The Right to be Forgotten in Federated Learning: An Efficient Realization with Rapid Retraining*
    (INFOCOM 2022, arXiv:2203.07320): retraining on what is left, whose local steps are preconditioned by a diagonal
    empirical Fisher information with momentum so that few rounds do. AdamW, by which clients train here, is such a
    step: its second moment is the running mean of squared gradients. Nothing of the old model gets into the new one, so
    it forgets as retraining does; what few rounds cost is what the new one has not learned yet. The aggregator's
    moments begin anew, too, and belong to the new model afterwards.
    """

    message_type = message_keys.BURY
    models_travel = False

    def __init__(self, beside: AuxiliaryRounds, start: ArrayRecord, history: History | None = None) -> None:
        super().__init__(history)
        self._beside, self._start = beside, start

    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        """The retrained model; all are refused where a round has nobody left, or its model is not finite."""
        began, kept, beside = time.monotonic(), self._beside.inner.state_dict(), self._beside
        able, model, used = beside.able(answers), self._start, 0
        log(INFO, "%s: %d rounds from the beginning", LABEL, beside.rounds)
        beside.inner.reset_state()
        try:
            for number in range(1, beside.rounds + 1):
                updates = beside.train(train, f"retraining/{server_round}", number, able, model, {})
                model = beside.merged(model, updates)
                used += len(updates)
        except AggregationError as error:
            beside.inner.load_state_dict(kept)
            return Served(arrays, {}, {answer.client: f"{LABEL}: {error}" for answer in answers})
        work = dict(zip(message_keys.ERASURE, (beside.rounds, used, time.monotonic() - began), strict=True))
        return Served(model, {answer.client: {**answer.metrics, **work} for answer in answers}, {})


def build(context: ProtocolContext, *, rounds: int) -> RapidRetrainingProtocol:
    """Of `rounds` rounds, from the model before any training."""
    return RapidRetrainingProtocol(AuxiliaryRounds.of(context, LABEL, rounds), context.initial(), context.history)
