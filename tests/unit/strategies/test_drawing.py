"""Who is asked beside those that a strategy drew, and what a draw makes of replies."""

from __future__ import annotations

import random

import pytest
from flwr.app import Message, RecordDict

from strategies.drawing import further
from strategies.flower import identify_process


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
