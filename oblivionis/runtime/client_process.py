"""What runs in a simulated client's process: Flower's ClientApp on the messages that come."""

from __future__ import annotations

import importlib
import traceback
from dataclasses import dataclass

from flwr.app import Context, Message

from oblivionis.runtime.transfer import Channel

_simulated = False


def simulated() -> bool:
    """Whether this process is a simulated client's."""
    return _simulated


@dataclass(frozen=True)
class Raised:
    """The ClientApp raised an exception: its text, and the stack trace for the log."""

    text: str
    trace: str


def serve(channel: Channel) -> None:
    """Answer messages until nobody is left to send any; the ClientApp comes first, as for `ClientAppHost`."""
    host = ClientAppHost(channel.receive())
    while True:
        channel.send(host.answer(*channel.receive()))


class ClientAppHost:
    """A ClientApp, given as "module:name", in a process of its own; Ray makes an actor of it."""

    def __init__(self, app: str) -> None:
        global _simulated
        _simulated = True
        module, _, name = app.partition(":")
        self._app = getattr(importlib.import_module(module), name)

    def answer(self, message: Message, context: Context) -> tuple[Message | Raised, Context]:
        """The reply and the client's state after it, or what was raised."""
        try:
            return self._app(message, context), context
        except Exception as error:
            return Raised(f"{type(error).__name__}: {error}", traceback.format_exc()), context
