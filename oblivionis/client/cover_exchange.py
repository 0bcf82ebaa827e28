"""A client's part in cover exchanges, in which nothing that a server sees depends on whether it has a request."""

from __future__ import annotations

import random

from oblivionis.client.exchange import Exchange
from oblivionis.client.self_audit import Kept, keep_model
from oblivionis.erasure.hidden_requests import MOST_EXCHANGES, Share, join


def join_with_requests(exchange: Exchange) -> Share | None:
    """The sealed requests with which this client takes part; None where the server names them."""
    message = exchange.message
    if message.names_requests or not exchange.hides_requests:
        return None
    most = MOST_EXCHANGES if message.guard is None else message.guard.most_exchanges
    session = message.participant.terms.session
    return join(exchange.node.path, message.run, session, exchange.client, held=exchange.held, most_exchanges=most)


def keep_received_model(exchange: Exchange, session: str | None = None) -> None:
    """Keep the received model where requests are sealed: only by it can this node measure what was forgotten.

    `session`: of the cover exchange that begins with it.
    """
    if not exchange.hides_requests:
        return

    message = exchange.message
    about = Kept(message.run, message.stage, message.round, message.text("settings"), message.text("fingerprint"))
    keep_model(exchange.node.path, message.vector, about)
    if session is not None:
        keep_model(exchange.node.path, message.vector, about, session)


def decoy(exchange: Exchange) -> set[str]:
    """Records whose unlearning, in vain, takes as long as that of a request: up to half of what is trained on."""
    withheld, chance = exchange.withheld(), random.SystemRandom()
    live = [i for i in exchange.held if i not in withheld]
    return set(chance.sample(live, chance.randint(1, max(1, len(live) // 2)))) if live else set()
