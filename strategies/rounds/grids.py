"""Flower grids of our own: a base for those that deliver messages themselves, and those around another one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from strategies import message_keys
from strategies.flower_internals import (
    NODE_UNAVAILABLE,
    SUPERLINK_NODE_ID,
    NodeInfo,
    identify_process,
    set_message_id,
    set_sender,
)
from strategies.rounds.nodes import NodeMap


class LocalGrid(Grid):
    """A Grid that delivers messages itself, without a run of Flower's."""

    def __init__(self) -> None:
        identify_process()

    def set_run(self, run) -> None:
        """Ignored: there is no run."""

    @property
    def run(self):
        raise NotImplementedError(f"a {type(self).__name__} has no run")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node) for node in self.get_node_ids()]


class PassingGrid(Grid):
    """Forwards every call to `grid`."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run) -> None:
        self._grid.set_run(run)

    @property
    def run(self):
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self._grid.send_and_receive(list(messages), timeout=timeout)


class OrderedGrid(PassingGrid):
    """A Grid that shows a strategy the eligible nodes in partition order, so that its sampling is reproducible.

    Parameters
    ----------
    grid : Grid
    nodes : NodeMap
    eligible : callable (partition) -> bool, optional
        None: all.
    """

    def __init__(self, grid: Grid, nodes: NodeMap, eligible: Callable[[int], bool] | None = None) -> None:
        super().__init__(grid)
        self._nodes, self._eligible = nodes, eligible
        self._held: dict[int, int] | None = None

    @contextmanager
    def held(self, hold: bool = True) -> Iterator[None]:
        """Context in which the list of nodes is frozen, unless `hold` is False."""
        self._held = self.partitions() if hold else None
        try:
            yield
        finally:
            self._held = None

    def get_node_ids(self) -> list[int]:
        """Node ids of the connected, known and eligible partitions, in partition order."""
        return list(self.partitions().values())

    def partitions(self) -> dict[int, int]:
        """Node id by partition of the eligible nodes, in partition order."""
        if self._held is not None:
            return self._held
        connected = self._nodes.refresh(self._grid)
        return {p: node for p, node in connected.items() if self._eligible is None or self._eligible(p)}


class ChurningGrid(PassingGrid):
    """Forwards everything to `grid`, except for nodes that are away.

    With the first message of each round of a stage, `share` of the connected nodes (rounded, sampled by seed, stage and
    round in the order of node ids) go away, and those of the round before return. Of the messages to nodes that are
    away, about one half are never sent; the others are delivered and answered, but the reply is lost. Either way the
    sender gets Flower's error for an unavailable node. Nodes that are away are not listed.

    Parameters
    ----------
    grid : Grid
    share : float in [0, 1)
    seed : int

    Raises
    ------
    ValueError
        If `share` is out of range.
    """

    def __init__(self, grid: Grid, share: float, seed: int) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"share is {share}, expected 0 <= share < 1")
        super().__init__(grid)
        self._share, self._seed = share, seed
        self._current_round: tuple[object, object] | None = None
        self._away: frozenset[int] = frozenset()
        self._lost: dict[str, Message] = {}
        self._unsent: set[str] = set()
        self._numbers = itertools.count(1)

    def get_node_ids(self) -> list[int]:
        """Ids of the nodes that are present."""
        return [node for node in self._grid.get_node_ids() if node not in self._away]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; returns their ids, also of those that get lost."""
        messages = list(messages)
        for message in messages:
            self._pass_time(message)
        lost = [m for m in messages if m.metadata.dst_node_id in self._away]
        never = {id(m) for m in lost if self._random("never", m.metadata.dst_node_id).random() < 0.5}
        sent = [m for m in messages if id(m) not in never]
        ids = dict(zip(map(id, sent), self._grid.push_messages(sent), strict=True)) if sent else {}
        for message in lost:
            identifier = ids.setdefault(id(message), f"lost-{next(self._numbers)}")
            set_message_id(message, identifier)
            self._lost[identifier] = message
            if id(message) in never:
                self._unsent.add(identifier)
        return [ids[id(message)] for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that have come, with errors in place of lost ones."""
        awaited = list(message_ids)
        unsent = [i for i in awaited if i in self._unsent]
        delivered = [i for i in awaited if i not in self._unsent]
        replies = list(self._grid.pull_messages(delivered)) if delivered else []
        answers = [m for m in replies if m.metadata.reply_to_message_id not in self._lost]
        failed = unsent + [i for m in replies if (i := m.metadata.reply_to_message_id) in self._lost]
        for identifier in failed:
            self._unsent.discard(identifier)
            error = Message(Error(NODE_UNAVAILABLE, "Node unavailable"), reply_to=self._lost.pop(identifier))
            set_sender(error, SUPERLINK_NODE_ID)
            answers.append(error)
        return answers

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Not available: wrap this grid in one that waits for replies."""
        raise NotImplementedError("wrap a ChurningGrid in a grid that waits for answers")

    def _pass_time(self, message: Message) -> None:
        """With the first message of a round, sample the nodes that are away in it."""
        config = message.content.config_records.get(message_keys.CONFIG, {})
        stage_and_round = config.get(message_keys.STAGE), config.get(message_keys.SERVER_ROUND)
        if None not in stage_and_round and stage_and_round != self._current_round:
            self._current_round = stage_and_round
            nodes = sorted(self._grid.get_node_ids())
            self._away = frozenset(self._random("away").sample(nodes, round(self._share * len(nodes))))

    def _random(self, *labels: object) -> random.Random:
        """A random generator that seed, stage, round and labels determine."""
        return random.Random("/".join(map(str, (self._seed, "churn", self._current_round, *labels))))
