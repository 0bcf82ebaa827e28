"""A stream of replies in the order in which they come, by the machine's clock or a simulated one."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from strategies import message_keys
from strategies.replies import answers
from strategies.rounds.simulated_durations import Durations
from strategies.stateful import Stateful

EXCHANGE, FLIGHT = "exchange", "flight"
"""Groups of messages: of an exchange that waits for its replies, and of asynchronous training."""
_GROUPS = (EXCHANGE, FLIGHT)
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.5
_POLLING_SHARE = 0.02

Who = Callable[[Message], int]
"""The client that a message goes to."""


class Pauses:
    """Polling interval that keeps the time spent on polling at about two percent.

    It follows the shortest poll so far, since a longer one waited for the processor, which clients keep busy in a
    simulation, or fetched replies.
    """

    def __init__(self) -> None:
        self._cost = math.inf

    def after(self, cost: float) -> float:
        """Seconds to wait after a poll that took `cost` seconds, from 0.005 to 0.5."""
        self._cost = min(self._cost, cost)
        return min(max(self._cost / _POLLING_SHARE, _SHORTEST_PAUSE), _LONGEST_PAUSE)


@dataclass(slots=True, eq=False)
class Sent:
    """A message that was sent and whose reply is awaited.

    Attributes
    ----------
    client : int
    group : str
        `EXCHANGE` or `FLIGHT`.
    message : Message or None
        None where only the time is left of it after a resume.
    since, due : float
        Seconds on the clock at which it was sent and at which its reply comes; the latter is known beforehand on a
        simulated clock alone, else infinite.
    void : bool
        The reply is to be discarded.
    """

    client: int
    group: str
    message: Message | None
    since: float
    due: float = math.inf
    void: bool = False


Arrived = tuple[Sent, Message | None]
"""A sent message with its reply, None where none came."""


class Arrivals(Stateful, ABC):
    """Sends messages, and hands out replies as they come. The machine's clock has no state."""

    @property
    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    def send(self, messages: Sequence[Message], group: str, due: Sequence[float] | None = None) -> list[Sent]:
        """Send messages.

        Parameters
        ----------
        messages : sequence of Message
        group : str
            `EXCHANGE` or `FLIGHT`.
        due : sequence of float, optional
            When the replies come, for messages that a resumed run sends again; a real clock ignores it.

        Returns
        -------
        list of Sent
            In the order of `messages`.
        """

    @abstractmethod
    def wait(self, until: float, group: str, most: int | None = None) -> list[Arrived]:
        """Wait for the next replies of a group, void ones included.

        Parameters
        ----------
        until : float
            Time on the clock at which to give up.
        group : str
        most : int, optional
            At most so many; the others follow with the next call.

        Returns
        -------
        list of (Sent, Message or None)
            All that have come at the next time at which any does, ordered by time and client. Empty where nothing is
            under way, or nothing comes by `until`, which a simulated clock then shows.
        """

    @abstractmethod
    def forget(self, sent: Sent) -> None:
        """Stop waiting for a reply; if it still comes it is discarded unseen."""

    @abstractmethod
    def underway(self, group: str) -> list[Sent]:
        """Messages of a group whose replies have not come."""

    def engaged(self) -> Collection[int]:
        """Node ids of clients that are at work, so that a query to them would have to wait."""
        return ()


class RealArrivals(Arrivals):
    """Reply stream by the machine's clock, which starts at 0 when the object is made.

    A lost message (the node restarted, the SuperLink refused it) is one whose reply never comes; a void one counts as
    under way for `patience` seconds.

    Parameters
    ----------
    grid : Grid
    who : callable (Message) -> int
        The client that a message goes to.
    patience : float
        Seconds.
    """

    def __init__(self, grid: Grid, who: Who, *, patience: float) -> None:
        self._grid, self._who, self._patience = grid, who, patience
        self._began = time.monotonic()
        self._open: dict[str, Sent] = {}
        self._unsent: list[Sent] = []
        self._forgotten: set[str] = set()
        self._came: list[Arrived] = []
        self._pauses = Pauses()
        self._pause = _SHORTEST_PAUSE

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def send(self, messages: Sequence[Message], group: str, due: Sequence[float] | None = None) -> list[Sent]:
        self._pauses = Pauses()
        sent = [Sent(self._who(message), group, message, self.now) for message in messages]
        ids = list(self._grid.push_messages(list(messages))) if messages else []
        ids += [None] * (len(sent) - len(ids))  # Flower returns none at all for too large messages
        for one, identifier in zip(sent, ids, strict=True):
            if identifier is None:
                self._unsent.append(one)
            else:
                self._open[identifier] = one
        return sent

    def wait(self, until: float, group: str, most: int | None = None) -> list[Arrived]:
        while True:
            self._poll()
            ready = [arrived for arrived in self._came if arrived[0].group == group]
            if ready:
                ready = sorted(ready, key=lambda arrived: arrived[0].client)[:most]
                self._came = [arrived for arrived in self._came if arrived not in ready]
                return ready
            if not self.underway(group) or (left := until - self.now) <= 0:
                return []
            time.sleep(min(self._pause, left))

    def forget(self, sent: Sent) -> None:
        self._unsent = [one for one in self._unsent if one is not sent]
        self._came = [arrived for arrived in self._came if arrived[0] is not sent]
        for identifier in [i for i, one in self._open.items() if one is sent]:
            del self._open[identifier]
            self._forgotten.add(identifier)

    def underway(self, group: str) -> list[Sent]:
        return [one for one in (*self._open.values(), *self._unsent) if one.group == group]

    def engaged(self) -> Collection[int]:
        return {one.message.metadata.dst_node_id for one in self._open.values() if one.message is not None}

    def _poll(self) -> None:
        """Fetch the replies that have come, and give up void messages that are older than `patience`."""
        for one in [one for one in self._open.values() if one.void and self.now - one.since > self._patience]:
            self.forget(one)
        if not self._open:
            return
        asked = time.monotonic()
        for reply in self._grid.pull_messages([*self._open, *self._forgotten]):
            about = reply.metadata.reply_to_message_id
            self._forgotten.discard(about)
            if (one := self._open.pop(about, None)) is not None and one.message is not None:
                self._came.append((one, answers([one.message], [reply])[0][1]))
        self._pause = self._pauses.after(time.monotonic() - asked)


class SimulatedArrivals(Arrivals):
    """Reply stream by a simulated clock: the order of replies is the same on every run and machine.

    What the clients compute is real and runs in parallel as far as the machine allows; each reply is waited for when
    its simulated time comes, unless it is void. A client does one thing at a time: a message to a busy client starts
    when the earlier work is done, also where nobody waits for that reply any more.

    Parameters
    ----------
    grid : Grid
    who : callable (Message) -> int
        The client that a message goes to.
    durations : Durations
        How long replies take.
    patience : float
        Most seconds of real time to wait for a reply.
    """

    def __init__(self, grid: Grid, who: Who, durations: Durations, *, patience: float) -> None:
        self._grid, self._who, self._durations, self._patience = grid, who, durations, patience
        self._now = 0.0
        self._open: list[Sent] = []
        self._forgotten: set[str] = set()

    @property
    def now(self) -> float:
        return self._now

    def send(self, messages: Sequence[Message], group: str, due: Sequence[float] | None = None) -> list[Sent]:
        if messages:
            self._grid.push_messages(list(messages))
        for number, message in enumerate(messages):
            client = self._who(message)
            when = self._finish(client, message) if due is None else due[number]
            self._open.append(Sent(client, group, message, self._now, when))
        return self._open[len(self._open) - len(messages) :]

    def wait(self, until: float, group: str, most: int | None = None) -> list[Arrived]:
        underway = self.underway(group)
        if not underway:
            return []
        next_time = max(self._now, min(one.due for one in underway))
        if next_time > max(self._now, until):
            self._now = max(self._now, until)
            return []
        self._now = next_time
        ready = sorted((one for one in underway if one.due <= next_time), key=lambda one: (one.due, one.client))[:most]
        self._open = [one for one in self._open if one not in ready]
        replies = self._replies([one.message for one in ready if one.message is not None and not one.void])
        for one in ready:
            if one.void and one.message is not None:
                self._forgotten.add(one.message.metadata.message_id)
        return [(one, replies.get(id(one.message))) for one in ready]

    def forget(self, sent: Sent) -> None:
        self._open = [one for one in self._open if one is not sent]
        if sent.message is not None:
            self._forgotten.add(sent.message.metadata.message_id)

    def underway(self, group: str) -> list[Sent]:
        return [one for one in self._open if one.group == group]

    def state_dict(self) -> dict[str, NDArray]:
        """The time, and the void messages still under way.

        Returns
        -------
        dict
            `now` (1,) and `void` (n, 3): client, group number and due time; float64.
        """
        void = [(one.client, _GROUPS.index(one.group), one.due) for one in self._open if one.void]
        return {"now": np.array([self._now]), "void": np.array(void, dtype=np.float64).reshape(-1, 3)}

    def load_state_dict(self, state: Mapping[str, NDArray]) -> None:
        """Restore a `state_dict`; an empty one means the start."""
        self._now = float(state["now"][0]) if state else 0.0
        rows = state["void"].tolist() if state else []
        self._open = [Sent(int(c), _GROUPS[int(g)], None, self._now, due, void=True) for c, g, due in rows]

    def _finish(self, client: int, message: Message) -> float:
        """Time at which a client replies to a message, after the work that it is still doing."""
        config = message.content.config_records.get(message_keys.CONFIG, {})
        stage, server_round = str(config.get(message_keys.STAGE, "")), int(config.get(message_keys.SERVER_ROUND, 0))  # type: ignore[arg-type]
        free = max((one.due for one in self._open if one.client == client), default=self._now)
        seconds = self._durations.seconds(stage, message.metadata.message_type, client, server_round)
        return max(free, self._now) + seconds

    def _replies(self, messages: Sequence[Message]) -> dict[int, Message | None]:
        """The replies to `messages`, by the identity of these; waits for `patience` seconds of real time."""
        missing = {message.metadata.message_id for message in messages}
        received: list[Message] = []
        deadline = time.monotonic() + self._patience
        pauses = Pauses()
        while missing:
            asked = time.monotonic()
            for reply in self._grid.pull_messages([*missing, *self._forgotten]):
                about = reply.metadata.reply_to_message_id
                self._forgotten.discard(about)
                if about in missing:
                    missing.discard(about)
                    received.append(reply)
            if not missing or time.monotonic() >= deadline:
                break
            time.sleep(pauses.after(time.monotonic() - asked))
        self._forgotten |= missing
        return {id(message): reply for message, reply in answers(messages, received)}


def arriving(
    grid: Grid, who: Who, patience: float, durations: Durations | None, state: Mapping[str, NDArray]
) -> Arrivals:
    """Make the reply stream of a run.

    Parameters
    ----------
    grid : Grid
    who : callable (Message) -> int
        The client that a message goes to.
    patience : float
        Seconds of real time to wait for a reply.
    durations : Durations or None
        None: the machine's clock; else a simulated one.
    state : mapping
        `state_dict` of a simulated clock; empty: from the start.

    Returns
    -------
    Arrivals
    """
    if durations is None:
        return RealArrivals(grid, who, patience=patience)
    arrivals = SimulatedArrivals(grid, who, durations, patience=patience)
    arrivals.load_state_dict(state)
    return arrivals
