"""FedTU: exclude the named records from training, and unlearn them."""

from __future__ import annotations

import logging
from collections.abc import Collection

import numpy as np
from flwr.app import Message

from clients.unlearning import UnlearnReport
from oblivionis.client.cover_exchange import decoy, join_with_requests, keep_received_model
from oblivionis.client.exchange import Exchange
from oblivionis.client.exchange_entries import enter_exchange
from oblivionis.client.model_reply import ModelReply
from oblivionis.client.node_message import NodeMessage
from oblivionis.client.worker import unlearning_metrics
from oblivionis.erasure.hidden_requests import give_up
from oblivionis.erasure.unlearn_messages import accept
from strategies import message_keys

log = logging.getLogger("flwr")


def handle(message: NodeMessage) -> Message:
    """Forget the named records, or all if the client leaves.

    They are excluded first: whatever happens next, no exchange trains on them.
    """
    exchange = Exchange(message)
    if message.covering:
        return _in_cover_exchange(exchange)
    reply = ModelReply(exchange)
    vector, report = _unlearned(exchange, exchange.exclude())
    vector = reply.compressed(vector)
    numbers = unlearning_metrics(report)
    enter_exchange(exchange, vector, requests=message.request_ids(), numbers=numbers)
    return reply.message(vector, {**numbers, "unlearn-seconds": report.seconds})


def _in_cover_exchange(exchange: Exchange) -> Message:
    """Forget what this client is asked for, or asks for itself, or do the same work in vain and add a zero.

    Where requests are sealed nothing that a server sees depends on whether there is one, nor on whether it fails.
    """
    message = exchange.message
    share = join_with_requests(exchange)
    keep_received_model(exchange, None if share is None else share.session)
    demands = message.demands() if share is None else share.demands
    reply = ModelReply(exchange, "" if share is None else share.commitment)
    vector, records = message.vector, 0
    try:
        forget = accept(demands, exchange.held, exchange.node, exchange.contents()) if demands else set[str]()
        unlearned, report = _unlearned(exchange, forget or decoy(exchange))
        if forget:
            enter_exchange(exchange, unlearned, requests=[demand.request_id for demand in demands])
            vector, records = unlearned, report.num_examples
    except Exception as error:  # an error reply would reveal whether the client asks
        if share is None and demands:
            raise
        log.error("client %s: %s", exchange.client, error)
        if share is not None and demands:
            give_up(exchange.node.path, share.session, str(error))
    return reply.message(vector, {message_keys.NUM_EXAMPLES: records})


def _unlearned(exchange: Exchange, record_ids: Collection[str]) -> tuple[np.ndarray, UnlearnReport]:
    """The received model without these records."""
    message = exchange.message
    return exchange.worker.forget(
        exchange.client,
        message.vector,
        record_ids=record_ids,
        tombstones=exchange.without_rested({*exchange.withheld(), *record_ids}, least=1),
        proximal_mu=0.0,
        seed=exchange.seed,
        reference=message.reference,
        own_references=exchange.own_references(),
        privacy=exchange.privacy(),
    )
