"""Measure what the received model knows of the records of a request."""

from __future__ import annotations

from flwr.app import Message

from oblivionis.client import audit as node_audit
from oblivionis.client.exchange import Exchange
from oblivionis.client.exchange_entries import enter_exchange, signature_of_audit
from oblivionis.client.model_reply import ModelReply
from oblivionis.client.node_message import NodeMessage
from oblivionis.erasure.node_key import MOMENT, SIGNATURE
from oblivionis.erasure.unlearn_messages import DemandError, forget_set
from strategies import message_keys


def handle(message: NodeMessage) -> Message:
    """Measure the named records, all if the client leaves, and sign the numbers; numbers leave, no record does.

    The forget set is the same before and after the records are excluded from training.
    """
    exchange = Exchange(message)
    demands = message.demands()
    if len(demands) != 1:
        raise DemandError(f"an audit is about one request, got {len(demands)}")
    forget = forget_set(demands, exchange.held, exchange.node.buried())
    worker, folder = exchange.worker, exchange.node.path
    samples = message.integer(message_keys.SAMPLES, 0) or None
    numbers = node_audit.audit(
        *(worker, exchange.client, message.vector, forget, exchange.withheld()), folder=folder, samples=samples
    )
    phase = message.text(MOMENT)
    enter_exchange(exchange, None, requests=message.request_ids(), phase=phase, numbers=numbers)
    reply = ModelReply(exchange).message(None, {message_keys.NUM_EXAMPLES: len(forget), **numbers})
    reply.content[SIGNATURE] = signature_of_audit(exchange, demands[0].request_id, numbers)
    return reply
