"""What a client receives where that is not the global model as it is, and how its answer becomes one of that model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from strategies.replies import LONGEST_REASON, ReplyCheck
from strategies.untrusted_text import clean


class Submodel(Protocol):
    """The global model in the form of one client, for the time of one exchange."""

    @property
    def sent(self) -> ArrayRecord:
        """What the client receives. Its answer holds the same names, shapes and dtypes."""
        ...

    @property
    def settings(self) -> Mapping[str, str | int]:
        """What its message says besides, in place of what it says to the others."""
        ...

    def joined(self, answer: ArrayRecord) -> ArrayRecord:
        """The client's model as one in the form of the global model; of what was `sent` exactly the global model."""
        ...


Fitting = Callable[[str, ArrayRecord], Callable[[int], Submodel | None]]
"""(Kind of exchange, as `Listener.exchange_started` names it, global model) → client → the model in that client's form,
None where it gets the global model itself."""


def fitted_messages(
    messages: Sequence[Message],
    clients: Sequence[int],
    fitted: Mapping[int, Submodel],
    arrays_key: str,
    config_key: str,
) -> list[Message]:
    """The messages, each with the model and the settings of its client; those of all others as they are."""
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
    """Put the models that compressed answers stand for in their place; what is wrong with the others, by client.

    `received`: clients and their answers; `sent`: what a client received; `read`: (that, its answer) → its model.
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
    """The verdicts with the good answers as models in the global form; their replies are changed in place."""
    found = []
    for verdict in verdicts:
        own = fitted.get(verdict.partition)
        if verdict.reply is None or own is None:
            found.append(verdict)
            continue
        content = verdict.reply.content
        try:
            content[arrays_key] = own.joined(content.array_records[arrays_key])
            found.append(verdict)
        except ValueError as error:
            found.append(replace(verdict, reply=None, reason=str(error)))
    return found


def _fitted_message(message: Message, own: Submodel, arrays_key: str, config_key: str) -> Message:
    config = ConfigRecord({**message.content.config_records[config_key], **own.settings})
    content = RecordDict({**message.content, arrays_key: own.sent, config_key: config})
    return Message(content, dst_node_id=message.metadata.dst_node_id, message_type=message.metadata.message_type)
