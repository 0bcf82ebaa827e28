"""Partition ids instead of Flower's random node ids, and sampling that is the same on every run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from logging import WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from strategies import protocol
from strategies.errors import ActorDied, NodeMapError
from strategies.passing import PassingGrid
from strategies.replies import actor_died, answers, error_text


class NodeMap:
    """Which Flower node holds which partition.

    Node ids are random; partition ids are what requests, logs and seeds refer to. One `query` message per node finds
    the partition; only a node that did not answer is asked again. Share one map between all stages of a process.

    The first `refresh` waits until `expected` nodes are connected, but no longer than `wait_s` seconds when there are
    `min_nodes`; later ones wait for `min_nodes` only, since clients come and go. `timeout_s`: how long a query may
    take. `config` goes into the query; what a node answered is kept in `answers`, by partition id.
    """

    def __init__(
        self,
        *,
        expected: int = 1,
        min_nodes: int = 1,
        wait_s: float = 3600.0,
        timeout_s: float = 300.0,
        config: Mapping[str, object] | None = None,
    ) -> None:
        self._expected, self._min_nodes, self._wait_s, self._timeout_s = expected, min_nodes, wait_s, timeout_s
        self._config = dict(config or {})
        self._partition: dict[int, int] = {}
        self._silent: set[int] = set()
        self.answers: dict[int, RecordDict] = {}

    def refresh(self, grid: Grid, *, retry: bool = False) -> dict[int, int]:
        """Partition → node id of all connected and known nodes, in partition order.

        New nodes are asked for their partition; with `retry` also those that did not answer before.
        Raises `NodeMapError` when too few nodes connect in time, when none tells its partition, or when two claim one
        at once; `ActorDied` when a simulation worker crashed.
        """
        nodes = self._wait(grid)
        new = [n for n in nodes if n not in self._partition and (retry or n not in self._silent)]
        if new:
            self._ask(grid, new)
        connected: dict[int, int] = {}
        for node in nodes:
            if node in self._partition:
                connected[self._partition[node]] = node
        return dict(sorted(connected.items()))

    def ask(self, grid: Grid, settings: Callable[[int], Mapping[str, object]]) -> dict[int, RecordDict]:
        """Ask every connected node again, each with the settings of its partition on top of `config`.

        Returns what those that answered said, which is then in `answers`, too. A node that does not answer, or claims
        another partition than before, is left out with a warning. Raises as `refresh`.
        """
        connected = self.refresh(grid, retry=True)
        configs = [ConfigRecord({**self._config, **settings(p)}) for p in connected]  # type: ignore[arg-type]
        messages = [
            Message(RecordDict({protocol.CONFIG: config}), dst_node_id=node, message_type=protocol.QUERY)
            for config, node in zip(configs, connected.values(), strict=True)
        ]
        answered: dict[int, RecordDict] = {}
        received = answers(messages, grid.send_and_receive(messages, timeout=self._timeout_s)) if messages else []
        for (partition, node), (_, answer) in zip(connected.items(), received, strict=True):
            reason, claimed = self._judged(node, answer)
            if answer is None or claimed != partition:
                reason = reason or f"it now claims partition {claimed}, not {partition}"
                log(WARNING, "client %d (node %d) was not heard: %s", partition, node, reason)
                continue
            answered[partition] = answer.content
        self.answers.update(answered)
        return answered

    def _judged(self, node: int, answer: Message | None) -> tuple[str, int | None]:
        """Why an answer to a query is none, or its partition. Raises ActorDied when a simulation worker crashed."""
        reason, partition = _partition_in(answer, self._timeout_s)
        if answer is not None and answer.has_error() and actor_died(answer):
            raise ActorDied(f"the worker process of node {node} died: {error_text(answer)}")
        return reason, partition

    def partition(self, node: int) -> int | None:
        """The partition of a node id, None if it is not known."""
        return self._partition.get(node)

    def _wait(self, grid: Grid) -> list[int]:
        deadline = time.monotonic() + self._wait_s
        wanted = max(self._expected, self._min_nodes)
        while len(nodes := list(grid.get_node_ids())) < wanted:
            if time.monotonic() >= deadline:
                told = f"{len(nodes)} of {wanted} clients connected within {self._wait_s:.0f} s"
                if len(nodes) < self._min_nodes:
                    raise NodeMapError(f"{told}; at least {self._min_nodes} are needed")
                log(WARNING, "%s; the others can join later", told)
                break
            time.sleep(min(1.0, self._wait_s))
        self._expected = self._min_nodes
        return nodes

    def _ask(self, grid: Grid, nodes: list[int]) -> None:
        content = RecordDict({protocol.CONFIG: ConfigRecord(self._config)})  # type: ignore[arg-type]
        messages = [Message(content, dst_node_id=n, message_type=protocol.QUERY) for n in nodes]
        claimed: dict[int, int] = {}
        reasons: list[str] = []
        received = answers(messages, grid.send_and_receive(messages, timeout=self._timeout_s))
        for message, answer in received:
            node = message.metadata.dst_node_id
            reason, partition = self._judged(node, answer)
            if partition is None:
                log(WARNING, "node %d is left out: %s", node, reason)
                reasons.append(reason)
                self._silent.add(node)
                continue
            if partition in claimed:
                raise NodeMapError(f"nodes {claimed[partition]} and {node} both hold partition {partition}")
            claimed[partition] = node
            self._silent.discard(node)
            if answer is not None:
                self.answers[partition] = answer.content
        for partition, node in claimed.items():
            earlier = [n for n, p in self._partition.items() if p == partition]
            for old in earlier:
                log(WARNING, "partition %d moved from node %d to node %d", partition, old, node)
                del self._partition[old]
            self._partition[node] = partition
        if not self._partition:
            raise NodeMapError(f"none of {len(nodes)} nodes could be asked for its partition: {reasons[0]}")


def _partition_in(answer: Message | None, timeout_s: float) -> tuple[str, int | None]:
    if answer is None:
        return f"no answer to the query within {timeout_s:.0f} s", None
    if answer.has_error():
        return error_text(answer), None
    if not answer.has_content():
        return "its answer to the query is empty", None
    for record in answer.content.metric_records.values():
        value = record.get(protocol.PARTITION_ID)
        if isinstance(value, int) and value >= 0:
            return "", value
    return f"its answer to the query has no {protocol.PARTITION_ID}", None


class OrderedGrid(PassingGrid):
    """A Grid that shows a strategy the eligible nodes in partition order, so that its sampling is reproducible."""

    def __init__(self, grid: Grid, nodes: NodeMap, eligible: Callable[[int], bool] | None = None) -> None:
        super().__init__(grid)
        self._nodes, self._eligible = nodes, eligible

    def get_node_ids(self) -> list[int]:
        """Node ids of the connected, known and eligible partitions, in partition order."""
        known = self._nodes.refresh(self._grid)
        return [node for partition, node in known.items() if self._eligible is None or self._eligible(partition)]


@contextmanager
def seeded(*labels: object) -> Iterator[None]:
    """Seed Python's global `random` (Flower's samplers use it) from `labels`, and put its state back afterwards."""
    saved = random.getstate()
    random.seed("/".join(map(str, labels)))
    try:
        yield
    finally:
        random.setstate(saved)
