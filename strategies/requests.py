"""What FedTU needs to know about deletion requests, and where it gets them from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from strategies import protocol

SCOPES = (protocol.SCOPE_RECORDS, protocol.SCOPE_CLIENT, protocol.SCOPE_SUBJECT)


@dataclass(frozen=True, slots=True)
class UnlearnRequest:
    """One client's demand to forget records.

    `node` is the client's partition id. `num_records` weights the reply when several clients answer in one round; it is
    the number of `record_ids` unless given. `scope` is one of `SCOPES`; a client that leaves need not have its records
    named.
    """

    request_id: str
    node: int
    record_ids: tuple[str, ...]
    num_records: int = 0
    scope: str = protocol.SCOPE_RECORDS

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise ValueError(f"request {self.request_id!r} has the scope {self.scope!r}, expected one of {SCOPES}")
        if self.num_records == 0:
            object.__setattr__(self, "num_records", len(self.record_ids))
        if self.num_records < 1:
            raise ValueError(f"request {self.request_id!r} names no record")


class RequestSource(Protocol):
    """Where FedTU takes requests from and to whom it reports what became of them."""

    def pending(self, round: int) -> Sequence[UnlearnRequest]:
        """The requests to serve in `round`; asked once per round."""
        ...

    def served(self, request: UnlearnRequest, round: int, info: Mapping[str, float]) -> None:
        """The client's model became part of the global model; `info` holds the metrics of its reply."""
        ...

    def failed(self, request: UnlearnRequest, round: int, reason: str) -> None:
        """The request stays pending; count the attempt."""
        ...


class RequestList:
    """Requests in memory: each is due from its round on until it is served."""

    def __init__(self, due: Iterable[tuple[int, UnlearnRequest]] = ()) -> None:
        self._waiting: dict[str, tuple[int, UnlearnRequest]] = {r.request_id: (round, r) for round, r in due}
        self.attempts: dict[str, int] = {}
        self.reasons: dict[str, str] = {}
        self.served_in: dict[str, int] = {}

    def pending(self, round: int) -> list[UnlearnRequest]:
        """Requests due in or before `round` that were not served, ordered by id."""
        return [r for _, (due, r) in sorted(self._waiting.items()) if due <= round]

    def served(self, request: UnlearnRequest, round: int, info: Mapping[str, float]) -> None:
        """Take `request` off the list; a second call changes nothing."""
        if self._waiting.pop(request.request_id, None) is not None:
            self.served_in[request.request_id] = round

    def failed(self, request: UnlearnRequest, round: int, reason: str) -> None:
        """Count the attempt and keep the latest reason."""
        self.attempts[request.request_id] = self.attempts.get(request.request_id, 0) + 1
        self.reasons[request.request_id] = reason
