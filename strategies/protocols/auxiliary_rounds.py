"""Rounds of ordinary training within one FedTU exchange, by which a method changes the model or makes it anew."""

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
    """How clients train beside the rounds: `rounds` times, `per_round` of them drawn by `seed`, merged by `inner`.

    `clients`: those that may train now. `label`: what people call the method. Raises ValueError for numbers below 1.
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
        """`rounds` rounds as the run's own are: its aggregator, its clients, as many of them, its seed."""
        return cls(label, context.inner, context.able, rounds, context.per_round, context.seed)

    def able(self, answers: Collection[Answer]) -> list[int]:
        """Who may train, those that ask among them unless they tell that no record is left to them."""
        gone = {answer.client for answer in answers if answer.metrics.get(message_keys.LIVE_RECORDS) == 0}
        return sorted(set(self.clients()) - gone)

    def train(
        self,
        train: Train,
        stage: str,
        number: int,
        able: Sequence[int],
        model: ArrayRecord,
        settings: Mapping[str, Any],
    ) -> list[ClientUpdate]:
        """What the clients drawn for round `number` of the exchange `stage` make of `model`.

        `settings`: further ones for the clients. Raises AggregationError where fewer answer than `inner` needs: it
        would leave the model as it is, and the exchange would count as done.
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
        """The server's step from `model`. Raises AggregationError where it is not finite."""
        self.inner.starts_from(model)
        return self.inner.aggregate(model, updates)
