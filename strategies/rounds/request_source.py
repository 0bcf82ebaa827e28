"""Deletion requests as FedTU sees them, and the interface of where they come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from strategies import message_keys

SCOPES = (message_keys.SCOPE_RECORDS, message_keys.SCOPE_CLIENT, message_keys.SCOPE_SUBJECT)


@dataclass(frozen=True, slots=True)
class UnlearnRequest:
    """One client's request to forget records.

    Attributes
    ----------
    request_id : str
    node : int
        The client's partition id.
    record_ids : tuple of str
        A client that leaves need not have its records named.
    num_records : int
        Weight of the reply when several clients answer in one round; the number of `record_ids` unless given.
    scope : str
        One of `SCOPES`.

    Raises
    ------
    ValueError
        For an unknown scope, or a request that names no record and gives no number.
    """

    request_id: str
    node: int
    record_ids: tuple[str, ...]
    num_records: int = 0
    scope: str = message_keys.SCOPE_RECORDS

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise ValueError(f"request {self.request_id!r} has the scope {self.scope!r}, expected one of {SCOPES}")
        if self.num_records == 0:
            object.__setattr__(self, "num_records", len(self.record_ids))
        if self.num_records < 1:
            raise ValueError(f"request {self.request_id!r} names no record")


def by_client(requests: Iterable[UnlearnRequest]) -> dict[int, list[UnlearnRequest]]:
    """Group requests by client.

    Parameters
    ----------
    requests : iterable of UnlearnRequest

    Returns
    -------
    dict of lists of UnlearnRequest
        By client, in the order of their first requests; each list is ordered by request id.
    """
    grouped: dict[int, list[UnlearnRequest]] = {}
    for request in requests:
        grouped.setdefault(request.node, []).append(request)
    return {client: sorted(own, key=lambda r: r.request_id) for client, own in grouped.items()}


def config_of(requests: Sequence[UnlearnRequest]) -> dict[str, Any]:
    """Config entries that describe the requests of one client in an unlearning message.

    Parameters
    ----------
    requests : sequence of UnlearnRequest

    Returns
    -------
    dict
        By the keys of `strategies.message_keys`: ids, records, counts and scopes.
    """
    return {
        message_keys.REQUEST_IDS: [r.request_id for r in requests],
        message_keys.RECORD_IDS: [i for r in requests for i in r.record_ids],
        message_keys.RECORD_COUNTS: [len(r.record_ids) for r in requests],
        message_keys.SCOPES: [r.scope for r in requests],
    }


class RequestSource(ABC):
    """Where FedTU takes deletion requests from, and to which it reports their outcome.

    A source defines `pending`, `served` and `failed`. The other methods have defaults: nothing is served a second time,
    and the server knows which clients have requests.
    """

    hidden: ClassVar[bool] = False
    """Whether requests stay hidden on the clients and are served in cover exchanges with others. Such a source defines
    `cover_due`, `covered` and `cover_failed`."""

    @abstractmethod
    def pending(self, server_round: int, /) -> Sequence[UnlearnRequest]:
        """Requests to serve in this round; called once per round."""

    @abstractmethod
    def served(self, request: UnlearnRequest, server_round: int, info: Mapping[str, float], /) -> None:
        """Report that the client's model became part of the global model; `info` holds the metrics of its reply."""

    @abstractmethod
    def failed(self, request: UnlearnRequest, server_round: int, reason: str, /) -> None:
        """Report that a request could not be served in this round: it stays pending; count the attempt."""

    def again(self, server_round: int, /) -> Sequence[UnlearnRequest]:
        """Requests of earlier rounds to serve again in this round, so that what comes back is forgotten again.

        Called once per round. None by default.
        """
        return ()

    def served_again(self, request: UnlearnRequest, server_round: int, info: Mapping[str, float], /) -> None:
        """As `served`, of a request that was served before; requests of clients that do not answer are not reported.

        Nothing is noted by default.
        """
        return None

    def cover_due(self, server_round: int, /) -> bool:
        """Whether an exchange is held in this round that may serve clients whom `pending` does not name.

        Called once per round. False by default.
        """
        return False

    def covered(
        self,
        server_round: int,
        session: str,
        commitments: Mapping[int, str],
        survivors: Sequence[int],
        before: str,
        after: str,
        records: int,
        /,
    ) -> None:
        """Report that an exchange over hidden requests became part of the global model.

        Parameters
        ----------
        server_round : int
            The round, from 1.
        session : str
            Name of the exchange.
        commitments : mapping of int to str
            The commitment of each client whose masked vector came.
        survivors : sequence of int
            The clients that are in the sum.
        before, after : str
            SHA-256 of the global model, in hexadecimal digits.
        records : int
            How many records all clients together forgot.

        Raises
        ------
        NotImplementedError
            If the source is not `hidden`.
        """
        raise NotImplementedError(f"{type(self).__name__} is not told of exchanges over hidden requests")

    def cover_failed(self, server_round: int, session: str, commitments: Mapping[int, str], reason: str, /) -> None:
        """Report that an exchange over hidden requests failed; NotImplementedError if the source is not `hidden`."""
        raise NotImplementedError(f"{type(self).__name__} is not told of exchanges over hidden requests")


class RequestList(RequestSource):
    """Requests in memory: each is due from its round on until it is served.

    Parameters
    ----------
    due : iterable of (round, UnlearnRequest)
    """

    def __init__(self, due: Iterable[tuple[int, UnlearnRequest]] = ()) -> None:
        self._waiting: dict[str, tuple[int, UnlearnRequest]] = {r.request_id: (first, r) for first, r in due}
        self.attempts: dict[str, int] = {}
        self.reasons: dict[str, str] = {}
        self.served_in: dict[str, int] = {}

    def pending(self, server_round: int) -> list[UnlearnRequest]:
        """Requests due in or before this round that were not served, ordered by id."""
        return [r for _, (due, r) in sorted(self._waiting.items()) if due <= server_round]

    def served(self, request: UnlearnRequest, server_round: int, info: Mapping[str, float]) -> None:
        """Remove `request` from the list; a second call changes nothing."""
        if self._waiting.pop(request.request_id, None) is not None:
            self.served_in[request.request_id] = server_round

    def failed(self, request: UnlearnRequest, server_round: int, reason: str) -> None:
        """Count the attempt and keep the latest reason."""
        self.attempts[request.request_id] = self.attempts.get(request.request_id, 0) + 1
        self.reasons[request.request_id] = reason
