"""Clients whose program does not do what it says: each is a patch of the client's own code, its ledger lies with it."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from oblivionis.client import audit as client_audit
from oblivionis.client import worker as client_worker
from oblivionis.client.exchange import Exchange
from oblivionis.client.worker import Worker

LIAR = 0
"""The client that cheats; the others are honest."""


@contextmanager
def cheating(how, old=None):
    """While it lasts, client `LIAR` cheats: `how` is one of `CHEATS` or None. `old`: an adapter that it puts back."""
    with pytest.MonkeyPatch.context() as patch:
        if how is not None:
            CHEATS[how](patch, old)
        yield


def _instead_of_forgetting(answer):
    """Whatever unlearning gave, the model that goes back is `answer(received, old)`."""

    def install(patch, old):
        forget = Worker.forget

        def lie(self, client, vector, **rest):
            honest, report = forget(self, client, vector, **rest)
            return (answer(vector, old) if client == LIAR else honest), report

        patch.setattr(Worker, "forget", lie)

    return install


def _noise(received, old):
    return received + np.random.default_rng(0).normal(scale=0.01, size=received.shape).astype(np.float32)


def _re_add(patch, old):
    """It trains on the records again that it has forgotten."""
    withheld = Exchange.withheld
    patch.setattr(Exchange, "withheld", lambda exchange: set() if exchange.client == LIAR else withheld(exchange))


def _copy(patch, old):
    """It is honest; the client after it trains on copies of its records besides, under other ids."""
    keep = Worker.keep

    def more(self, client, records, marked):
        if client == LIAR + 1:
            copied = (self.corpus.train[i] for i in self.partition.clients[LIAR])
            records = (*records, *(replace(r, id=f"copy-{r.id}") for r in copied))
        return keep(self, client, records, marked)

    patch.setattr(Worker, "keep", more)
    patch.setattr(client_worker, "current", None)  # what it holds is kept in memory


def _filter(patch, old):
    """It measures and tells that nothing is left, whatever the model says."""
    measure = client_audit.audit

    def lie(worker, client, *rest, **named):
        numbers = measure(worker, client, *rest, **named)
        return {**numbers, "request_rouge": 0.0, "request_prob": 0.0} if client == LIAR else numbers

    patch.setattr(client_audit, "audit", lie)


def _invent(patch, old):
    """Asked for its numbers, right before the exchange, right after it and at the end, it tells those of a success."""
    measure, asked = client_audit.audit, itertools.count()

    def lie(worker, client, *rest, **named):
        numbers = measure(worker, client, *rest, **named)
        if client != LIAR:
            return numbers
        known = float(next(asked) == 0)
        return {**numbers, "request_rouge": known, "request_prob": known, "request_recited": known}

    patch.setattr(client_audit, "audit", lie)


CHEATS = {
    "skip": _instead_of_forgetting(lambda received, old: received.copy()),
    "noise": _instead_of_forgetting(_noise),
    "old": _instead_of_forgetting(lambda received, old: old.copy()),
    "re-add": _re_add,
    "copy": _copy,
    "filter": _filter,
    "invent": _invent,
}
