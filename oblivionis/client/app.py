"""The Flower ClientApp: the same in a simulation and on a real client machine.

In a deployment every message starts a new process. The handler of its kind is therefore imported when the message is
there: a query, by which all clients are asked each round, is answered without torch.
"""

from __future__ import annotations

import importlib

from flwr.app import Message
from flwr.clientapp import ClientApp

from oblivionis.client import handlers
from oblivionis.client.error_replies import answering
from oblivionis.client.node_message import NodeMessage
from strategies import message_keys
from strategies.secure import stage_keys

HANDLERS = {
    message_keys.QUERY: "query",
    message_keys.NUDGE: "nudge",
    message_keys.TRAIN: "train",
    message_keys.UNLEARN: "unlearn",
    message_keys.BURY: "exclude",
    message_keys.AUDIT: "audit",
    stage_keys.KEYS_TYPE: "secure_stage",
    stage_keys.SHARES_TYPE: "secure_stage",
    stage_keys.CONFIRM_TYPE: "secure_stage",
    stage_keys.UNMASK_TYPE: "secure_stage",
}
"""By kind of message the module of `oblivionis.client.handlers` that answers it."""


def handle(message: NodeMessage) -> Message:
    """The reply of the handler of the message's kind."""
    return importlib.import_module(f"{handlers.__name__}.{HANDLERS[message.kind]}").handle(message)


def _client_app() -> ClientApp:
    """Flower's app, with every kind of message in the table registered."""
    made = ClientApp()
    categories = {"train": made.train, "query": made.query, "evaluate": made.evaluate}
    for kind in HANDLERS:
        category, _, action = kind.partition(".")
        register = categories[category](action) if action else categories[category]()
        register(answering(handle))
    return made


app = _client_app()
