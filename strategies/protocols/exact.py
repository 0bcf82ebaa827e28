"""Exact erasure: the rounds since an asking client first trained are held again without the demanded records."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord, Message

from strategies import message_keys
from strategies.arrays import fingerprint
from strategies.client_update import ClientUpdate
from strategies.flower_internals import AggregationError, log
from strategies.protocols.base import Answer, ProtocolContext, Served, Train, UnlearningProtocol
from strategies.protocols.update_history import History, PastRound, RoundUpdates, starts
from strategies.replies import metrics_of
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
    "finetune_of_another_run": "clients hold again only rounds in which they took part in the same run",
    "newest_rounds_only": "a client that took part before the newest rounds could never be erased",
    "requests_in_parts": "a client withholds at once what it asks for, and each part would hold all rounds again",
}


class _Impossible(Exception):
    """A round cannot be held again as it was."""


class _Changed(Exception):
    """Further clients train on other records than in the rounds that are held again."""

    def __init__(self, clients: Collection[int]) -> None:
        super().__init__()
        self.clients = clients


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
    them. A client can withhold records that the exchange does not serve, by a request that is still under way: it says
    so in its reply, and the replay begins anew as if it had asked.

    As long as the model of a replay is the one that was sent then, a client that does not ask must answer as it did.
    The server compares the update's hash in rounds in which nobody trains on other records (the updates of those who
    do can move the bound to which another one's is cut), and the client itself by its ledger. Where a client does not
    answer, or answers otherwise, nobody is served, and the reason names the client.

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
        began, rounds, before = time.monotonic(), self._rounds.rounds(), self._inner.state_dict()
        live = {a.client: a.metrics[key] for a in answers if (key := message_keys.LIVE_RECORDS) in a.metrics}
        changed, trained, held = {answer.client for answer in answers}, 0, 0
        try:
            while (start := _start(rounds, changed)) is not None:
                held = len(rounds) - start
                log(INFO, "%s: %d rounds are held again", LABEL, held)
                try:
                    arrays, trained = self._replay(server_round, rounds, start, changed, dict(live), train)
                    break
                except _Changed as found:
                    changed |= set(found.clients)
        except (_Impossible, AggregationError) as error:
            self._inner.load_state_dict(before)
            return Served.nobody(arrays, answers, f"{LABEL}: {error}")
        work = dict(zip(message_keys.ERASURE, (held, trained, time.monotonic() - began), strict=True))
        return Served.everyone(arrays, answers, work)

    def _replay(
        self,
        server_round: int,
        rounds: Sequence[PastRound],
        start: int,
        changed: Collection[int],
        live: dict[int, float],
        train: Train,
    ) -> tuple[ArrayRecord, int]:
        """Hold `rounds` again from `start` on; returns the model, and how many updates were trained for it.

        `changed`: the clients that train on other records than then; `live`: how many records clients have left.
        """
        stored = self._rounds.read(rounds[start])
        model, stage, trained, moved = stored.sent, rounds[start].stage, 0, False
        self._inner.load_state_dict(stored.state)
        empty = {client for client, count in live.items() if count == 0}
        with self._rounds.rewriting(server_round) as new:
            for past in rounds[:start]:
                new.keep(past)
            for past in rounds[start:]:
                self._enter(past.stage, stage)
                stage, state = past.stage, self._inner.state_dict()
                clients = [client for client in past.clients if client not in empty]
                replies = self._held_again(server_round, past, clients, model, train)
                _check_records(past, replies, changed, live)
                updates = [ClientUpdate.of(r.content, self._inner.weighted_by_key, c) for c, r in replies.items()]
                moved = moved or not set(changed).isdisjoint(past.clients)
                if not moved:
                    _compare(past, updates)
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
        self, server_round: int, past: PastRound, clients: Sequence[int], model: ArrayRecord, train: Train
    ) -> dict[int, Message]:
        """The clients' replies in a round, from another model; _Impossible where one does not answer."""
        if not clients:
            return {}
        settings: dict[str, Any] = {
            message_keys.SERVER_ROUND: past.round,
            message_keys.STAGE: self._labels.get(past.stage, past.stage),
            message_keys.REPLAY: server_round,
            message_keys.REPLAYED_BEFORE: past.replayed,
            **self._inner.client_settings,
        }
        verdicts = {verdict.partition: verdict for verdict in train(clients, model, settings)}
        replies = {}
        for client in clients:
            verdict = verdicts.get(client)
            if verdict is None or verdict.reply is None:
                reason = "is not connected" if verdict is None else f"gave no valid reply: {verdict.reason}"
                raise _Impossible(
                    f"client {client}, which took part in round {past.round} of {past.stage}, {reason}. Its requests "
                    "stay pending; another unlearning method can do without that client"
                )
            replies[client] = verdict.reply
        return replies


def _start(rounds: Sequence[PastRound], changed: Collection[int]) -> int | None:
    """The place of the round from which a replay begins, None where none is needed; _Impossible where it is gone."""
    found, gone = starts(rounds, changed, "a replay")
    for client, reason in sorted(gone.items()):
        raise _Impossible(f"client {client}: {reason}")
    return min(found.values(), default=None)


def _check_records(
    past: PastRound, replies: Mapping[int, Message], changed: Collection[int], live: dict[int, float]
) -> None:
    """_Changed where further clients train on other records than in the round itself, _Impossible where one does so
    since the replay began. Enters in `live` what is not known."""
    numbers = {client: metrics_of(reply) for client, reply in replies.items()}
    others = {client for client, of in numbers.items() if of.get(message_keys.CHANGED_RECORDS)} - set(changed)
    if others:
        raise _Changed(others)
    for client, of in numbers.items():
        if (left := of.get(message_keys.LIVE_RECORDS)) is not None and live.setdefault(client, left) != left:  # type: ignore[arg-type]
            raise _Impossible(
                f"client {client} withholds other records in round {past.round} of {past.stage} than when the replay "
                "began. Its requests stay pending until the next round"
            )


def _compare(past: PastRound, updates: Sequence[ClientUpdate]) -> None:
    """_Impossible where a client answers otherwise than in the round itself, with the same model and records."""
    for update in updates:
        before = past.hashes.get(update.partition)
        if before not in (None, fingerprint(update.arrays)):
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
