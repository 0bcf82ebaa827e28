"""A SuperNode that is one answer behind, as Flower leaves one, is heard all the same."""

from collections import defaultdict

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import Status
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate import NodeStateFactory
from support.inprocess import InProcessGrid

from oblivionis.client.app import app
from oblivionis.server.grids import AGAIN_S, PATIENCE_S, NudgingGrid
from strategies import message_keys
from strategies.rounds.grids import PassingGrid


class SuperNodes(PassingGrid):
    """Nodes that work as Flower's main loop does: take a message; wait for *an* answer, send all there are.

    `behind`: nodes in which an answer of an earlier run still lies. `slow`: nodes that compute for so many polls.
    """

    def __init__(self, behind=(), slow=None):
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.inbox, self.sent, self.answers = defaultdict(list), [], {}
        self.ready = {node: [None] for node in behind}
        self.busy = dict(slow or {})

    def push_messages(self, messages):
        ids = []
        for message in messages:
            identifier = f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = identifier
            self.sent.append(message)
            self.inbox[message.metadata.dst_node_id].append(message)
            ids.append(identifier)
        return ids

    def pull_messages(self, message_ids):
        for node in self.inbox:
            if self.busy.get(node, 0) > 0:
                self.busy[node] -= 1
            elif self.inbox[node]:
                self._work(node)
        return [self.answers.pop(i) for i in list(message_ids) if i in self.answers]

    def _work(self, node):
        message = self.inbox[node].pop(0)
        answer = Message(RecordDict({"text": ConfigRecord({"to": message.metadata.message_id})}), reply_to=message)
        old, self.ready[node] = self.ready.get(node, []), []
        self.ready[node] = [answer] if old else []
        for reply in old or [answer]:
            if reply is not None:
                self.answers[reply.metadata.reply_to_message_id] = reply


def exchange(grid, time, nodes=(1, 2), polls=40, every=1.0):
    """The nodes that answered, with what each was sent and when its answer came."""
    messages = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in nodes]
    waiting = dict(zip(grid.push_messages(messages), nodes, strict=True))
    came, start = {}, time[0]
    for _ in range(polls):
        for message in grid.pull_messages(waiting):
            assert message.content["text"]["to"] == message.metadata.reply_to_message_id, "nobody else's answer"
            came[waiting.pop(message.metadata.reply_to_message_id)] = time[0] - start
        time[0] += every
        if not waiting:
            break
    return came


def nudges(nodes):
    return [m.metadata.dst_node_id for m in nodes.sent if m.metadata.message_type == message_keys.NUDGE]


def test_flower_keeps_a_message_whose_run_ends_while_a_supernode_receives_it():
    """Once this fails, Flower mended what `NudgingGrid` makes up for: it can go."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    state = NodeStateFactory(ObjectStoreFactory()).state()
    state.set_node_id(2)
    state.store_run(Run.create_empty(run_id=1))
    message = Message(RecordDict(), dst_node_id=2, message_type="train")
    message.metadata.__dict__["_message_id"] = message.object_id
    objects = get_all_nested_objects(message)

    def run_has_ended(*_):
        raise RunNotRunningException

    received = start_client_internal._pull_and_store_message(
        state=state,
        object_store=state.object_store,
        node_config={},
        receive=lambda: (message, get_object_tree(message)),
        get_run=pytest.fail,
        get_fab=pytest.fail,
        pull_object=lambda run, identifier: objects[identifier].deflate(),
        confirm_message_received=run_has_ended,
        trusted_entities=None,
    )
    assert received is None, "the SuperNode waits for no answer"
    assert [task.status.status for task in state.get_tasks(run_ids=[1])] == [Status.PENDING]
    assert list(state.get_messages_legacy(run_ids=[1], is_reply=False)) == [message], "a ClientApp answers it"


def test_without_nudges_a_node_that_is_behind_never_answers():
    assert exchange(SuperNodes(behind=[2]), [0.0]) == {1: 0.0}


def test_a_node_that_is_behind_answers_every_exchange_and_soon_after_the_first():
    time, nodes = [0.0], SuperNodes(behind=[2])
    grid = NudgingGrid(nodes, lambda: time[0])
    first = exchange(grid, time)
    assert first[1] == 0.0 and PATIENCE_S <= first[2] <= PATIENCE_S + 2
    for _ in range(5):
        came = exchange(grid, time)
        assert came[1] == 0.0 and came[2] <= 2 * AGAIN_S + 2
    assert set(nudges(nodes)) == {2}


def test_nodes_that_answer_in_time_are_never_nudged():
    time, nodes = [0.0], SuperNodes(slow={2: int(PATIENCE_S) - 2})
    grid = NudgingGrid(nodes, lambda: time[0])
    assert set(exchange(grid, time)) == set(exchange(grid, time)) == {1, 2} and nudges(nodes) == []


def test_a_node_that_computes_for_long_has_one_nudge_to_answer_afterwards():
    time, nodes = [0.0], SuperNodes(slow={2: 300})
    grid = NudgingGrid(nodes, lambda: time[0])
    assert set(exchange(grid, time, polls=400)) == {1, 2}
    assert nudges(nodes) == [2]
    assert set(exchange(grid, time)) == {1, 2}, "the nudge's own answer is nobody's"


@pytest.mark.parametrize("refused", [[], [None]])
def test_a_nudge_that_cannot_be_sent_is_none(refused):
    time, nodes = [0.0], SuperNodes(slow={2: 60})
    plain = nodes.push_messages
    nodes.push_messages = lambda m: refused if m[0].metadata.message_type == message_keys.NUDGE else plain(m)
    assert set(exchange(NudgingGrid(nodes, lambda: time[0]), time, polls=100)) == {1, 2}


def test_a_node_that_is_gone_is_nudged_ever_more_rarely():
    """Flower answers for one that is offline, with an error."""
    time, nodes = [0.0], SuperNodes(slow={2: 10**9})
    plain = nodes.push_messages

    def push(messages):
        ids = plain(messages)
        for message in messages:
            if message.metadata.message_type == message_keys.NUDGE:
                nodes.answers[message.metadata.message_id] = Message(RecordDict(), reply_to=message)
        return ids

    nodes.push_messages = push
    assert set(exchange(NudgingGrid(nodes, lambda: time[0]), time, polls=1000)) == {1}
    assert len(nudges(nodes)) <= 1000 / PATIENCE_S


def test_a_client_answers_a_nudge_with_nothing():
    grid = InProcessGrid(app, 1)
    nudge = Message(RecordDict(), dst_node_id=next(iter(grid.get_node_ids())), message_type=message_keys.NUDGE)
    (reply,) = grid.send_and_receive([nudge])
    assert not reply.has_error() and not reply.content
