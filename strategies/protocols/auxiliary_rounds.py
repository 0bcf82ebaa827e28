"""Rounds of ordinary training within one FedTU exchange, by which a protocol changes the model or makes it anew."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord

from strategies import message_keys
from strategies.client_update import ClientUpdate
from strategies.flower_internals import AggregationError, log
from strategies.protocols.base import Answer, ProtocolContext, Train
from strategies.rules.server_step import ServerStep


@dataclass(frozen=True)
class AuxiliaryRounds:
    """Settings of the training rounds within an exchange.

    Attributes
    ----------
    label : str
        The method's name in messages.
    inner : ServerStep
        The aggregator.
    clients : callable () -> sequence of int
        The clients that may train now.
    rounds : int, at least 1
    per_round : int, at least 1
        How many clients train in a round.
    seed : int
        Determines which.

    Raises
    ------
    ValueError
        If `rounds` or `per_round` is below 1.
    """

    label: str
    inner: ServerStep
    clients: Callable[[], Sequence[int]]
    rounds: int
    per_round: int
    seed: int

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.per_round < 1:
            raise ValueError(f"expected rounds >= 1 and per_round >= 1, got {self.rounds} and {self.per_round}")

    @classmethod
    def of(cls, context: ProtocolContext, label: str, rounds: int) -> AuxiliaryRounds:
        """Rounds with the aggregator, the clients, their number and the seed of the run's own rounds.

        Parameters
        ----------
        context : ProtocolContext
        label : str
        rounds : int, at least 1

        Returns
        -------
        AuxiliaryRounds
        """
        return cls(label, context.inner, context.able, rounds, context.per_round, context.seed)

    def able(self, answers: Collection[Answer]) -> list[int]:
        """The clients that may train, ascending, without those whose answer reports that they have no record left.

        Parameters
        ----------
        answers : collection of Answer
            Of the clients that ask.

        Returns
        -------
        list of int
        """
        empty = {answer.client for answer in answers if answer.metrics.get(message_keys.LIVE_RECORDS) == 0}
        return sorted(set(self.clients()) - empty)

    def train(
        self,
        train: Train,
        stage: str,
        number: int,
        able: Sequence[int],
        model: ArrayRecord,
        settings: Mapping[str, Any],
    ) -> list[ClientUpdate]:
        """Sample clients and let them train; a client without a valid reply is left out, with a warning.

        Parameters
        ----------
        train : Train
        stage : str
            Name of the exchange; with seed and number it determines who is sampled.
        number : int
            Of the round.
        able : sequence of int
            The clients to sample from.
        model : ArrayRecord
            The model to train from.
        settings : mapping
            Further settings for the clients.

        Returns
        -------
        list of ClientUpdate
            At least as many as `inner` needs.

        Raises
        ------
        AggregationError
            If there are fewer: `inner` would leave the model as it is, and the exchange would count as done.
        """
        rng = random.Random(f"{self.seed}/{stage}/{number}")
        drawn = sorted(rng.sample(able, min(max(self.per_round, self.inner.least), len(able))))
        about: dict[str, Any] = {
            message_keys.SERVER_ROUND: number,
            message_keys.STAGE: stage,
            **self.inner.client_settings,
        }
        updates = []
        for verdict in train(drawn, model, {**about, **settings}) if drawn else []:
            if verdict.reply is None:
                text = "%s: client %d is left out of round %d: %s"
                log(WARNING, text, self.label, verdict.partition, number, verdict.reason)
                continue
            updates.append(ClientUpdate.of(verdict.reply.content, self.inner.weighted_by_key, verdict.partition))
        if not updates:
            raise AggregationError(f"no client trained in its round {number}")
        if len(updates) < self.inner.least:
            needed = f"{type(self.inner).__name__} needs {self.inner.least}"
            raise AggregationError(f"{len(updates)} clients trained in its round {number}, and {needed}")
        return updates

    def merged(self, model: ArrayRecord, updates: Sequence[ClientUpdate]) -> ArrayRecord:
        """The model after the aggregator's step.

        Parameters
        ----------
        model : ArrayRecord
            The model that the clients started from.
        updates : sequence of ClientUpdate

        Returns
        -------
        ArrayRecord

        Raises
        ------
        AggregationError
            If it is not finite.
        """
        self.inner.starts_from(model)
        return self.inner.aggregate(model, updates)
