"""Submodels: what a client receives in place of the global model, and how its reply becomes a full model again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from strategies.replies import LONGEST_REASON, ReplyCheck
from strategies.untrusted_text import clean


class Submodel(Protocol):
    """One client's form of the global model, for one exchange."""

    @property
    def sent(self) -> ArrayRecord:
        """What the client receives; its reply has the same names, shapes and dtypes."""
        ...

    @property
    def settings(self) -> Mapping[str, str | int]:
        """Entries of the message to this client that differ from those to others."""
        ...

    def joined(self, answer: ArrayRecord) -> ArrayRecord:
        """The client's model in the form that the server works on: the global model's, or a shard's (`Shards`).

        Parameters
        ----------
        answer : ArrayRecord
            The client's reply; of `sent` itself the result is exactly the model that the server works on.

        Returns
        -------
        ArrayRecord

        Raises
        ------
        ValueError
            If the result is not finite.
        """
        ...


Fitting = Callable[[str, ArrayRecord], Callable[[int], Submodel | None]]
"""(Kind of exchange, as `Listener.exchange_started` names it, global model) → (client) → its submodel, None where it
gets the global model itself."""


def fitted_messages(
    messages: Sequence[Message],
    clients: Sequence[int],
    fitted: Mapping[int, Submodel],
    arrays_key: str,
    config_key: str,
) -> list[Message]:
    """Put each client's submodel and settings into its message.

    Parameters
    ----------
    messages : sequence of Message
    clients : sequence of int
        The clients that they go to.
    fitted : mapping of client to Submodel
        Messages of other clients stay as they are.
    arrays_key, config_key : str

    Returns
    -------
    list of Message
    """
    return [
        message if client not in fitted else _fitted_message(message, fitted[client], arrays_key, config_key)
        for message, client in zip(messages, clients, strict=True)
    ]


def read_answers(
    received: Iterable[tuple[int, Message | None]],
    sent: Callable[[int], ArrayRecord],
    read: Callable[[ArrayRecord, ArrayRecord], ArrayRecord],
    arrays_key: str,
) -> dict[int, str]:
    """Decode compressed replies in place.

    Parameters
    ----------
    received : iterable of (client, Message or None)
    sent : callable (client) -> ArrayRecord
        What a client received.
    read : callable (sent, reply) -> ArrayRecord
        Decodes a model.
    arrays_key : str

    Returns
    -------
    dict of str
        By client, what is wrong with a reply that cannot be read.
    """
    faults = {}
    for client, answer in received:
        if answer is None or answer.has_error() or arrays_key not in answer.content.array_records:
            continue
        try:
            answer.content[arrays_key] = read(sent(client), answer.content.array_records[arrays_key])
        except (ValueError, OverflowError, MemoryError) as error:
            faults[client] = clean(f"its update cannot be read: {error}", LONGEST_REASON)
    return faults


def join(verdicts: Sequence[ReplyCheck], fitted: Mapping[int, Submodel], arrays_key: str) -> list[ReplyCheck]:
    """Turn the submodels in valid replies into full models, in place.

    Parameters
    ----------
    verdicts : sequence of ReplyCheck
    fitted : mapping of client to Submodel
    arrays_key : str

    Returns
    -------
    list of ReplyCheck
        With a reason in place of a reply that cannot be joined.
    """
    joined = []
    for verdict in verdicts:
        own = fitted.get(verdict.partition)
        if verdict.reply is None or own is None:
            joined.append(verdict)
            continue
        content = verdict.reply.content
        try:
            content[arrays_key] = own.joined(content.array_records[arrays_key])
            joined.append(verdict)
        except ValueError as error:
            joined.append(replace(verdict, reply=None, reason=str(error)))
    return joined


def _fitted_message(message: Message, own: Submodel, arrays_key: str, config_key: str) -> Message:
    """The message to one client, with its submodel and settings."""
    config = ConfigRecord({**message.content.config_records[config_key], **own.settings})
    content = RecordDict({**message.content, arrays_key: own.sent, config_key: config})
    return Message(content, dst_node_id=message.metadata.dst_node_id, message_type=message.metadata.message_type)
