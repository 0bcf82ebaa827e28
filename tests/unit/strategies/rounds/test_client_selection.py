"""Who is asked beside those that a strategy drew, and what a draw makes of replies."""

from __future__ import annotations

import random

import pytest
from flwr.app import Message, MetricRecord, RecordDict

from strategies.flower_internals import identify_process
from strategies.replies import ReplyCheck, metrics_of
from strategies.rounds.client_sampling import BySize, Selection
from strategies.rounds.client_selection import Drawing, further
from strategies.rounds.update_bounds import Bounds, Clipped


@pytest.mark.parametrize(
    ("count", "factor", "more"), [(3, 1.5, 2), (4, 1.5, 2), (3, 1.0, 0), (1, 1.01, 1), (4, 10.0, 6), (0, 2.0, 0)]
)
def test_so_many_more_are_asked_that_the_factor_is_reached(count, factor, more):
    """⌈m · factor⌉ in all, as far as there are others."""
    identify_process()
    content, nodes = RecordDict(), list(range(100, 110))
    messages = [Message(content, dst_node_id=node, message_type="train") for node in nodes[:count]]
    random.seed(3)
    found = further(messages, nodes, factor)
    asked = [message.metadata.dst_node_id for message in found]
    assert len(asked) == len(set(asked)) == more and not set(asked) & set(nodes[:count])
    assert {message.metadata.message_type for message in found} <= {"train"}


def verdict(client):
    """A good reply of a client that tells a weight of 1."""
    asked = Message(RecordDict(), dst_node_id=client, message_type="train")
    told = MetricRecord({"num-examples": 1})
    return ReplyCheck(client, Message(RecordDict({"metrics": told}), reply_to=asked), "")


@pytest.mark.parametrize(
    ("bounds", "expected", "cuts"),
    [
        (None, [40.0, 10.0, 10.0], []),
        (Bounds(records=lambda client: 5), [40.0, 10.0, 10.0], []),
        (
            Bounds(records=lambda client: 5, max_weight_share=0.5),
            [20.0, 10.0, 10.0],
            [Clipped(0, "weight", 40.0, 20.0)],
        ),
    ],
)
def test_a_drawn_weight_may_exceed_a_clients_records_but_not_its_share(bounds, expected, cuts):
    """n_k / π_k is above the records n_k wherever a client was not sure to be drawn."""
    identify_process()
    drawing = Drawing(BySize(lambda client: 5), (), Selection((0, 1, 2, 3), {0: 40.0, 1: 10.0, 2: 10.0, 3: 70.0}))
    verdicts = [*map(verdict, range(3)), ReplyCheck(3, None, "no reply")]
    assert drawing.hear(verdicts, bounds, "num-examples") == cuts
    assert [metrics_of(v.reply)["num-examples"] for v in verdicts if v.reply is not None] == expected
