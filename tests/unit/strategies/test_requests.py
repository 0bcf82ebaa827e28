"""Requests in memory, and in which order a client is told of its own."""

from __future__ import annotations

from support.fedtu_clients import request

from strategies.requests import RequestList, UnlearnRequest, by_client


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
