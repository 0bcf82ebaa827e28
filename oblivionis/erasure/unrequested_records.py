"""Which records of the forget split nobody has asked to delete yet, kept up round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import REJECTED


class OpenRecords:
    """Asked once per round: a round costs what the requests of the round before name, not what all have named so far.

    `forget`: the records of the forget split by client.
    """

    def __init__(self, ledger: Ledger, forget: Mapping[int, Sequence[str]]) -> None:
        self._ledger, self._forget = ledger, forget
        self._begin()

    def before(self, server_round: int) -> tuple[Set[str], Mapping[int, Sequence[str]]]:
        """What requests of the rounds before `round` name, and what is open of each client's records then."""
        if server_round < self._until or self._ledger.rejections != self._rejections:
            self._begin()
        for past in [n for n in self._ledger.rounds if self._until <= n < server_round]:
            for request in self._ledger.submitted_for(past):
                if request.state != REJECTED:
                    self._close(request.client, request.record_ids)
        self._until = server_round
        return self._asked, self._open

    def _begin(self) -> None:
        self._asked: set[str] = set()
        self._open: dict[int, Sequence[str]] = {client: list(ids) for client, ids in self._forget.items()}
        self._until, self._rejections = 0, self._ledger.rejections

    def _close(self, client: int, record_ids: Sequence[str]) -> None:
        new = set(record_ids) - self._asked
        self._asked |= new
        if new and client in self._open:
            self._open[client] = [i for i in self._open[client] if i not in new]
