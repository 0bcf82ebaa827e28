"""FedFT: local epochs on the records that are to be kept."""

from __future__ import annotations

import math

from flwr.app import Message

from oblivionis.client.cover_exchange import keep_received_model
from oblivionis.client.exchange import Exchange
from oblivionis.client.exchange_entries import enter_exchange
from oblivionis.client.model_reply import ModelReply
from oblivionis.client.node_message import NodeMessage
from oblivionis.errors import ClientError
from strategies import message_keys


def handle(message: NodeMessage) -> Message:
    """Train on the current records: without those excluded, those asked for, and whatever the stage excludes.

    A client that left the federation refuses, and so does one that is to hold a round again in which it took no part,
    or held other records. In a replay it says how much of what it trains on has changed since. In a sum under masks a
    client that left adds a zero, as one does that has no record left.
    """
    exchange = Exchange(message)
    reply, holding = ModelReply(exchange), exchange.worker.holding(exchange.client)
    request = exchange.node.left_by()
    if request is not None and not message.masked:
        by = "" if message.sealed else f" by request {request!r}"
        raise ClientError(f"client {exchange.client} has left the federation{by} and trains no more")
    excluded = exchange.withheld()
    past = None if message.replay is None else exchange.past_round()
    changed = None if past is None else exchange.changed_since(past)
    live = 0 if past is None else len(holding.select(excluded))
    if message.text("exclude") == "forget-split":
        excluded |= holding.marked
    keep_received_model(exchange)
    excluded = exchange.without_rested(excluded, least=0 if message.masked else 1)
    if message.masked and (request is not None or not holding.select(excluded)):
        return reply.message(message.vector, {message_keys.NUM_EXAMPLES: exchange.weight(0)})
    vector, report = exchange.worker.finetune(
        exchange.client,
        message.vector,
        excluded=excluded,
        epochs=message.integer(message_keys.EPOCHS, exchange.config.federation.local_epochs),
        proximal_mu=message.real(message_keys.PROXIMAL_MU, 0.0),
        seed=exchange.seed,
        moving=message.moving(),
        privacy=exchange.privacy(),
    )
    if past is not None and not changed:
        exchange.check_as_then(past, vector)
    vector = reply.compressed(vector, excluded)
    trained = exchange.proven_records(excluded)
    entry = enter_exchange(exchange, vector, trained=trained)
    return reply.message(
        vector,
        {
            message_keys.NUM_EXAMPLES: exchange.weight(report.num_examples),
            **({} if math.isnan(report.last_loss) else {"train-loss": report.last_loss}),
            "train-seconds": report.seconds,
            message_keys.TRAIN_STEPS: report.steps,
            **({} if changed is None else dict(zip(message_keys.REPLAYED, (live, len(changed)), strict=True))),
        },
        entry=entry if trained else "",
    )
