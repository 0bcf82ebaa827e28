"""Requests in memory, and in which order a client is told of its own."""

from __future__ import annotations

import pytest
from support.fedtu_clients import request

from strategies.rounds.fedtu import FedTU
from strategies.rounds.request_source import RequestList, RequestSource, UnlearnRequest, by_client
from strategies.rules.factory import build


class Named(RequestSource):
    """Defines what it must, and no more."""

    def pending(self, server_round):
        return ()

    def served(self, request, server_round, info):
        raise AssertionError

    def failed(self, request, server_round, reason):
        raise AssertionError


def test_a_source_serves_nothing_twice_and_hides_nothing_unless_it_says_so() -> None:
    source = Named()
    assert (list(source.again(1)), source.cover_due(1), source.hidden) == ([], False, False)
    source.served_again(request(1), 1, {})
    with pytest.raises(NotImplementedError, match="Named is not told of exchanges over hidden requests"):
        source.covered(1, "s", {}, (), "b", "a", 0)
    with pytest.raises(NotImplementedError, match="Named is not told of exchanges over hidden requests"):
        source.cover_failed(1, "s", {}, "lost")


def test_what_is_no_source_is_refused_when_fedtu_is_made() -> None:
    class Alike:
        pending = served = failed = None

    with pytest.raises(TypeError, match="requests is of type Alike, expected a subclass of RequestSource"):
        FedTU(build("fedavg"), requests=Alike())  # type: ignore[arg-type]


def test_clients_come_as_they_ask_and_their_requests_by_id() -> None:
    asked = [request(2, 1, "d"), request(0, 1, "c"), request(2, 1, "b"), request(0, 1, "a")]
    found = by_client(asked)
    assert list(found) == [2, 0]
    assert {client: [r.request_id for r in own] for client, own in found.items()} == {2: ["b", "d"], 0: ["a", "c"]}


def test_a_request_is_pending_from_its_round_on_until_it_is_served() -> None:
    first, second = request(1, 1, "z"), request(2, 1, "a")
    requests = RequestList([(2, first), (3, second)])
    assert [[r.request_id for r in requests.pending(n)] for n in (1, 2, 3)] == [[], ["z"], ["a", "z"]]
    for reason in ("late", "lost"):
        requests.failed(first, 2, reason)
    requests.served(first, 4, {})
    requests.served(first, 5, {})
    assert requests.pending(9) == [second] and requests.served_in == {"z": 4}
    assert requests.attempts == {"z": 2} and requests.reasons == {"z": "lost"}


def test_a_request_weighs_what_it_says_and_else_as_many_records_as_it_names() -> None:
    assert UnlearnRequest("r", 0, ("a", "b"), 5).num_records == 5
    assert UnlearnRequest("r", 0, ("a", "b")).num_records == 2
