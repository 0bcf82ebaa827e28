"""Secure aggregation: the stages in which nothing is trained."""

from __future__ import annotations

from flwr.app import Message

from oblivionis.client.node_message import NodeMessage
from strategies.secure import stage_keys
from strategies.secure.client import Participant

_STAGES = {
    stage_keys.KEYS_TYPE: Participant.keys,
    stage_keys.SHARES_TYPE: Participant.shares,
    stage_keys.CONFIRM_TYPE: Participant.confirm,
    stage_keys.UNMASK_TYPE: Participant.unmask,
}
"""By kind of message what the client does; between shares and confirmation lies the training exchange itself."""


def handle(message: NodeMessage) -> Message:
    """Take the client's part in one stage: make keys, share secrets, confirm the survivors or release shares."""
    return message.stage_reply(_STAGES[message.kind](message.participant, message.stage_record))
