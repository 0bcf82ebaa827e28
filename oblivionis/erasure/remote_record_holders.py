"""What the server knows of records that never leave the clients: how many each holds, as the clients report it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oblivionis.config.schema import Config
from oblivionis.data.subjects import Subjects
from oblivionis.erasure.hidden_requests import seals
from oblivionis.erasure.node_record_files import DATA_NODES
from oblivionis.runs.known_nodes import KnownNodes
from strategies import message_keys
from strategies.metric_schema import MOST
from strategies.rounds.nodes import NodeMap


def query_config(config: Config) -> dict[str, object]:
    """What a `query` says: whether the records are the clients' own, and whether their requests stay sealed."""
    sealed: dict[str, object] = {message_keys.SEALED: True} if seals(config) else {}
    if not config.data.on_clients:
        return sealed
    return {"data": "node", **sealed, **({DATA_NODES: config.data.nodes} if config.data.nodes else {})}


class RemoteHoldings:
    """Stands where `Holdings` stands when the server has the records: it counts, and knows no id and no subject."""

    subjects = Subjects(())

    def __init__(self, clients: int, nodes: NodeMap | None = None, known: KnownNodes | None = None) -> None:
        self.clients, self._nodes, self._known = clients, nodes, known

    @property
    def forget(self) -> Mapping[int, tuple[str, ...]]:
        """Nothing: which records are marked `forget` only their client knows."""
        return {}

    def foreign(self, client: int, record_ids: Sequence[str]) -> list[str]:
        """Nothing: the client itself refuses what it does not hold."""
        return []

    def count(self, client: int) -> int:
        """Records of `client` when it was asked last; 0 for one that has not answered yet."""
        return self._counted(client, message_keys.NUM_RECORDS)

    def declared(self, client: int) -> int | None:
        """Records of `client` when it was first asked in this run: no weight of its replies, and no size by
        which it is drawn, is above that.

        None for one that has not answered yet. What a client reports later may only be less.
        """
        if self._known is None:
            return self.count(client) or None
        if self._nodes is not None and self._known.records(client) is None and self.count(client):
            self._known.declare({c: count for c in self._nodes.answers if (count := self.count(c))})
        return self._known.records(client)

    def live(self, client: int, *, without_forget_split: bool) -> int:
        """How many of them it could be trained on then."""
        return self._counted(client, message_keys.LIVE_RECORDS)

    def _counted(self, client: int, key: str) -> int:
        """A count in the client's newest answer; 0 without one that makes sense."""
        answer = None if self._nodes is None else self._nodes.answers.get(client)
        for record in answer.metric_records.values() if answer is not None else ():
            value = record.get(key)
            if isinstance(value, int) and 0 <= value <= MOST:
                return value
        return 0
