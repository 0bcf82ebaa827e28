"""Exact erasure: the rounds since an asking client first trained are held again without the demanded records."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord

from strategies import message_keys
from strategies.arrays import fingerprint
from strategies.client_update import ClientUpdate
from strategies.flower_internals import AggregationError, log
from strategies.protocols.base import Answer, ProtocolContext, Served, Train, UnlearningProtocol
from strategies.protocols.update_history import History, PastRound, RoundUpdates, starts
from strategies.rules.server_step import ServerStep

LABEL = "exact erasure"
UPDATES = "models"
REPLAYS = True
NOT_WITH = {
    "ranks": "a client of another rank is sent another model, which no stored round has",
    "compression": "what a client kept back in one round goes into its update of a later one",
    "asynchronous_rounds": "which update meets which model depends on when it arrives",
    "secure_sums": "nobody sees which clients are in a sum",
    "client_privacy": "its noise is drawn anew each time",
    "record_privacy": "its noise is drawn anew each time",
    "sampling_by_records": "who is drawn depends on the records that are to be forgotten",
    "reset_after_unlearning": "a federation that never had the records would have kept its server's state",
}


class _Impossible(Exception):
    """A round cannot be held again as it was."""


class ExactProtocol(UnlearningProtocol):
    """The asking clients only exclude their records (message type `query.bury`); then past rounds are held again.

    A round is held again with the clients that took part in it, the same labels of their seeds and the same server
    state, on the records that are left. So the model, and the aggregator's state, become those of a federation that
    never had the demanded records and in which the same clients took part in each round, to the last bit: local
    training and aggregation are deterministic, and who takes part must not depend on who has records left
    (`REPLAYS`). A client without any record sits its rounds out.

    A replay begins with the newest stored round that is no later than the first in which an asking client took part:
    neither the model that was sent then nor the aggregator's state depends on that client. All requests of an exchange
    share one replay. The rounds that were held again take the place of the old ones, so that a later erasure builds on
    them.

    As long as the model of a replay is the one that was sent then, a client that does not ask must answer as it did:
    its update's hash is compared. Where a client does not answer, or answers otherwise, nobody is served, and the
    reason names the client.

    Parameters
    ----------
    inner : ServerStep
        The aggregator.
    history : History
        The rounds so far.
    labels : mapping of str
        The label of a stage's seeds, by the history's name of the stage.
    carries_on : bool
        Whether a stage begins with the aggregator's state of the one before.
    """

    message_type = message_keys.BURY
    models_travel = False

    def __init__(
        self, inner: ServerStep, history: History, labels: Mapping[str, str], *, carries_on: bool = False
    ) -> None:
        super().__init__(history)
        self._inner, self._rounds, self._labels, self._carries_on = inner, history, labels, carries_on

    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        """Hold the rounds again that an asking client took part in; see `UnlearningProtocol.serve`."""
        began, rounds = time.monotonic(), self._rounds.rounds()
        found, refused = starts(rounds, [answer.client for answer in answers], LABEL)
        served = [answer for answer in answers if answer.client not in refused]
        trained = held = 0
        if found:
            start, before = min(found.values()), self._inner.state_dict()
            log(INFO, "%s: %d rounds are held again", LABEL, len(rounds) - start)
            empty = {answer.client for answer in served if answer.metrics.get(message_keys.LIVE_RECORDS) == 0}
            try:
                arrays, trained = self._replay(server_round, rounds, start, set(found), empty, train)
            except (_Impossible, AggregationError) as error:
                self._inner.load_state_dict(before)
                return Served.nobody(arrays, answers, f"{LABEL}: {error}")
            held = len(rounds) - start
        work = dict(zip(message_keys.ERASURE, (held, trained, time.monotonic() - began), strict=True))
        return Served(arrays, {answer.client: {**answer.metrics, **work} for answer in served}, refused)

    def _replay(
        self,
        server_round: int,
        rounds: Sequence[PastRound],
        start: int,
        asking: set[int],
        empty: Collection[int],
        train: Train,
    ) -> tuple[ArrayRecord, int]:
        """Hold `rounds` again from `start` on; returns the model, and how many updates were trained for it."""
        stored = self._rounds.read(rounds[start])
        model, stage, trained, changed = stored.sent, rounds[start].stage, 0, False
        self._inner.load_state_dict(stored.state)
        with self._rounds.rewriting(server_round) as new:
            for past in rounds[:start]:
                new.keep(past)
            for past in rounds[start:]:
                self._enter(past.stage, stage)
                stage, state = past.stage, self._inner.state_dict()
                updates = self._held_again(past, [c for c in past.clients if c not in empty], model, train)
                if not changed:
                    self._compare(past, updates, asking)
                changed = changed or not asking.isdisjoint(past.clients)
                new.write(RoundUpdates(past.stage, past.round, model, state, updates), stored=past.stored)
                if updates:
                    self._inner.starts_from(model)
                    model = self._inner.aggregate(model, updates)
                trained += len(updates)
            self._enter(self._rounds.stage, stage)
        return model, trained

    def _enter(self, stage: str, before: str) -> None:
        """The aggregator's state at the beginning of a stage, as the run had it."""
        if stage != before and not self._carries_on:
            self._inner.reset_state()

    def _held_again(
        self, past: PastRound, clients: Sequence[int], model: ArrayRecord, train: Train
    ) -> list[ClientUpdate]:
        """The clients' updates of a round, from another model; _Impossible where one does not answer."""
        if not clients:
            return []
        settings: dict[str, Any] = {
            message_keys.SERVER_ROUND: past.round,
            message_keys.STAGE: self._labels.get(past.stage, past.stage),
            message_keys.REPLAY: True,
            **self._inner.client_settings,
        }
        verdicts = {verdict.partition: verdict for verdict in train(clients, model, settings)}
        updates = []
        for client in clients:
            verdict = verdicts.get(client)
            if verdict is None or verdict.reply is None:
                reason = "is not connected" if verdict is None else f"gave no valid reply: {verdict.reason}"
                raise _Impossible(
                    f"client {client}, which took part in round {past.round} of {past.stage}, {reason}. Its requests "
                    "stay pending; another unlearning method can do without that client"
                )
            updates.append(ClientUpdate.of(verdict.reply.content, self._inner.weighted_by_key, client))
        return updates

    def _compare(self, past: PastRound, updates: Sequence[ClientUpdate], asking: Collection[int]) -> None:
        """_Impossible where a client that does not ask answers otherwise than in the round itself."""
        for update in updates:
            before = past.hashes.get(update.partition)
            if update.partition not in asking and before not in (None, fingerprint(update.arrays)):
                raise _Impossible(
                    f"client {update.partition} does not give what it gave in round {past.round} of {past.stage}: its "
                    "records, its software or its processor have changed. Its requests stay pending; another "
                    "unlearning method can do without that round"
                )


def build(context: ProtocolContext) -> ExactProtocol:
    """Make the protocol from what a run offers.

    Parameters
    ----------
    context : ProtocolContext

    Returns
    -------
    ExactProtocol

    Raises
    ------
    ValueError
        If no rounds are stored.
    """
    return ExactProtocol(context.inner, context.kept, context.labels, carries_on=context.carries_on)
