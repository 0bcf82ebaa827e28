"""Errors of a client, as replies that a server may see."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from flwr.app import Context, Error, Message

from oblivionis.client.node_message import NodeMessage
from oblivionis.client.node_policy_guard import Refused, note_refusal
from oblivionis.data.errors import DataError
from oblivionis.erasure.unlearn_messages import DemandError
from oblivionis.errors import ClientError, OblivionisError

log = logging.getLogger("flwr")

CLIENT_ERROR_CODE = 1001
LONGEST_REASON = 2000
"""Characters of an error's reason in a reply."""


def answering(handler: Callable[[NodeMessage], Message]) -> Callable[[Message, Context], Message]:
    """Flower's form of a handler, in which any exception becomes an error reply: no faulty record ends the process."""

    @functools.wraps(handler)
    def answer(message: Message, context: Context) -> Message:
        received = NodeMessage(message, context)
        try:
            return handler(received)
        except Exception as error:
            return _reply(error, received)

    return answer


def _reply(error: Exception, message: NodeMessage) -> Message:
    """The error reply to a message; a refusal is entered into the node's ledger as well."""
    expected = isinstance(error, OblivionisError | ValueError | FloatingPointError)
    if isinstance(error, Refused) and message.has_folder:
        note_refusal(message.node.path, message.kind, error, message.config)
    log.error("client %s: %s", message.partition_id, error, exc_info=not expected)
    reason = str(error) if expected else f"{type(error).__name__}: {error}"
    if message.has_own_records:
        reason = _without_content(error)
    return Message(Error(code=CLIENT_ERROR_CODE, reason=reason[:LONGEST_REASON]), reply_to=message.message)


def _without_content(error: Exception) -> str:
    """What a server may know of an error that may quote records: ids and numbers, otherwise the kind of the error."""
    if isinstance(error, ClientError | DemandError):
        return str(error)
    if isinstance(error, DataError):
        count = len(error.problems)
        problems = f" ({count} problem{'s' if count > 1 else ''})" if count else ""
        return f"its records cannot be used{problems}; the log of this node says which"
    return f"{type(error).__name__}; the log of this node says more"
