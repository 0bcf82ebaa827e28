"""Clients that take part in secure sums on an in-memory federation, honest but for what a test has them do.

Where the terms ask for it they clip their updates and add noise, each from `random`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Error, Message, RecordDict

from strategies import message_keys
from strategies.privacy.distributed_noise import contribution, discrete_gaussian
from strategies.rounds.memory_grid import MemoryGrid
from strategies.secure import stage_keys as w
from strategies.secure.agreed_parameters import SecureSettings
from strategies.secure.client import Participant, SecureError
from strategies.secure.server import SecureSum, Summed

STAGES = (w.KEYS_TYPE, w.SHARES_TYPE, "vectors", w.CONFIRM_TYPE, w.UNMASK_TYPE)
Spoil = Callable[[str, ConfigRecord], ConfigRecord | None]
"""(stage, honest answer) → what is sent in its place, None: nothing."""


@dataclass
class SecureClient:
    """Client `me` adds `update(model)` with `weight(message)`; `spoil` changes what it says."""

    me: int
    update: Callable[[Message], np.ndarray]
    weight: Callable[[Message], int]
    spoil: Spoil = lambda stage, answer: answer
    state: MutableMapping[str, Any] = field(default_factory=dict)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __call__(self, message: Message) -> RecordDict | Error | None:
        try:
            return self._answer(message)
        except SecureError as error:
            return Error(code=1001, reason=str(error))

    def _answer(self, message: Message) -> RecordDict | None:
        participant = Participant(self.state, self.me)
        asked = message.content.config_records[w.RECORD]
        kind = message.metadata.message_type
        if kind == w.KEYS_TYPE:
            answer = participant.keys(asked)
        elif kind == w.SHARES_TYPE:
            answer = participant.shares(asked)
        elif kind == w.CONFIRM_TYPE:
            answer = participant.confirm(asked)
        elif kind == w.UNMASK_TYPE:
            answer = participant.unmask(asked)
        else:
            terms, update, noise = participant.terms, self.update(message), None
            tallies = [0.5] * terms.tallies
            weight = min(self.weight(message), 1) if terms.one_each else self.weight(message)
            if terms.norm:
                update = contribution(update, terms.norm, terms.counting)
                noise = discrete_gaussian(update.size, terms.noise, self.random)
            answer = participant.masked(asked, update, weight, tallies, noise)
        spoiled = self.spoil(kind if kind in STAGES else "vectors", answer)
        return None if spoiled is None else RecordDict({w.RECORD: spoiled})


def vanishing(stage: str) -> Spoil:
    """A client that says nothing in `stage` and later."""
    return lambda now, answer: None if STAGES.index(now) >= STAGES.index(stage) else answer


def hold(
    updates: Mapping[int, np.ndarray],
    weights: Mapping[int, int],
    spoils: Mapping[int, Spoil] | None = None,
    *,
    grid: Callable[[Mapping[int, SecureClient]], MemoryGrid] = MemoryGrid,
    **settings: Any,
) -> Summed:
    """One secure sum over these updates (n,) and weights."""
    spoils = spoils or {}
    clients = {
        c: SecureClient(
            c, lambda _, c=c: updates[c], lambda _, c=c: weights[c], spoils.get(c, lambda _, answer: answer)
        )
        for c in updates
    }
    size = len(next(iter(updates.values())))
    federation = grid(clients)
    terms = SecureSettings(**{"clipping": 1.0, **settings}).terms("train", len(updates), ["train-loss"], size)
    messages = [
        Message(RecordDict(), dst_node_id=federation.node_ids[c], message_type=message_keys.TRAIN)
        for c in sorted(updates)
    ]
    names = {node: c for c, node in federation.node_ids.items()}
    session = SecureSum(federation, lambda m: names[m.metadata.dst_node_id], terms, 1.0)
    return session.hold(messages, size, 1.0)
