"""What a node records of an exchange: a line of its own ledger, and its signature of an audit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from oblivionis.client.exchange import Exchange
from oblivionis.config import method_traits
from oblivionis.erasure.exact_machine import machine_here
from oblivionis.erasure.node_key import MOMENT, PUBLIC_KEY, SIGNATURE, audit_bytes, audit_key, public_hex
from oblivionis.erasure.node_ledger import EXCHANGED, NodeLedger
from oblivionis.runs.directory import vector_hash


def enter_exchange(
    exchange: Exchange,
    vector: np.ndarray | None,
    requests: Sequence[str] = (),
    phase: str = "",
    numbers: Mapping[str, float] | None = None,
    trained: str = "",
) -> str:
    """Enter into the node's ledger what is sent: with it, and a copy of the folder, anybody can repeat the exchange.

    `vector`: the model sent back; `requests`: ids of those that were served; `phase`: of an audit, before or after the
    exchange of its request; `numbers`: what is reported of the model; `trained`: the hash of the records trained on, or
    that are left to train on. The line has hashes of the models received and sent back, of the records held and of the
    files read in addition, how many tombstones there were, and with `trained` the machine. Returns its hash, empty
    without a folder.
    """
    message, node = exchange.message, exchange.node
    if not message.has_folder:
        return ""
    line: dict[str, Any] = {
        "kind": message.kind,
        "run": message.run,
        "client": exchange.client,
        "stage": message.stage,
        "round": message.round,
    }
    if message.has_model:
        line["before"] = vector_hash(message.vector)
    if vector is not None:
        line["after"] = vector_hash(vector)
    line["tombstones"] = len(node.tombstone_lines())
    line |= exchange.basis()
    if requests:
        line["requests"] = list(requests)
    if phase:
        line["moment"] = phase
    if vector is not None and not message.masked:
        line["seed"] = exchange.run_seed
    if message.replay is not None:
        line["replay"] = message.replay
    if (exclude := message.text("exclude")) and method_traits.replays(exchange.config.unlearning.method):
        line["exclude"] = exclude  # by the same seed as finetune, whose rounds can be held again
    if exchange.turn.again:
        line["again"] = True
    if numbers is not None:
        line["numbers"] = {name: value for name, value in numbers.items() if math.isfinite(value)}
    if trained:
        line |= {"trained": trained, "machine": machine_here(exchange.config)}
    return NodeLedger(node.path).note(EXCHANGED, None, **line)


def signature_of_audit(exchange: Exchange, request: str, numbers: Mapping[str, float]) -> ConfigRecord:
    """The node's signature of the numbers of an audit, with its public key."""
    message, key = exchange.message, audit_key(exchange.node.path)
    facts = {
        "run": message.run,
        "stage": message.stage,
        "round": message.round,
        "model": vector_hash(message.vector),
    }
    body = audit_bytes(request, exchange.client, message.text(MOMENT), numbers, facts)
    return ConfigRecord({SIGNATURE: key.sign(body).hex(), PUBLIC_KEY: public_hex(key)})
