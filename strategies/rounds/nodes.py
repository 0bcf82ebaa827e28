"""Which Flower node is which partition, and client sampling that is reproducible."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from logging import WARNING
from typing import Protocol

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from strategies import message_keys
from strategies.errors import NodeMapError
from strategies.flower_internals import log
from strategies.replies import answers, error_text

_MOST_PARTITIONS = 2**31


class Identities(Protocol):
    """Whom a partition belongs to, by the public keys with which nodes authenticate."""

    def refusal(self, partition: int, key: bytes) -> str:
        """Why the node with this key may not be `partition`; empty if it may."""
        ...

    def bind(self, partition: int, key: bytes) -> None:
        """Bind `partition` to the node with this key."""
        ...


Roster = Callable[[], Mapping[int, int]]
"""Partition by node id, from a grid that assigns the partitions itself."""


class NodeMap:
    """Which Flower node holds which partition.

    Node ids are random; partition ids are what requests, logs and seeds refer to. One `query` message per node finds
    the partition; only a node that did not answer is asked again. Share one map between all stages of a process.
    `answers` keeps what nodes replied, by partition id; `engaged` can be set to a function that gives the node ids that
    are at work, which `ask` leaves out.

    A partition is what a node claims, so conflicting claims are not believed: with `identities` the node's key decides.
    Without, who came first keeps the partition while it is connected, and of two that claim it at once neither gets it,
    for one of them would get the other's requests.

    Parameters
    ----------
    expected, min_nodes : int
        The first `refresh` waits until `expected` nodes are connected, but no longer than `wait_s` when there are
        `min_nodes`; later ones wait for `min_nodes` only, since clients come and go.
    wait_s : float
        Seconds.
    timeout_s : float
        Seconds that a query may take.
    config : mapping, optional
        Settings that go into the query.
    partitions : int, optional
        How many there are; None: any number is accepted.
    identities : Identities, optional
    set_aside : callable (partition, node, reason), optional
        Called once for every node and claim that was refused.
    roster : callable () -> mapping of partition by node id, optional
        What a simulation knows of its nodes. Then only those with the lowest and the highest partition are asked; if
        they confirm it, it is taken for the others (which each of their replies confirms), else all are asked.
        `answers` then has the replies of those two alone.
    """

    def __init__(
        self,
        *,
        expected: int = 1,
        min_nodes: int = 1,
        wait_s: float = 3600.0,
        timeout_s: float = 300.0,
        config: Mapping[str, object] | None = None,
        partitions: int | None = None,
        identities: Identities | None = None,
        set_aside: Callable[[int, int, str], None] | None = None,
        roster: Roster | None = None,
    ) -> None:
        self._expected, self._min_nodes, self._wait_s, self._timeout_s = expected, min_nodes, wait_s, timeout_s
        self._config = dict(config or {})
        self._partition: dict[int, int] = {}
        self._node: dict[int, int] = {}
        self._roster = roster
        self._silent: set[int] = set()
        self._partitions, self._identities, self._set_aside = partitions, identities, set_aside
        self._reported: set[tuple[int, int]] = set()
        self.answers: dict[int, RecordDict] = {}
        self.engaged: Callable[[], Collection[int]] = lambda: ()

    def refresh(self, grid: Grid, *, retry: bool = False) -> dict[int, int]:
        """Find the connected nodes, and ask new ones for their partition.

        Parameters
        ----------
        grid : Grid
        retry : bool
            Also ask those that did not answer before.

        Returns
        -------
        dict of int
            Node id by partition, in partition order.

        Raises
        ------
        NodeMapError
            When too few nodes connect in time, or no node has ever reported its partition.
        """
        nodes = self._wait(grid)
        present = set(nodes)
        new = [n for n in nodes if n not in self._partition and (retry or n not in self._silent)]
        if new:
            self._ask(grid, self._enrolled(grid, new, present), present)
        connected: dict[int, int] = {}
        for node in nodes:
            if node in self._partition:
                connected[self._partition[node]] = node
        return dict(sorted(connected.items()))

    def ask(self, grid: Grid, settings: Callable[[int], Mapping[str, object]]) -> dict[int, RecordDict]:
        """Query the connected nodes again, except those that are engaged.

        Parameters
        ----------
        grid : Grid
        settings : callable (partition) -> mapping
            Settings on top of `config`.

        Returns
        -------
        dict of RecordDict
            The replies by partition, which then are in `answers`, too. A node that does not answer, or claims another
            partition than before, is left out with a warning.

        Raises
        ------
        NodeMapError
            As `refresh`.
        """
        engaged = set(self.engaged())
        connected = {p: node for p, node in self.refresh(grid, retry=True).items() if node not in engaged}
        configs = [ConfigRecord({**self._config, **settings(p)}) for p in connected]  # type: ignore[arg-type]
        messages = [
            Message(RecordDict({message_keys.CONFIG: config}), dst_node_id=node, message_type=message_keys.QUERY)
            for config, node in zip(configs, connected.values(), strict=True)
        ]
        answered: dict[int, RecordDict] = {}
        received = answers(messages, grid.send_and_receive(messages, timeout=self._timeout_s)) if messages else []
        for (partition, node), (_, answer) in zip(connected.items(), received, strict=True):
            reason, claimed = _partition_in(answer, self._timeout_s)
            if answer is None or claimed != partition:
                reason = reason or f"it now claims partition {claimed}, not {partition}"
                log(WARNING, "client %d (node %d) was not heard: %s", partition, node, reason)
                continue
            answered[partition] = answer.content
        self.answers.update(answered)
        return answered

    def partition(self, node: int) -> int | None:
        """The partition of a node id, None if it is not known."""
        return self._partition.get(node)

    def client_of(self, message: Message) -> int:
        """The partition that a message goes to, -1 for an unknown one."""
        partition = self.partition(message.metadata.dst_node_id)
        return -1 if partition is None else partition

    def _wait(self, grid: Grid) -> list[int]:
        """Wait for enough nodes, and return their ids."""
        deadline = time.monotonic() + self._wait_s
        wanted = max(self._expected, self._min_nodes)
        while len(nodes := list(grid.get_node_ids())) < wanted:
            if time.monotonic() >= deadline:
                connected = f"{len(nodes)} of {wanted} clients connected within {self._wait_s:.0f} s"
                if len(nodes) < self._min_nodes:
                    raise NodeMapError(f"{connected}; at least {self._min_nodes} are needed")
                log(WARNING, "%s; the others can join later", connected)
                break
            time.sleep(min(1.0, self._wait_s))
        self._expected = self._min_nodes
        return nodes

    def _enrolled(self, grid: Grid, new: list[int], connected: Collection[int]) -> list[int]:
        """Take over those of `new` that the roster knows; returns the others, which must be asked."""
        roster = {} if self._roster is None else self._roster()
        beyond = {n for n in new if self._partitions is not None and roster.get(n, -1) >= self._partitions}
        self._warn_of_unexpected([roster[n] for n in beyond - self._silent])
        self._silent |= beyond
        in_roster = sorted((n for n in new if n in roster and n not in beyond), key=lambda n: roster[n])
        if len(in_roster) < 3:
            return [n for n in new if n not in beyond]
        asked = [in_roster[0], in_roster[-1]]
        with suppress(NodeMapError):  # that these two are silent says nothing of the others
            self._ask(grid, asked, connected)
        if all(self._partition.get(node) == roster[node] for node in asked):
            for node in in_roster:
                if roster[node] not in self._node:
                    self._enter(roster[node], node)
        else:
            log(WARNING, "the simulation did not confirm which nodes hold which partitions: all are asked")
        return [n for n in new if n not in self._partition and n not in beyond and n not in asked]

    def _warn_of_unexpected(self, partitions: Sequence[int]) -> None:
        """Warn of nodes that claim partitions beyond the expected number."""
        if partitions:
            low, high = min(partitions), max(partitions)
            which = f"{low} to {high}" if len(partitions) > 1 else str(low)
            text = "%d nodes are left out: they claim partitions %s of %s"
            log(WARNING, text, len(partitions), which, self._partitions)

    def _ask(self, grid: Grid, nodes: list[int], connected: Collection[int]) -> None:
        """Ask nodes for their partition, and enter the claims that are accepted."""
        if not nodes:
            return
        content = RecordDict({message_keys.CONFIG: ConfigRecord(self._config)})  # type: ignore[arg-type]
        messages = [Message(content, dst_node_id=n, message_type=message_keys.QUERY) for n in nodes]
        claims: dict[int, dict[int, RecordDict]] = {}
        reasons: list[str] = []
        beyond: list[int] = []
        received = answers(messages, grid.send_and_receive(messages, timeout=self._timeout_s))
        for message, answer in received:
            node = message.metadata.dst_node_id
            reason, partition = _partition_in(answer, self._timeout_s)
            if partition is not None and self._partitions is not None and partition >= self._partitions:
                reasons.append(f"it claims partition {partition} of {self._partitions}")
                self._silent.add(node)
                beyond.append(partition)
                continue
            if partition is None or answer is None:
                log(WARNING, "node %d is left out: %s", node, reason)
                reasons.append(reason)
                self._silent.add(node)
                continue
            claims.setdefault(partition, {})[node] = answer.content
        self._warn_of_unexpected(beyond)
        keys = {info.node_id: info.public_key for info in grid.get_nodes()} if claims and self._identities else {}
        for partition, claimants in sorted(claims.items()):
            refused = self._refused(partition, list(claimants), keys, connected)
            for node, reason in refused.items():
                self._refuse(partition, node, reason)
                reasons.append(reason)
            for node in claimants.keys() - refused.keys():
                if self._identities is not None:
                    self._identities.bind(partition, keys.get(node, b""))
                self._enter(partition, node)
                self.answers[partition] = claimants[node]
        if not self._partition:
            raise NodeMapError(f"none of {len(nodes)} nodes could be asked for its partition: {reasons[0]}")

    def _refused(
        self, partition: int, nodes: Sequence[int], keys: Mapping[int, bytes], connected: Collection[int]
    ) -> dict[int, str]:
        """Why each of `nodes`, which all claim `partition`, does not get it; at most one of them gets it."""
        if self._identities is not None:
            why = {n: self._identities.refusal(partition, keys.get(n, b"")) for n in nodes}
            refused = {n: reason for n, reason in why.items() if reason}
            nodes = [n for n in nodes if n not in refused]
        else:
            refused = {}
        holder = self._node.get(partition)
        if holder is not None and holder in connected:
            return refused | {n: f"node {holder} is client {partition} already" for n in nodes if n != holder}
        if len(nodes) > 1:
            return refused | {
                n: f"nodes {', '.join(map(str, nodes))} all claim to be client {partition}" for n in nodes
            }
        return refused

    def _refuse(self, partition: int, node: int, reason: str) -> None:
        """Set a node aside, with one warning for each claim."""
        self._silent.add(node)
        if (partition, node) not in self._reported:
            self._reported.add((partition, node))
            log(WARNING, "node %d is set aside, it is not client %d: %s", node, partition, reason)
            if self._set_aside is not None:
                self._set_aside(partition, node, reason)

    def _enter(self, partition: int, node: int) -> None:
        """Enter that `node` holds `partition`."""
        self._silent.discard(node)
        old = self._node.get(partition)
        if old is not None and old != node:
            log(WARNING, "partition %d moved from node %d to node %d", partition, old, node)
            del self._partition[old]
        self._partition[node], self._node[partition] = partition, node


def _partition_in(answer: Message | None, timeout_s: float) -> tuple[str, int | None]:
    """What is wrong with a reply to the query (empty if nothing), and the partition in it."""
    if answer is None:
        return f"no answer to the query within {timeout_s:.0f} s", None
    if answer.has_error():
        return error_text(answer), None
    if not answer.has_content():
        return "its answer to the query is empty", None
    for record in answer.content.metric_records.values():
        value = record.get(message_keys.PARTITION_ID)
        if isinstance(value, int) and 0 <= value < _MOST_PARTITIONS:
            return "", value
    return f"its answer to the query has no {message_keys.PARTITION_ID}", None


@contextmanager
def seeded(*labels: object) -> Iterator[None]:
    """Context in which Python's global `random` (Flower's samplers use it) is seeded; its state is restored after.

    Parameters
    ----------
    *labels : object
        Their texts determine the seed.
    """
    saved = random.getstate()
    random.seed("/".join(map(str, labels)))
    try:
        yield
    finally:
        random.setstate(saved)
