"""What a client makes of a FedTU message: checks, tombstones, the mark of having left."""

import json

import pytest
from flwr.app import ConfigRecord

from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.unlearn_messages import Demand, DemandError, accept, read_demands

HELD = ["a", "b", "c", "d"]


def config(requests, records, counts=None, scopes=None):
    values = {"request-ids": requests, "record-ids": records, "record-counts": counts, "scopes": scopes}
    return ConfigRecord({k: v for k, v in values.items() if v is not None})


def test_a_message_is_divided_into_its_requests():
    message = config(["x", "y", "z"], ["a", "b", "c"], [2, 0, 1], ["records", "client", "subject"])
    assert read_demands(message) == (
        Demand("x", "records", ("a", "b")),
        Demand("y", "client", ()),
        Demand("z", "subject", ("c",)),
    )
    assert read_demands(config(["x"], ["a", "b"])) == (Demand("x", "records", ("a", "b")),)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (config(["x"], ["a"], [2], ["records"]), "do not divide 1 record ids"),
        (config(["x", "y"], ["a"], [2, -1], ["records", "records"]), "do not divide"),
        (config(["x", "y"], ["a"], [1], ["records", "records"]), "2 requests, but 1 record counts"),
        (config(["x", "y"], ["a", "b"]), "2 requests, but 1 record counts"),
        (config(["x"], ["a"], [1], ["records", "client"]), "1 requests, but 1 record counts and 2 scopes"),
        (config(["x"], ["a"], [1], ["everything"]), "scope 'everything', expected one of records, client, subject"),
        (config(["x"], [], [0], ["records"]), "names no record"),
        (config(["x"], [], [0], ["subject"]), "names no record"),
        (config([], [], [], []), "expected request ids"),
        (config(["x", "x"], ["a", "b"], [1, 1]), "expected request ids that differ"),
        (config(["x"], None, [1]), "expected a list of texts under 'record-ids'"),
        (config(["x"], [1], [1]), "expected a list of texts under 'record-ids'"),
    ],
)
def test_a_message_that_makes_no_sense_is_refused(message, reason):
    with pytest.raises(DemandError, match=reason):
        read_demands(message)


def test_named_records_are_buried_under_their_own_request(tmp_path):
    node = NodeFolder(tmp_path)
    assert accept([Demand("x, y", "records", ("a",)), Demand("z", "subject", ("b",))], HELD, node) == {"a", "b"}
    assert node.buried() == {"a": "x, y", "b": "z"}
    assert node.left_by() is None


def test_a_foreign_record_is_refused_before_anything_is_buried(tmp_path):
    node = NodeFolder(tmp_path)
    with pytest.raises(DemandError, match="does not hold record 'q'"):
        accept([Demand("x", "client", ("a",)), Demand("y", "records", ("q",))], HELD, node)
    assert not node.tombstones() and node.left_by() is None


@pytest.mark.parametrize("named", [(), ("b", "c"), ("b", "c", "d")])
def test_who_leaves_buries_everything_also_what_the_server_does_not_name(tmp_path, named):
    node = NodeFolder(tmp_path)
    accept([Demand("earlier", "records", ("a",))], HELD, node)
    leave = [Demand("leave", "client", named)]
    assert accept(leave, HELD, node) == {"b", "c", "d"}, "what an earlier exchange forgot is not forgotten again"
    assert node.tombstones() == set(HELD) and node.left_by() == "leave"
    again = NodeFolder(tmp_path)
    assert accept(leave, HELD, again) == {"b", "c", "d"}, "the exchange can be repeated"
    assert again.left_by() == "leave"


def test_an_earlier_request_that_still_waits_is_served_with_the_leaving(tmp_path):
    node = NodeFolder(tmp_path)
    waiting = Demand("waiting", "records", ("a",))
    accept([waiting], HELD, node)
    assert accept([waiting, Demand("leave", "client", ("b",))], HELD, node) == set(HELD)


def test_who_has_nothing_left_says_so_and_has_left(tmp_path):
    node = NodeFolder(tmp_path)
    accept([Demand("earlier", "records", tuple(HELD))], HELD, node)
    with pytest.raises(DemandError, match="all its records are forgotten already"):
        accept([Demand("leave", "client", ())], HELD, node)
    assert node.left_by() == "leave"


def test_the_mark_of_having_left_is_kept_as_it_was_first(tmp_path):
    node = NodeFolder(tmp_path / "new")
    node.leave("first")
    before = node.left_path.read_bytes()
    node.leave("second")
    assert node.left_path.read_bytes() == before
    assert NodeFolder(tmp_path / "new").left_by() == "first" and json.loads(before)["time"] > 1.6e9
