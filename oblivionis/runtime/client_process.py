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

    @classmethod
    def of(cls, error: BaseException, where: str = "") -> Raised:
        """From within the handler of `error`."""
        return cls(f"{where}{type(error).__name__}: {error}", traceback.format_exc())


def serve(channel: Channel) -> None:
    """Answer messages until nobody is left to send any; the ClientApp comes first, as for `ClientAppHost`.

    Where the ClientApp cannot be loaded, or what it gives not be sent, the answer is what was raised, without a state.
    """
    app, broken = channel.receive(), None
    try:
        host = ClientAppHost(app)
    except (Exception, SystemExit) as error:
        broken = Raised.of(error, f"the ClientApp {app} cannot be loaded: ")
    while True:
        asked = channel.receive()
        try:
            channel.send(broken or host.answer(*asked))
        except ConnectionError:
            raise
        except Exception as error:
            channel.send(Raised.of(error, "what the ClientApp gives cannot be sent: "))


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
            reply = self._app(message, context)
            if not isinstance(reply, Message):
                raise TypeError(f"the ClientApp returned {type(reply).__name__}, expected a Message")
            return reply, context
        except Exception as error:
            return Raised.of(error), context
