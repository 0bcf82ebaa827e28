"""An in-memory federation: a Flower Grid whose nodes are Python functions, for tests and measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count

from flwr.app import Error, Message, MetricRecord, RecordDict

from strategies import message_keys
from strategies.flower_internals import SUPERLINK_NODE_ID, set_message_id, set_sender
from strategies.rounds.grids import LocalGrid

Node = Callable[[Message], RecordDict | Error | None]
"""Answers a message with content or an error; None: no answer before the timeout."""


class MemoryGrid(LocalGrid):
    """A Grid that answers messages one by one, at once, in this process.

    The grid answers `query` messages itself. Error replies come from node 1, as Flower's own do. `sent` counts messages
    by type; `log` keeps (message type, partition, content) with `keep_log`.

    Parameters
    ----------
    nodes : mapping of int to function
        Nodes by partition id.
    node_ids : mapping of int to int, optional
        Flower's ids of the partitions; default: partition + 1000.
    order : callable (list of Message) -> list of Message, optional
        Rearranges the replies.
    keep_log : bool
    """

    def __init__(
        self,
        nodes: Mapping[int, Node],
        *,
        node_ids: Mapping[int, int] | None = None,
        order: Callable[[list[Message]], list[Message]] | None = None,
        keep_log: bool = False,
    ) -> None:
        super().__init__()
        self.nodes = dict(nodes)
        self.node_ids = dict(node_ids) if node_ids is not None else {p: p + 1000 for p in nodes}
        self._by_node: dict[int, int] = {}
        self.sent: Counter[str] = Counter()
        self.log: list[tuple[str, int, RecordDict]] = []
        self._order = order
        self._keep_log = keep_log
        self._ids = count(1)
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return [self.node_ids[partition] for partition in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        if not isinstance(messages, list):
            raise TypeError("messages must be a list: a deployed Flower refuses generators")
        pushed = []
        for message in messages:
            message_id = f"message-{next(self._ids)}"
            set_message_id(message, message_id)
            pushed.append(message_id)
            answer = self._deliver(message)
            if answer is not None:
                reply = Message(answer, reply_to=message)
                if isinstance(answer, Error):
                    set_sender(reply, SUPERLINK_NODE_ID)
                self._replies[message_id] = reply
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = self.pull_messages(self.push_messages(messages))  # type: ignore[arg-type]
        return self._order(replies) if self._order else replies

    def _partition(self, node: int) -> int | None:
        """The partition of a node id; tests may change `node_ids` at any time."""
        partition = self._by_node.get(node)
        if partition is None or self.node_ids.get(partition) != node:
            self._by_node = {n: p for p, n in self.node_ids.items()}
            partition = self._by_node.get(node)
        return partition

    def _deliver(self, message: Message) -> RecordDict | Error | None:
        """The answer of a node to a message."""
        kind = message.metadata.message_type
        self.sent[kind] += 1
        partition = self._partition(message.metadata.dst_node_id)
        if partition is None or partition not in self.nodes:
            return Error(code=5, reason="node unavailable")
        if self._keep_log:
            self.log.append((kind, partition, message.content))
        if kind == message_keys.QUERY:
            return RecordDict({message_keys.METRICS: MetricRecord({message_keys.PARTITION_ID: partition})})
        return self.nodes[partition](message)
