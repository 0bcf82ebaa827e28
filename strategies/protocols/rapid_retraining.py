"""Rapid retraining: the model is trained anew, from the start and in few rounds, on what is not to be forgotten."""

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
    """The asking clients only exclude their records (message type `query.bury`); then all train a new model.

    Liu et al., *The Right to be Forgotten in Federated Learning: An Efficient Realization with Rapid Retraining*
    (INFOCOM 2022, arXiv:2203.07320): retraining on the records that are left. Local steps are preconditioned with a
    diagonal empirical Fisher information with momentum, so that few rounds suffice. AdamW, by which clients train here,
    takes such steps: its second moment is the running mean of squared gradients.

    Nothing of the old model gets into the new one, so that it forgets as retraining does; after few rounds it has not
    learned as much. The aggregator's moments begin anew, too, and belong to the new model afterwards.

    Parameters
    ----------
    auxiliary : AuxiliaryRounds
        The rounds in which the new model is trained.
    start : ArrayRecord
        The model before any training.
    history : History, optional
        As `UnlearningProtocol`.
    """

    message_type = message_keys.BURY
    models_travel = False

    def __init__(self, auxiliary: AuxiliaryRounds, start: ArrayRecord, history: History | None = None) -> None:
        super().__init__(history)
        self._auxiliary, self._start = auxiliary, start

    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        """Retrain the model; see `UnlearningProtocol.serve`.

        All are refused if too few clients train in a round, or the new model is not finite.
        """
        began, auxiliary = time.monotonic(), self._auxiliary
        old_state = auxiliary.inner.state_dict()
        able, model, used = auxiliary.able(answers), self._start, 0
        log(INFO, "%s: %d rounds from the beginning", LABEL, auxiliary.rounds)
        auxiliary.inner.reset_state()
        try:
            for number in range(1, auxiliary.rounds + 1):
                updates = auxiliary.train(train, f"retraining/{server_round}", number, able, model, {})
                model = auxiliary.merged(model, updates)
                used += len(updates)
        except AggregationError as error:
            auxiliary.inner.load_state_dict(old_state)
            return Served.nobody(arrays, answers, f"{LABEL}: {error}")
        work = dict(zip(message_keys.ERASURE, (auxiliary.rounds, used, time.monotonic() - began), strict=True))
        return Served.everyone(model, answers, work)


def build(context: ProtocolContext, *, rounds: int) -> RapidRetrainingProtocol:
    """Make the protocol from what a run offers.

    Parameters
    ----------
    context : ProtocolContext
    rounds : int, at least 1

    Returns
    -------
    RapidRetrainingProtocol

    Raises
    ------
    ValueError
        If `rounds` is below 1.
    """
    return RapidRetrainingProtocol(AuxiliaryRounds.of(context, LABEL, rounds), context.initial(), context.history)
