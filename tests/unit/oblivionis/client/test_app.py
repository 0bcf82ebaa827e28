"""The table of handlers: which kinds of message a client answers, and which of them its policy counts."""

from pathlib import Path

import pytest
from flwr.app import Message, RecordDict
from support.inprocess import InProcessGrid

from oblivionis.client import handlers, node_policy_guard
from oblivionis.client.app import HANDLERS, app
from oblivionis.client.error_replies import CLIENT_ERROR_CODE
from strategies import message_keys
from strategies.secure import stage_keys

SECURE_STAGES = {stage_keys.KEYS_TYPE, stage_keys.SHARES_TYPE, stage_keys.CONFIRM_TYPE, stage_keys.UNMASK_TYPE}
COUNTED = {message_keys.QUERY, message_keys.TRAIN, message_keys.UNLEARN, message_keys.BURY, message_keys.AUDIT}
UNCOUNTED = {message_keys.NUDGE, *SECURE_STAGES}
"""They read no record, load no model and write nothing into the folder."""


def answer(kind, partition=1):
    """The reply of client 1 to an empty message; `partition` None: its node was started without a partition id."""
    grid = InProcessGrid(app, 2)
    (number,) = (n for n, context in grid.contexts.items() if context.node_config["partition-id"] == 1)
    if partition is None:
        del grid.contexts[number].node_config["partition-id"]
    return app(message=Message(RecordDict(), dst_node_id=number, message_type=kind), context=grid.contexts[number])


def test_every_kind_of_message_that_is_answered_is_counted_or_can_do_nothing():
    assert set(HANDLERS) == COUNTED | UNCOUNTED and set(node_policy_guard.COUNTED) == COUNTED


def test_every_handler_is_in_the_table():
    files = {file.stem for file in Path(handlers.__path__[0]).glob("*.py")}
    assert files - {"__init__"} == set(HANDLERS.values())


@pytest.mark.parametrize("kind", sorted(HANDLERS))
def test_every_kind_reaches_its_handler(kind):
    reply = answer(kind)
    if kind == message_keys.NUDGE:
        assert not reply.has_error() and len(reply.content) == 0
    elif kind == message_keys.QUERY:
        assert reply.content[message_keys.METRICS][message_keys.PARTITION_ID] == 1
    else:
        assert reply.error.code == CLIENT_ERROR_CODE
        said = "does not accept the terms" if kind == stage_keys.KEYS_TYPE else "takes part in no secure sum"
        assert (said in reply.error.reason) == (kind in SECURE_STAGES)


@pytest.mark.parametrize("kind", ["evaluate", "train.another", "query.handlers"])
def test_no_other_kind_is_answered(kind):
    with pytest.raises(ValueError, match="function registered with name"):
        answer(kind)


def test_a_node_without_a_partition_says_how_to_start_it():
    for kind in sorted(COUNTED | SECURE_STAGES):
        assert 'start it with --node-config "partition-id=…"' in answer(kind, None).error.reason
    assert not answer(message_keys.NUDGE, None).has_error()
