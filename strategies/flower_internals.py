"""All uses of Flower beyond its public interface; a test checks that the package has no others.

Public is what `__all__` of flwr.app, flwr.clientapp, flwr.serverapp, flwr.serverapp.strategy and flwr.simulation names.
`tests/unit/strategies/test_flower_internals.py` tests each of these, and shows what a new Flower changed.
"""

from __future__ import annotations

from flwr.app import Message
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt
from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_addition, parameters_mod
from flwr.common.secure_aggregation.secaggplus_utils import (
    pseudo_rand_gen,
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAvg
from flwr.supercore import log
from flwr.supercore.task_identity import TaskIdentity

__all__ = [
    "CLIENT_APP_RAISED",
    "NODE_UNAVAILABLE",
    "SUPERLINK_NODE_ID",
    "AggregationError",
    "NodeInfo",
    "combine_shares",
    "create_shares",
    "decrypt",
    "encrypt",
    "identify_process",
    "log",
    "make_message",
    "parameters_addition",
    "parameters_mod",
    "pseudo_rand_gen",
    "set_message_id",
    "set_sender",
    "share_keys_plaintext_concat",
    "share_keys_plaintext_separate",
    "valid_replies",
]

CLIENT_APP_RAISED: int = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
"""Flower's error code for a ClientApp that raised an exception."""
NODE_UNAVAILABLE: int = ErrorCode.NODE_UNAVAILABLE
"""Flower's error code for a node that stopped answering."""


def valid_replies(strategy: FedAvg, replies) -> list[Message]:
    """Training replies without errors; the errors are logged.

    Parameters
    ----------
    strategy : FedAvg
        Flower's, or one made from it.
    replies : iterable of Message

    Returns
    -------
    list of Message

    Raises
    ------
    InconsistentMessageReplies
        Flower's, for replies whose records do not fit together.
    """
    return strategy._check_and_log_replies(replies, is_train=True)[0]


def set_message_id(message: Message, identifier: str) -> None:
    """Set the id of a message, which a grid does when it sends it; Flower's own attribute is read-only.

    Parameters
    ----------
    message : Message
        Changed in place.
    identifier : str
    """
    message.metadata.__dict__["_message_id"] = identifier


def set_sender(message: Message, node: int) -> None:
    """Set the sender of a message, as for an error that the SuperLink makes.

    Parameters
    ----------
    message : Message
        Changed in place.
    node : int
        Node id.
    """
    message.metadata.__dict__["_src_node_id"] = node


def identify_process() -> None:
    """Give the process a made-up task: Flower creates messages only in a process that belongs to one."""
    if TaskIdentity._run_id is None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
