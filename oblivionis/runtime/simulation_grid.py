"""A Flower `Grid` whose nodes are simulated clients: a few processes, each with one message at a time."""

from __future__ import annotations

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import ERROR

from flwr.app import Context, Error, Message, RecordDict

from oblivionis.runtime.client_process import Raised
from strategies import message_keys
from strategies.errors import FederationError
from strategies.flower_internals import CLIENT_APP_RAISED, log, set_message_id
from strategies.rounds.grids import LocalGrid

_RUN = 1
_PARTITION, _PARTITIONS = "partition-id", "num-partitions"


class ClientProcessDied(FederationError):
    """The process of a simulated client died. The run ends: it goes on from its last round when it is resumed."""


class ClientProcess(ABC):
    """A process that answers messages of any client, one at a time."""

    @abstractmethod
    def answer(self, message: Message, context: Context) -> tuple[Message | Raised, Context]:
        """The reply and the client's state after it. Raises ClientProcessDied, with the reason."""

    @abstractmethod
    def ready(self) -> None:
        """Wait until it has a place to run: until then other processes get the messages. Raises ClientProcessDied."""

    @abstractmethod
    def end(self) -> None:
        """End the process at once, whatever it is doing."""


class SimulationGrid(LocalGrid):
    """`clients` nodes, whose messages `processes` answer in the order in which they were sent.

    A node's id is that of its partition, and what it keeps between messages stays here: it answers one message at a
    time, as a node of a deployment. No more than `limits` messages
    of a type are answered at once: more processes than cores pay where all take equally long, but of messages that take
    from nothing to minutes, the longest first, each is better off with a core to itself.

    A ClientApp's exception becomes an error reply, as in Flower's own simulation. ClientProcessDied, from
    `pull_messages`, ends it: the client's memory would not suffice the next time either.
    """

    def __init__(self, processes: Sequence[ClientProcess], clients: int, limits: Mapping[str, int]) -> None:
        super().__init__()
        self._clients, self._limits = clients, limits
        self._processes = processes
        self._contexts: dict[int, Context] = {}
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._waiting: deque[Message] = deque()
        self._at_work: Counter[str] = Counter()
        self._busy: set[int] = set()
        self._replies: dict[str, Message] = {}
        self._death: ClientProcessDied | None = None
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(process,), name=f"oblivionis-client-{number}", daemon=True)
            for number, process in enumerate(processes)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End all processes, at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for process in self._processes:
            process.end()
        for thread in self._threads:
            thread.join()

    def partitions(self) -> Mapping[int, int]:
        """Partition by node id."""
        return {partition + 1: partition for partition in range(self._clients)}

    def get_node_ids(self) -> Iterable[int]:
        return self.partitions().keys()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, which are worked off in this order; returns their ids."""
        sent = list(messages)
        for message in sent:
            set_message_id(message, str(next(self._numbers)))
        with self._changed:
            self._waiting.extend(sent)
            self._changed.notify_all()
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that have come to these messages. Raises ClientProcessDied."""
        with self._changed:
            if self._death is not None:
                raise self._death
            return [self._replies.pop(number) for number in message_ids if number in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and wait for the replies, at most `timeout` seconds. Raises ClientProcessDied."""
        missing, found = set(self.push_messages(messages)), list[Message]()
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while missing and (end is None or time.monotonic() < end):
                fresh = self.pull_messages(list(missing))
                found += fresh
                missing -= {message.metadata.reply_to_message_id for message in fresh}
                if missing:
                    self._changed.wait(None if end is None else max(0.0, end - time.monotonic()))
        return found

    def _work(self, process: ClientProcess) -> None:
        """Have `process` answer messages until the grid is closed."""
        try:
            process.ready()
        except ClientProcessDied as error:
            self._lost(f"a client process did not start: {error}")
            return
        while (message := self._next()) is not None:
            partition = message.metadata.dst_node_id - 1
            context = self._contexts.get(partition) or self._new_context(partition)
            try:
                reply, self._contexts[partition] = process.answer(message, context)
            except ClientProcessDied as error:
                self._lost(f"the process of client {partition} died: {error}")
                return
            except Exception as error:
                log(ERROR, "client %d", partition, exc_info=error)
                self._lost(f"the process of client {partition} is lost: {type(error).__name__}: {error}")
                return
            if isinstance(reply, Raised):
                log(ERROR, "client %d: %s\n%s", partition, reply.text, reply.trace)
                reply = Message(Error(CLIENT_APP_RAISED, reply.text), reply_to=message)
            with self._changed:
                self._at_work[message.metadata.message_type] -= 1
                self._busy.discard(message.metadata.dst_node_id)
                self._replies[message.metadata.message_id] = reply
                self._changed.notify_all()

    def _lost(self, text: str) -> None:
        with self._changed:
            self._death = self._death or ClientProcessDied(text)
            self._changed.notify_all()

    def _next(self) -> Message | None:
        """The message to answer next, None once the grid is closed or a process has died."""
        with self._changed:
            while not (self._closed or self._death):
                for place, message in enumerate(self._waiting):
                    kind, node = message.metadata.message_type, message.metadata.dst_node_id
                    if node in self._busy:
                        continue
                    if self._at_work[kind] < self._limits.get(kind, len(self._processes)):
                        del self._waiting[place]
                        self._at_work[kind] += 1
                        self._busy.add(node)
                        return message
                self._changed.wait()
        return None

    def _new_context(self, partition: int) -> Context:
        places = {_PARTITION: partition, _PARTITIONS: self._clients}
        return Context(run_id=_RUN, node_id=partition + 1, node_config={**places}, state=RecordDict(), run_config={})


@contextmanager
def simulation_grid(processes: Sequence[ClientProcess], clients: int, cores: int | None) -> Iterator[SimulationGrid]:
    """The grid while it is needed.

    cores: how many clients may unlearn at once, None for as many as there are processes.
    """
    grid = SimulationGrid(processes, clients, {} if cores is None else {message_keys.UNLEARN: cores})
    try:
        yield grid
    finally:
        grid.close()
