"""Sampling that is the same on every run, and the map from nodes to partitions."""

from __future__ import annotations

import random

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from support.fedtu_clients import SIZE, Recorder, adapter, federation, flat, honest, noise, request

from strategies.flower_internals import SUPERLINK_NODE_ID, set_sender
from strategies.rounds.fedtu import FedTU, NodeMap, NodeMapError, Options, RequestList
from strategies.rounds.grids import OrderedGrid
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rounds.nodes import seeded
from strategies.rounds.strategy_proxy import WrappingStrategy
from strategies.rules.factory import build


def trained(grid: MemoryGrid) -> dict[int, list[int]]:
    """Round → partitions in the order in which they were addressed."""
    rounds: dict[int, list[int]] = {}
    for kind, partition, c in grid.log:
        if kind == "train":
            rounds.setdefault(int(c["config"]["server-round"]), []).append(partition)
    return rounds


def test_sampling_does_not_depend_on_node_ids_or_arrival():
    """Other node ids, another order of connection and of replies, another state of `random`: the same run."""
    runs = []
    for shuffle in range(3):
        shuffler = random.Random(shuffle)
        partitions = list(range(20))
        shuffler.shuffle(partitions)
        grid = MemoryGrid(
            {p: honest(p) for p in partitions},
            node_ids={p: shuffler.getrandbits(60) for p in partitions},
            order=lambda replies, s=shuffler: s.sample(replies, len(replies)),
            keep_log=True,
        )
        random.seed(shuffle)
        state = random.getstate()
        fedtu = FedTU(
            build("fedavg", fraction_train=0.3),
            requests=RequestList([(2, request(3)), (2, request(7))]),
            options=Options(seed=4),
        )
        result = fedtu.start(grid, adapter(noise("start")), num_rounds=3)
        assert random.getstate() == state, "the sampling left its traces in the global generator"
        runs.append((trained(grid), flat(result.arrays).tobytes()))
    assert runs[0] == runs[1] == runs[2]
    assert all(len(set(p)) == 6 for p in runs[0][0].values())


def test_sampling_depends_on_seed_stage_and_round():
    def sampled(**options) -> dict[int, list[int]]:
        grid = federation(40)
        FedTU(build("fedavg", fraction_train=0.2), options=Options(**options)).start(
            grid, adapter(np.zeros(SIZE)), num_rounds=2
        )
        return trained(grid)

    base = sampled(seed=1, stage="finetune")
    assert base[1] != base[2]
    assert base[1] != sampled(seed=2, stage="finetune")[1]
    assert base[1] != sampled(seed=1, stage="retrain")[1]
    assert base == sampled(seed=1, stage="finetune")


def test_sampling_is_flowers_with_a_seed():
    """The partitions that Python's own sampler draws from the ordered list."""
    grid = federation(30)
    FedTU(build("fedavg", fraction_train=0.1), options=Options(seed=5, stage="s")).start(
        grid, adapter(np.zeros(SIZE)), num_rounds=1
    )
    with seeded(5, "s", 1, "train"):
        expected = random.sample(range(30), 3)
    assert trained(grid)[1] == expected


def test_excluded_clients_are_never_sampled_but_may_be_unlearned():
    grid = federation(6)
    requests = RequestList([(1, request(0))])
    fedtu = FedTU(build("fedavg", fraction_train=0.5), requests=requests, eligible=lambda p: p not in (0, 5))
    fedtu.start(grid, adapter(np.zeros(SIZE)), num_rounds=8)
    rounds = trained(grid)
    assert set().union(*rounds.values()) == {1, 2, 3, 4}
    assert all(len(p) == 2 for p in rounds.values()), "the fraction is of the eligible clients"
    assert requests.served_in == {"r0": 1}


def test_no_eligible_client_leaves_the_model():
    result = FedTU(build("fedavg"), eligible=lambda p: False).start(
        federation(2), adapter(noise("start")), num_rounds=1
    )
    assert np.array_equal(flat(result.arrays), noise("start"))


@pytest.mark.parametrize("nodes", [30, 300])
def test_messages_do_not_grow_with_idle_clients(nodes):
    """One query per node and process; then three messages per round, whatever the number of clients."""
    grid, shared = federation(nodes), NodeMap()
    for stage in ("finetune", "unlearn"):
        FedTU(build("fedavg", fraction_train=3 / nodes), nodes=shared, options=Options(stage=stage)).start(
            grid, adapter(np.zeros(SIZE)), num_rounds=5
        )
    assert grid.sent == {"query": nodes, "train": 2 * 5 * 3}


def test_nodes_that_come_late_are_asked_once():
    grid, nodes = federation(3), NodeMap()
    late = grid.nodes.pop(0)
    assert list(nodes.refresh(grid)) == [1, 2]
    grid.nodes[0] = late
    assert list(nodes.refresh(grid)) == [0, 1, 2]
    del grid.nodes[1]
    assert list(nodes.refresh(grid)) == [0, 2]
    assert grid.sent["query"] == 3
    assert OrderedGrid(grid, nodes).get_node_ids() == [1000, 1002]
    assert nodes.answers[2]["metrics"]["partition-id"] == 2


class Answering(MemoryGrid):
    """Replies to queries go through `answered`, with the query; None: there is no reply."""

    def push_messages(self, messages):
        pushed = super().push_messages(messages)
        self.queries = {i: m for i, m in zip(pushed, messages, strict=True) if m.metadata.message_type == "query"}
        return pushed

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        queries = [self.queries.get(reply.metadata.reply_to_message_id) for reply in replies]
        given = [r if q is None else self.answered(q, r) for q, r in zip(queries, replies, strict=True)]
        return [reply for reply in given if reply is not None]


class Silent(Answering):
    """Some nodes do not answer queries, or with nonsense."""

    silent: frozenset[int] | set[int] = frozenset()
    answer: RecordDict | Error | None = None

    def answered(self, query, reply):
        if query.metadata.dst_node_id - 1000 not in self.silent:
            return reply
        if self.answer is None:
            return None
        other = Message(self.answer, reply_to=query)
        if isinstance(self.answer, Error):
            set_sender(other, SUPERLINK_NODE_ID)
        return other


@pytest.mark.parametrize("answer", [None, Error(code=1, reason="no app"), RecordDict()])
def test_nodes_that_do_not_answer_are_left_out_and_asked_again(answer):
    grid, nodes = Silent({p: honest(p) for p in range(3)}), NodeMap()
    grid.silent, grid.answer = {1}, answer
    assert list(nodes.refresh(grid)) == [0, 2]
    assert list(nodes.refresh(grid)) == [0, 2]
    assert grid.sent["query"] == 3
    grid.silent = set()
    assert list(nodes.refresh(grid, retry=True)) == [0, 1, 2]
    assert grid.sent["query"] == 4


def test_a_node_that_was_silent_is_asked_again_who_it_is_when_all_are_asked():
    grid, nodes = Silent({p: honest(p) for p in range(3)}), NodeMap()
    grid.silent = {1}
    assert list(nodes.refresh(grid)) == [0, 2]
    grid.silent = set()
    assert list(nodes.ask(grid, lambda partition: {})) == [0, 1, 2]


def test_nodes_beyond_the_clients_are_told_of_and_not_asked_again(caplog):
    grid, nodes = federation(6), NodeMap(partitions=3)
    for _ in range(2):
        assert list(nodes.refresh(grid)) == [0, 1, 2]
    assert grid.sent["query"] == 6
    assert caplog.text.count("3 nodes are left out: they claim partitions 3 to 5 of 3") == 1
    with pytest.raises(NodeMapError, match="it claims partition 1 of 1"):
        one = MemoryGrid({1: honest(1)})
        NodeMap(partitions=1).refresh(one)
    assert "1 nodes are left out: they claim partitions 1 of 1" in caplog.text


def test_no_usable_node_is_an_error():
    grid = Silent({p: honest(p) for p in range(2)})
    grid.silent, grid.answer = {0, 1}, Error(code=1, reason="no app")
    with pytest.raises(NodeMapError, match=r"none of 2 nodes .*no app"):
        NodeMap().refresh(grid)
    with pytest.raises(NodeMapError, match="2 of 3 clients connected"):
        NodeMap(min_nodes=3, wait_s=0.01).refresh(grid)
    grid.answer = Error(code=0, reason="ActorDiedError")
    with pytest.raises(NodeMapError, match="none of 2 nodes"):
        NodeMap().refresh(grid)


def test_all_are_waited_for_at_the_start_and_the_fewest_later(caplog):
    grid, nodes = federation(3), NodeMap(expected=4, min_nodes=2, wait_s=0.05)
    assert list(nodes.refresh(grid)) == [0, 1, 2]
    assert "3 of 4 clients connected" in caplog.text and "join later" in caplog.text
    caplog.clear()
    del grid.nodes[0]
    assert list(nodes.refresh(grid)) == [1, 2] and not caplog.text
    del grid.nodes[1]
    with pytest.raises(NodeMapError, match=r"1 of 2 clients .* at least 2 are needed"):
        nodes.refresh(grid)


def test_who_connects_while_the_others_are_waited_for_is_there():
    grid, late = federation(2), honest(1)
    del grid.nodes[1]
    listed = grid.get_node_ids

    def connecting():
        found = listed()
        grid.nodes[1] = late
        return found

    grid.get_node_ids = connecting
    assert list(NodeMap(expected=2, wait_s=0.05).refresh(grid)) == [0, 1]


def claims(partition) -> RecordDict:
    return RecordDict({"metrics": MetricRecord({"partition-id": partition})})


def test_of_two_nodes_that_claim_a_partition_at_once_neither_gets_it():
    grid, told = Silent({p: honest(p) for p in range(3)}), []
    grid.silent, grid.answer = {2}, claims(0)
    nodes = NodeMap(set_aside=lambda *what: told.append(what))
    assert nodes.refresh(grid) == {1: 1001} == nodes.refresh(grid, retry=True)
    reason = "nodes 1000, 1002 all claim to be client 0"
    assert told == [(0, 1000, reason), (0, 1002, reason)], "once, by name"
    grid.silent = set()
    assert nodes.refresh(grid, retry=True) == {0: 1000, 1: 1001, 2: 1002}, "once nobody lies, all take part"


def test_a_latecomer_gets_no_partition_that_somebody_has(caplog):
    grid, told = Silent({p: honest(p) for p in range(3)}, keep_log=True), []
    liar = grid.nodes.pop(2)
    nodes = NodeMap(set_aside=lambda *what: told.append(what))
    nodes.refresh(grid)
    grid.nodes[2] = liar
    grid.silent, grid.answer = {2}, claims(1)
    requests = RequestList([(1, request(1))])
    FedTU(build("fedavg"), requests=requests, nodes=nodes).start(grid, adapter(np.zeros(SIZE)), num_rounds=2)
    assert told == [(1, 1002, "node 1001 is client 1 already")]
    assert "node 1002 is set aside, it is not client 1" in caplog.text
    asked = [(kind, p) for kind, p, _ in grid.log if kind in ("train", "train.unlearn")]
    assert ("train.unlearn", 1) in asked and all(p != 2 for _, p in asked), "it never sees another client's request"


@pytest.mark.parametrize("partition", [3, -1, 2**40, 2**62, 1.0, [0], 4711])
def test_a_partition_that_does_not_exist_is_nobody_s(partition):
    grid = Silent({p: honest(p) for p in range(3)})
    grid.silent, grid.answer = {2}, claims(partition)
    assert list(NodeMap(partitions=3).refresh(grid)) == [0, 1]


class Known:
    """Identities: a node's key is what it has the key of."""

    def __init__(self, **bound):
        self.bound = {int(k[1:]): v for k, v in bound.items()}

    def refusal(self, partition, key):
        return "" if self.bound.get(partition, key) == key else f"its key is {key.decode()}"

    def bind(self, partition, key):
        self.bound.setdefault(partition, key)


class Keyed(Silent):
    """Nodes show the key `k<partition>`, whatever they claim."""

    def get_nodes(self):
        return [NodeInfo(node_id=n, public_key=f"k{n - 1000}".encode()) for n in self.get_node_ids()]


def test_with_keys_the_owner_gets_its_partition_and_the_liar_nothing():
    for silent, claimed, expected in (({2}, 0, {0: 1000, 1: 1001}), ({2}, 1, {0: 1000, 1: 1001})):
        grid, told = Keyed({p: honest(p) for p in range(3)}), []
        grid.silent, grid.answer = silent, claims(claimed)
        known = Known(p0=b"k0", p1=b"k1", p2=b"k2")
        nodes = NodeMap(identities=known, set_aside=lambda *what, told=told: told.append(what))
        assert nodes.refresh(grid) == expected
        assert told == [(claimed, 1002, "its key is k2")]


def test_the_first_key_of_a_partition_is_bound_and_another_is_refused_even_when_that_has_gone():
    grid, known = Keyed({p: honest(p) for p in range(3)}), Known()
    late = grid.nodes.pop(2)
    assert list(NodeMap(identities=known).refresh(grid)) == [0, 1]
    assert known.bound == {0: b"k0", 1: b"k1"}
    grid.nodes.pop(1)
    grid.nodes[2] = late
    grid.silent, grid.answer = {2}, claims(1)
    assert list(NodeMap(identities=known).refresh(grid)) == [0], "not in another process of the run either"


def test_a_client_that_comes_back_under_a_new_id_replaces_the_old():
    grid, nodes = federation(2), NodeMap()
    nodes.refresh(grid)
    grid.node_ids[1] = 77
    assert nodes.refresh(grid) == {0: 1000, 1: 77}
    assert nodes.partition(77) == 1
    assert nodes.partition(1001) is None


def test_a_node_that_was_silent_joins_in_a_later_round():
    grid = Silent({p: honest(p) for p in range(2)}, keep_log=True)
    grid.silent = {1}

    class Heal(Recorder):
        def round_completed(self, round, arrays, metrics, seconds):
            grid.silent = set()

    FedTU(build("fedavg"), listener=Heal()).start(grid, adapter(np.zeros(SIZE)), num_rounds=2)
    assert {r: sorted(p) for r, p in trained(grid).items()} == {1: [0], 2: [0, 1]}


def roster_of(grid: MemoryGrid) -> dict[int, int]:
    return {node: partition for partition, node in grid.node_ids.items()}


def test_a_roster_spares_the_questions():
    """Two of 300 are asked; the map is that of a federation where all are."""
    asked, told = federation(300), federation(300)
    expected = NodeMap().refresh(asked)
    assert NodeMap(roster=lambda: roster_of(told)).refresh(told) == expected
    assert (asked.sent, told.sent) == ({"query": 300}, {"query": 2})


@pytest.mark.parametrize("lost", [(), (0,), (9,), (0, 9), (4,)])
def test_a_roster_that_is_wrong_is_not_believed(lost):
    """Partitions in another order than the roster says, or nodes that do not confirm it: then all are asked."""
    grid = federation(10, node_ids={p: 500 - p for p in range(10)})
    wrong = {node: 9 - partition for node, partition in roster_of(grid).items()}
    for p in lost:
        grid.nodes.pop(p)
    grid.get_node_ids = lambda: list(grid.node_ids.values())  # type: ignore[method-assign]
    found = NodeMap(roster=lambda: wrong).refresh(grid)
    assert found == {p: 500 - p for p in range(10) if p not in lost}
    assert grid.sent["query"] == 10


@pytest.mark.parametrize("right", [0, 9])
def test_a_roster_is_believed_where_both_ends_confirm_it(right):
    """It is right about one of the two that are asked, and shifts all others by one place."""
    grid = federation(10)
    others = [p for p in range(10) if p != right]
    shifted = dict(zip(others, [*others[1:], others[0]], strict=True)) | {right: right}
    wrong = {node: shifted[partition] for node, partition in roster_of(grid).items()}
    assert NodeMap(roster=lambda: wrong).refresh(grid) == grid.node_ids
    assert grid.sent["query"] == 10


def test_a_roster_has_nodes_beyond_the_clients_left_out_unasked():
    grid = federation(40)
    nodes = NodeMap(partitions=10, roster=lambda: roster_of(grid))
    for _ in range(3):
        assert list(nodes.refresh(grid, retry=True)) == list(range(10))
    assert grid.sent == {"query": 2}


def test_a_held_grid_lists_once_and_then_anew():
    grid = federation(5)
    ordered = OrderedGrid(grid, NodeMap(), lambda p: p != 3)
    with ordered.held():
        first = ordered.get_node_ids()
        late = grid.nodes.pop(0)
        assert ordered.get_node_ids() == first == [1000, 1001, 1002, 1004]
    assert ordered.get_node_ids() == [1001, 1002, 1004]
    grid.nodes[0] = late
    with ordered.held(False):
        assert len(ordered.get_node_ids()) == 4


def test_ten_thousand_nodes_with_thirty_participants_are_thirty_nodes():
    """Those that may take part are the same, and so are rounds, models and messages, whoever else is registered."""
    runs = []
    for count in (30, 10_000):
        grid = federation(count)
        fedtu = FedTU(
            build("fedadam", fraction_train=0.2),
            nodes=NodeMap(roster=lambda g=grid: roster_of(g)),
            requests=RequestList([(2, request(3)), (2, request(7))]),
            eligible=lambda p: p < 30,
            options=Options(seed=9),
        )
        result = fedtu.start(grid, adapter(noise("start")), num_rounds=3)
        runs.append((trained(grid), flat(result.arrays).tobytes(), dict(grid.sent)))
    assert runs[0] == runs[1]
    assert runs[0][2] == {"query": 2, "train": 18, "train.unlearn": 2}


@pytest.mark.parametrize(("count", "asked"), [(1, 1), (2, 2), (3, 1)])
def test_where_nobody_answers_a_roster_is_no_answer(count, asked):
    """Of three the two at the ends were asked before."""
    grid = Silent({p: honest(p) for p in range(count)})
    grid.silent = set(range(count))
    with pytest.raises(NodeMapError, match=f"none of {asked} nodes could be asked"):
        NodeMap(roster=lambda: roster_of(grid)).refresh(grid)


def test_a_round_waits_for_as_many_clients_as_must_be_there(monkeypatch):
    """Nodes are listed anew as long as Flower waits, whether or not as many as must take part are there already."""
    grid, waited = federation(3), []

    def wait(seconds):
        waited.append(seconds)
        assert len(waited) < 3, "nobody would ever be seen to come"
        grid.node_ids[3], grid.nodes[3] = 1003, honest(3)

    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", wait)
    FedTU(build("fedavg", min_available_nodes=4, min_train_nodes=3)).start(grid, adapter(np.zeros(SIZE)), num_rounds=1)
    assert len(waited) == 1 and len(trained(grid)[1]) == 3


def test_a_strategy_that_names_no_fraction_has_clients_evaluate():
    """None of them says that nobody is to."""
    grid = federation(3)
    inner = WrappingStrategy(build("fedavg", fraction_evaluate=1.0))
    result = FedTU(inner).start(grid, adapter(np.zeros(SIZE)), num_rounds=1)
    assert grid.sent["evaluate"] == 3 and result.evaluate_metrics_clientapp[1]["accuracy"] == 0.25


class Asked(Answering):
    """Answers a query with its partition and what it was asked, and writes down how long is waited."""

    waited: float | None = None

    def answered(self, query, reply):
        if reply.has_content():
            reply.content["asked"] = ConfigRecord(dict(query.content["config"]))
        return reply

    def send_and_receive(self, messages, *, timeout=None):
        self.waited = timeout
        return super().send_and_receive(messages, timeout=timeout)


def test_a_query_carries_the_configuration_and_what_is_asked_of_a_partition_counts_first():
    """All that was answered stays known, also of those that are not there when they are asked again."""
    grid = Asked({p: honest(p) for p in range(3)})
    nodes = NodeMap(config={"run": 4, "more": 1}, timeout_s=17.0)
    nodes.refresh(grid)
    assert grid.waited == 17.0
    assert [dict(nodes.answers[p]["asked"]) for p in range(3)] == [{"run": 4, "more": 1}] * 3
    del grid.nodes[0]
    told = nodes.ask(grid, lambda partition: {"more": 10 + partition})
    assert {p: dict(one["asked"]) for p, one in told.items()} == {p: {"run": 4, "more": 10 + p} for p in (1, 2)}
    assert {p: one["asked"]["more"] for p, one in nodes.answers.items()} == {0: 1, 1: 11, 2: 12}


def test_as_many_nodes_as_there_must_be_are_enough_and_are_waited_for_a_second_at_a_time(monkeypatch, caplog):
    now, slept = [50.0], []

    def sleep(seconds):
        now[0] += seconds
        slept.append(seconds)

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", sleep)
    assert list(NodeMap(expected=4, min_nodes=2, wait_s=2.0).refresh(federation(2))) == [0, 1]
    assert slept == [1.0, 1.0] and "2 of 4 clients connected within 2 s" in caplog.text
    assert list(NodeMap(expected=4, min_nodes=2, wait_s=0.25).refresh(federation(2))) == [0, 1]
    assert slept[2:] == [0.25]


def test_nodes_beyond_the_clients_are_told_of_once_by_a_roster_too(caplog):
    grid = federation(6)
    nodes = NodeMap(partitions=4, roster=lambda: {1000 + p: p for p in range(6)})
    for _ in range(2):
        assert list(nodes.refresh(grid, retry=True)) == [0, 1, 2, 3]
    assert caplog.text.count("2 nodes are left out: they claim partitions 4 to 5 of 4") == 1


def test_a_roster_gives_nobody_a_partition_that_another_node_holds():
    """Node 1003 is said to hold partition 1, which node 1001 does: it is asked, and holds 3."""
    grid = federation(5)
    known = {p: grid.nodes.pop(p) for p in (0, 3, 4)}
    nodes = NodeMap(roster=lambda: {1000: 0, 1003: 1, 1004: 4})
    assert nodes.refresh(grid) == {1: 1001, 2: 1002}
    grid.nodes |= known
    assert nodes.refresh(grid) == {p: 1000 + p for p in range(5)}


def test_who_was_refused_is_asked_again_only_when_all_are_and_refused_by_name():
    grid = Silent({p: honest(p) for p in range(3)})
    grid.silent, grid.answer = {2}, claims(0)
    nodes = NodeMap()
    assert [list(nodes.refresh(grid, retry=retry)) for retry in (False, False, True)] == [[1]] * 3
    assert grid.sent["query"] == 3 + 2
    grid.silent = {0, 1, 2}
    with pytest.raises(NodeMapError, match=r"none of 3 nodes .*: nodes 1000, 1001, 1002 all claim to be client 0"):
        NodeMap().refresh(grid)
    grid.answer = None
    late = honest(3)
    grid.nodes[3], grid.silent = late, {3}
    grid.node_ids[3] = 1003
    assert list(nodes.refresh(grid, retry=True)) == [0, 1, 2], "one new node that is silent is no error"


def test_a_seed_is_made_of_all_labels_with_a_stroke_between_them():
    with seeded(5, "s", 1, "train"):
        assert random.random() == random.Random("5/s/1/train").random()
