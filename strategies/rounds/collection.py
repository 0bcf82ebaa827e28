"""How the replies of an exchange are collected: all at once, or one by one as they come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from strategies.replies import ReplyCheck, answers
from strategies.rounds.callbacks import Listener
from strategies.rounds.reply_stream import EXCHANGE, Arrivals


class Collection(ABC):
    """Sends the messages of an exchange and collects the replies."""

    @abstractmethod
    def collect(
        self, kind: str, messages: Sequence[Message], timeout: float, enough: int | None = None
    ) -> tuple[list[tuple[int, Message | None]], list[ReplyCheck]]:
        """Send messages and wait for replies.

        Parameters
        ----------
        kind : str
            Kind of exchange, as `Listener.exchange_started` names it.
        messages : sequence of Message
        timeout : float
            Seconds.
        enough : int, optional
            How many replies to wait for; None: all.

        Returns
        -------
        received : list of (client, Message or None)
            None for a client that has failed to reply.
        late : list of ReplyCheck, by client
            Of the clients without whose replies the exchange goes on.
        """


@dataclass(frozen=True, kw_only=True)
class AllAtOnce(Collection):
    """Waits for all replies together, by Flower's `send_and_receive`; `enough` has no effect.

    Attributes
    ----------
    grid : Grid
    client_of : callable (Message) -> int
        The client that a message goes to.
    """

    grid: Grid
    client_of: Callable[[Message], int]

    def collect(
        self, kind: str, messages: Sequence[Message], timeout: float, enough: int | None = None
    ) -> tuple[list[tuple[int, Message | None]], list[ReplyCheck]]:
        """Send messages and wait for all replies; nobody is late. See `Collection.collect`."""
        received = answers(messages, self.grid.send_and_receive(messages, timeout=timeout))
        return [(self.client_of(message), reply) for message, reply in received], []


@dataclass(frozen=True, kw_only=True)
class OneByOne(Collection):
    """Takes replies in the order in which they come, by the machine's clock or a simulated one.

    Attributes
    ----------
    stream : Arrivals
        The replies, with the clock.
    listener : Listener
        Called for each reply that comes, also to an earlier exchange.
    deadline : float above 0, optional
        Seconds after which a `train` exchange goes on with the replies that have come; None: the timeout alone.
    """

    stream: Arrivals
    listener: Listener
    deadline: float | None = None

    def collect(
        self, kind: str, messages: Sequence[Message], timeout: float, enough: int | None = None
    ) -> tuple[list[tuple[int, Message | None]], list[ReplyCheck]]:
        """Send messages and wait for enough replies without an error, or until a deadline; see `Collection.collect`.

        Replies that come at the same time are taken together. A client that has not replied within the timeout has
        failed, unless there are enough replies or a shorter deadline: then it is late.
        """
        limit = min(timeout, self.deadline) if kind == "train" and self.deadline is not None else timeout
        wanted = len(messages) if enough is None else enough
        until = self.stream.now + limit
        awaited = set(self.stream.send(messages, EXCHANGE))
        received: list[tuple[int, Message | None]] = []
        good = 0
        while awaited and good < wanted and (arrived := self.stream.wait(until, EXCHANGE)):
            for sent, reply in arrived:
                if sent not in awaited:
                    self.listener.discarded(sent.client)
                    continue
                awaited.discard(sent)
                received.append((sent.client, reply))
                good += reply is not None and not reply.has_error()
            self.listener.arrived(len(received), len(messages))
        for sent in awaited:
            sent.void = True
        missing = sorted(sent.client for sent in awaited)
        if limit == timeout and good < wanted:
            return [*received, *((client, None) for client in missing)], []
        reason = f"late: {good} others had answered" if good >= wanted else f"late: no reply within {limit:g} s"
        return received, [ReplyCheck(client, None, reason, late=True) for client in missing]
