"""FedEraser: rebuild the global model without a client, guided by the updates that were stored."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord

from strategies import message_keys
from strategies.arrays import distance, merged
from strategies.client_update import ClientUpdate
from strategies.flower_internals import log
from strategies.protocols.base import Answer, ProtocolContext, Served, Train, UnlearningProtocol
from strategies.protocols.update_history import History, PastRound, RoundUpdates, starts
from strategies.rules.server_step import ServerStep

LABEL = "FedEraser"
LIMITS = {
    "calibration_ratio": {
        "help": "Local epochs of a calibration as a share of `federation.local_epochs`.",
        "above": 0,
    },
}
UPDATES = "all"


@dataclass(frozen=True, slots=True)
class Erasure:
    """Outcome of an erasure.

    Attributes
    ----------
    arrays : ArrayRecord
        The rebuilt model.
    refused : mapping of client to str
        Why some clients could not be erased.
    info : mapping of float
        How much work it was, by the names of `message_keys.ERASURE`.
    """

    arrays: ArrayRecord
    refused: Mapping[int, str]
    info: Mapping[str, float]


class _NobodyCalibrated(Exception):
    """None of the clients that are left of a stored round has answered."""


class FedEraser:
    """Erases clients by calibrating the stored updates of the others, with any of our aggregators.

    Liu et al., *FedEraser: Enabling Efficient Client-Level Data Removal from Federated Learning Models*, IWQoS 2021.
    The stored rounds are repeated without the asking clients. Each remaining client trains from the rebuilt model for
    E_cali = max(1, round(`calibration_ratio` · `local_epochs`)) epochs, which gives a direction Û_k. Its calibrated
    update Ũ_k = ‖U_k‖ Û_k/‖Û_k‖ has the length of its stored one U_k, the L2 norm over all parameters together; it is 0
    for Û_k = 0. The aggregator merges them with the stored weights and numbers of steps: with FedAvg
    φ ← φ + Σ n_k Ũ_k / Σ n_k, the paper's update. They replace the stored updates, so that a later erasure builds on
    them.

    The paper starts at the first round of all. Here an erasure starts at the newest stored round that is no later than
    the first in which an asking client took part: neither the model that was sent then nor the aggregator's state
    depends on that client. For the same reason the stored updates of that round are used as they are. A client that
    never took part needs no work. A client is refused if no stored round reaches back that far, or none of the clients
    of some round answers.

    Afterwards the aggregator has the state that belongs to the rebuilt model; in each stage it begins with a fresh one,
    as in the run itself.

    Parameters
    ----------
    inner : ServerStep
        The aggregator.
    history : History
        The stored rounds.
    local_epochs : int, at least 1
        Epochs of a client's training in FedFT.
    calibration_ratio : float above 0
        Epochs of a calibration as a share of these.

    Raises
    ------
    ValueError
        If `calibration_ratio` is not above 0 and finite.
    """

    def __init__(
        self, inner: ServerStep, history: History, *, local_epochs: int, calibration_ratio: float = 0.5
    ) -> None:
        if not 0 < calibration_ratio < math.inf:
            raise ValueError(f"calibration_ratio is {calibration_ratio}, expected above 0")
        self._inner, self.history = inner, history
        self.epochs = max(1, round(calibration_ratio * local_epochs))

    def erase(self, server_round: int, arrays: ArrayRecord, asking: Collection[int], train: Train) -> Erasure:
        """Rebuild the global model without the asking clients.

        Parameters
        ----------
        server_round : int
        arrays : ArrayRecord
            The global model.
        asking : collection of int
            The clients to erase.
        train : Train
            Lets the others train.

        Returns
        -------
        Erasure
            With `arrays` itself if nobody had to be erased, or nobody could be.
        """
        began = time.monotonic()
        rounds = self.history.rounds()
        places, refused = starts(rounds, asking, LABEL)
        rebuilt = calibrated = 0
        if places:
            start, erased = min(places.values()), set(asking) - refused.keys()
            log(INFO, "FedEraser: going through %d rounds again", sum(past.stored for past in rounds[start:]))
            before = self._inner.state_dict()
            try:
                arrays, rebuilt, calibrated = self._rebuild(server_round, rounds, start, erased, train)
            except _NobodyCalibrated as error:
                self._inner.load_state_dict(before)
                refused.update(dict.fromkeys(places, str(error)))
        info = dict(zip(message_keys.ERASURE, (rebuilt, calibrated, time.monotonic() - began), strict=True))
        return Erasure(arrays, refused, info)

    def _rebuild(
        self, server_round: int, rounds: Sequence[PastRound], start: int, erased: Collection[int], train: Train
    ) -> tuple[ArrayRecord, int, int]:
        """Repeat `rounds` from `start` on; returns the model, the number of rounds with clients and of calibrations."""
        rebuilt = calibrated = 0
        model, stage = ArrayRecord(), ""
        with self.history.rewriting(server_round) as new:
            for past in rounds[:start]:
                new.keep(past)
            for past in [past for past in rounds[start:] if past.stored]:
                stored = self.history.read(past)
                if past is rounds[start]:
                    model = stored.sent
                    self._inner.load_state_dict(stored.state)
                elif past.stage != stage or not stored.state:
                    self._inner.reset_state()
                stage = past.stage
                updates = [update for update in stored.clients if update.partition not in erased]
                if not updates:
                    continue
                if past is not rounds[start]:
                    updates = self._calibrate(server_round, stored, updates, model, train)
                    calibrated += len(updates)
                new.write(RoundUpdates(past.stage, past.round, model, self._inner.state_dict(), updates))
                model = self._inner.aggregate(model, updates)
                rebuilt += 1
        if stage != self.history.stage:
            self._inner.reset_state()
        return model, rebuilt, calibrated

    def _calibrate(
        self, server_round: int, stored: RoundUpdates, updates: Sequence[ClientUpdate], model: ArrayRecord, train: Train
    ) -> list[ClientUpdate]:
        """Calibrate the updates of one round; _NobodyCalibrated if no client gives a valid reply."""
        settings: dict[str, Any] = {
            message_keys.EPOCHS: self.epochs,
            message_keys.SERVER_ROUND: stored.round,
            message_keys.STAGE: f"calibrate/{server_round}/{stored.stage}",
            **self._inner.client_settings,
        }
        verdicts = train([update.partition for update in updates], model, settings)
        replies = {verdict.partition: verdict.reply for verdict in verdicts if verdict.reply is not None}
        calibrated = []
        for update in updates:
            reply = replies.get(update.partition)
            if reply is None:
                text = "FedEraser: client %d is left out of %s round %d"
                log(WARNING, text, update.partition, stored.stage, stored.round)
                continue
            trained = reply.content.array_records[self._inner.arrayrecord_key]
            calibrated.append(replace(update, arrays=_scaled(stored.sent, update, model, trained)))
        if not calibrated:
            raise _NobodyCalibrated(
                f"FedEraser: no client of round {stored.round} of {stored.stage} answered its calibration"
            )
        return calibrated


class FedEraserProtocol(UnlearningProtocol):
    """The asking clients only exclude their records (message type `query.bury`); the model is rebuilt without them.

    Parameters
    ----------
    eraser : FedEraser
        Rebuilds the model; its history remembers the updates.
    """

    message_type = message_keys.BURY
    models_travel = False

    def __init__(self, eraser: FedEraser) -> None:
        super().__init__(eraser.history)
        self._eraser = eraser

    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        """Rebuild the model without the asking clients; see `UnlearningProtocol.serve` and `FedEraser.erase`."""
        erasure = self._eraser.erase(server_round, arrays, [answer.client for answer in answers], train)
        served = [answer for answer in answers if answer.client not in erasure.refused]
        info = {answer.client: {**answer.metrics, **erasure.info} for answer in served}
        return Served(erasure.arrays, info, erasure.refused)


def build(context: ProtocolContext, *, calibration_ratio: float) -> FedEraserProtocol:
    """Make the protocol from what a run offers.

    Parameters
    ----------
    context : ProtocolContext
    calibration_ratio : float above 0
        As in `FedEraser`.

    Returns
    -------
    FedEraserProtocol

    Raises
    ------
    ValueError
        If no updates are stored, or `calibration_ratio` is out of range.
    """
    epochs = context.local_epochs
    return FedEraserProtocol(
        FedEraser(context.inner, context.kept, local_epochs=epochs, calibration_ratio=calibration_ratio)
    )


def _scaled(sent: ArrayRecord, update: ClientUpdate, model: ArrayRecord, trained: ArrayRecord) -> ArrayRecord:
    """The model plus the calibrated update ‖U‖ Û/‖Û‖, with U = update − sent and Û = trained − model."""
    length = distance(trained, model)
    return model if length == 0 else merged(model, [trained], [distance(update.arrays, sent) / length])
