"""Exclude the named records from training where the server changes the model itself."""

from __future__ import annotations

from flwr.app import Message

from oblivionis.client.exchange import Exchange
from oblivionis.client.exchange_entries import enter_exchange
from oblivionis.client.model_reply import ModelReply
from oblivionis.client.node_message import NodeMessage
from strategies import message_keys


def handle(message: NodeMessage) -> Message:
    """Exclude the named records, all if the client leaves; nothing is trained here."""
    exchange = Exchange(message)
    record_ids = exchange.exclude()
    withheld = exchange.withheld()
    live = len(exchange.worker.holding(exchange.client).select(withheld))
    enter_exchange(exchange, None, requests=message.request_ids(), trained=exchange.proven_records(withheld))
    metrics = {message_keys.NUM_EXAMPLES: len(record_ids), message_keys.LIVE_RECORDS: live}
    return ModelReply(exchange).message(None, metrics)
