"""An empty message, to see whether the client answers."""

from __future__ import annotations

from flwr.app import Message, RecordDict

from oblivionis.client.node_message import NodeMessage


def handle(message: NodeMessage) -> Message:
    """Answer with nothing; nothing is counted or written."""
    return message.reply(RecordDict())
