"""Rounds with a deadline and over-sampling: who counts, what becomes of the others, and that nothing else changes."""

import random
import time

import numpy as np
import pytest
from flwr.app import Error
from support.fedtu_clients import Recorder, adapter, federation, flat, honest, noise, request
from support.late import LateGrid

from strategies import message_keys
from strategies.privacy.private_mean import PrivateMean
from strategies.rounds.fedtu import FedTU, NodeMap, Options, RequestList
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rounds.nodes import seeded
from strategies.rounds.simulated_durations import Durations
from strategies.rules.factory import build, names


class Scripted:
    """Durations by (client, round); 1 second where nothing is said."""

    def __init__(self, **seconds):
        self.table = {tuple(map(int, key.strip("_").split("_"))): value for key, value in seconds.items()}

    def seconds(self, stage, kind, client, server_round):
        return self.table.get((client, server_round), 1.0)


class Told(Recorder):
    def late(self, node, reason):
        self.events.append(("late", node, reason))

    def discarded(self, node):
        self.events.append(("discarded", node))

    def clock(self, seconds):
        self.events.append(("clock", seconds))


def run(options, clients=4, rounds=3, due=(), grid=None, fraction=1.0, inner="fedavg", timeout=3600, **more):
    """`due`: requests, or the `RequestList` that is to be looked at afterwards."""
    told, requests = Told(), due if isinstance(due, RequestList) else RequestList(due)
    fedtu = FedTU(build(inner, fraction_train=fraction), requests=requests, listener=told, options=options)
    grid = federation(clients) if grid is None else grid
    result = fedtu.start(grid, adapter(noise("start")), num_rounds=rounds, timeout=timeout, **more)
    return flat(result.arrays), told, fedtu, grid


EQUAL = Durations("lognormal", 10.0, 0.0, 0.5)


@pytest.mark.parametrize("inner", names())
@pytest.mark.parametrize("options", [{"deadline": 1e9}, {"durations": EQUAL}, {"durations": EQUAL, "deadline": 11.0}])
def test_where_nobody_is_late_nothing_changes(inner, options):
    """To the last bit, whichever way answers are waited for, FedTU exchanges included."""
    due = [(2, request(1)), (3, request(2)), (3, request(0))]
    plain, told, _, _ = run(Options(), 5, due=due, inner=inner)
    other, told_other, _, _ = run(Options(**options), 5, due=due, inner=inner)
    assert np.array_equal(plain, other)
    assert told.of("reply", "exchange_started", "exchange_ended") == told_other.of(
        "reply", "exchange_started", "exchange_ended"
    )


def test_a_deadline_leaves_out_who_is_late():
    """Against the mean worked out by hand; the late client trains in the next round, which begins when it is free."""
    durations = Scripted(_2_1=25.0)
    model, told, _, _ = run(Options(deadline=10.0, durations=durations), clients=3, rounds=2)
    expected = noise("start").astype(np.float64)
    expected += sum((p + 1) * noise(p, 1) for p in (0, 1)) / 3
    expected += sum((p + 1) * noise(p, 2) for p in (0, 1)) / 3
    assert np.allclose(model, expected, atol=1e-6)
    assert told.of("late") == [("late", 2, "late: no reply within 10 s")] * 2, "round 2: free at 25, then 1 s, till 26"
    assert told.of("clock") == [("clock", 10.0), ("clock", 20.0)]
    assert not [e for e in told.of("reply") if not e[2]], "to be late is no failure"


def test_a_private_mean_counts_who_was_drawn():
    """Without noise and clipping: the late one is a zero among the three, since its lateness must not tell of it."""
    private = PrivateMean(0.0, 1e6)
    options = Options(deadline=10.0, durations=Scripted(_2_1=25.0), private_mean=private)
    model, told, _, _ = run(options, clients=3, rounds=1)
    assert np.allclose(model, noise("start") + (noise(0, 1) + noise(1, 1)) / 3, atol=1e-6)
    assert [e[1] for e in told.of("late")] == [2]
    with pytest.raises(ValueError, match="who is fast"):
        Options(oversample=2.0, private_mean=private)


def test_an_answer_to_an_earlier_round_is_counted_and_never_merged():
    model, told, _, _ = run(Options(deadline=10.0, durations=Scripted(_2_1=12.0)), clients=3, rounds=2)
    expected = noise("start").astype(np.float64)
    expected += sum((p + 1) * noise(p, 1) for p in (0, 1)) / 3
    expected += sum((p + 1) * noise(p, 2) for p in (0, 1, 2)) / 6
    assert np.allclose(model, expected, atol=1e-6)
    assert told.of("late", "discarded") == [("late", 2, "late: no reply within 10 s"), ("discarded", 2)]


def test_oversampling_asks_more_and_takes_the_first():
    """m = 2 of 6, 3 are asked: the two fastest count, and the time is that of the slower of these."""
    durations = Durations("pareto", 10.0, 1.0, 0.0, seed=3)
    model, told, _, grid = run(Options(oversample=1.5, durations=durations), 6, rounds=1, fraction=1 / 3)
    ((_, _, asked),) = told.of("exchange_started")
    assert len(asked) == 3 and grid.sent[message_keys.TRAIN] == 3
    by_time = sorted(asked, key=lambda client: durations.seconds("train", "train", client, 1))
    weights = {client: client + 1 for client in by_time[:2]}
    expected = noise("start") + sum(w * noise(c, 1) for c, w in weights.items()) / sum(weights.values())
    assert np.allclose(model, expected, atol=1e-6)
    assert told.of("late") == [("late", by_time[2], "late: 2 others had answered")]
    assert told.of("clock") == [("clock", durations.seconds("train", "train", by_time[1], 1))]


def test_the_first_that_are_drawn_are_those_of_today():
    plain, more = run(Options(), 9, fraction=1 / 3)[1], run(Options(oversample=2.0), 9, fraction=1 / 3)[1]
    for before, now in zip(plain.of("exchange_started"), more.of("exchange_started"), strict=True):
        assert set(before[2]) < set(now[2]) and len(now[2]) == 6


def test_a_client_that_fails_is_no_answer_to_wait_for():
    """Another takes its place in the round."""
    broken = MemoryGrid({**{p: honest(p) for p in range(3)}, 1: lambda message: Error(code=1, reason="no memory")})
    _, told, _, _ = run(Options(oversample=1.5, durations=Scripted(_2_1=5.0)), 3, 1, grid=broken, fraction=2 / 3)
    good = [e[1] for e in told.of("reply") if e[2]]
    assert len(good) == 2 and 1 not in good


def test_a_request_is_not_dropped_by_a_deadline():
    """It takes longer than the deadline, and is served; it takes longer than the timeout, and is served later."""
    due = RequestList([(1, request(1))])
    told = run(Options(deadline=10.0, durations=Scripted(_1_1=50.0)), 3, 2, due)[1]
    assert due.served_in == {"r1": 1}
    assert told.of("clock")[0] == ("clock", 60.0), "50 s for FedTU; client 1 then trains 50 s more, 10 are waited for"
    due = RequestList([(1, request(1))])
    run(Options(deadline=10.0, durations=Scripted(_1_1=90.0)), 3, 4, due, timeout=60)
    assert due.attempts == {"r1": 2} and due.served_in == {"r1": 3}
    assert due.reasons["r1"] == "no reply within 60 s"


def test_real_time():
    """By the machine's clock: the round goes on after the deadline, and a later answer is thrown away."""
    slow = {2: 0.3}

    def delay(message):
        first = message.content["config"].get("server-round") == 1
        return slow.get(message.metadata.dst_node_id - 1000, 0) if first else 0

    def until_late(server_round, arrays):
        if server_round == 2:
            time.sleep(0.35)

    told = run(Options(deadline=0.15), 3, 3, grid=LateGrid(federation(3), delay), evaluate_fn=until_late)[1]
    assert [e[:2] for e in told.of("late", "discarded")] == [("late", 2), ("discarded", 2)]
    assert [e[1:] for e in told.of("exchange_ended")] == [("train", 2, 1), ("train", 3, 0), ("train", 3, 0)]


def test_a_node_that_is_at_work_is_not_asked_who_it_is():
    nodes, grid, asked = NodeMap(), federation(3), []
    nodes.refresh(grid)
    nodes.engaged = lambda: {1001}
    nodes.ask(grid, lambda partition: asked.append(partition) or {})
    assert asked == [0, 2]


def test_the_clock_goes_on_after_a_resume():
    options = Options(deadline=12.0, durations=Durations("pareto", 10.0, 1.0, 0.3, seed=5))
    whole, told, _, _ = run(options, 5, 6)
    arrays, state = told.checkpoints[3, "round"]
    again = Told()
    fedtu = FedTU(build("fedavg"), listener=again, options=options)
    fedtu.load_state_dict(state)
    result = fedtu.start(federation(5), adapter(arrays), num_rounds=6, start_round=4)
    assert np.array_equal(flat(result.arrays), whole)
    assert again.of("clock", "late") == [e for e in told.of("clock", "late")][-len(again.of("clock", "late")) :]
    assert told.of("late"), "somebody was late"


@pytest.mark.parametrize("wrong", [{"deadline": 0.0}, {"oversample": 0.5}, {"oversample": float("inf")}])
def test_values_out_of_range(wrong):
    with pytest.raises(ValueError, match="expected deadline > 0 and oversample >= 1"):
        Options(**wrong)


def test_a_message_that_flower_does_not_take_is_one_without_an_answer():
    """For one it gives no id, and for too large ones none at all: neither is waited for beyond the timeout."""

    class Refusing(LateGrid):
        def push_messages(self, messages):
            ids = super().push_messages(messages)
            train = messages[0].metadata.message_type == message_keys.TRAIN
            return [None, *ids[1:-1]] if train else ids

    told = run(Options(deadline=5.0), 3, 1, grid=Refusing(federation(3), lambda message: 0), timeout=0.2)[1]
    lost = "no reply within 0.2 s"
    assert told.of("reply") == [("reply", 0, False, lost), ("reply", 1, True, ""), ("reply", 2, False, lost)]


def test_who_is_still_at_work_after_the_deadline_is_not_to_be_asked_until_the_stage_ends():
    """By the machine's clock: client 1 goes on training when its round is over, and whoever asks would wait for it."""
    nodes, seen = NodeMap(), {}

    class Looking(Told):
        def checkpoint(self, server_round, moment, arrays, state):
            seen[server_round] = set(nodes.engaged())

    inner = federation(3)
    grid = LateGrid(inner, lambda m: 9.0 if m.metadata.dst_node_id == 1001 else 0.0)
    options = Options(deadline=0.03)
    nodes.refresh(inner)
    told = Looking()
    FedTU(build("fedavg"), listener=told, nodes=nodes, options=options).start(grid, adapter(noise("s")), num_rounds=1)
    assert seen == {1: {1001}} and not nodes.engaged()
    assert not told.of("clock"), "no clock is simulated"


@pytest.mark.parametrize(("deadline", "late"), [(9.0, True), (10.0, False), (11.0, False)])
def test_who_does_not_answer_in_the_whole_timeout_has_failed(deadline, late):
    """It is late only where the deadline is the shorter one."""
    options = Options(deadline=deadline, durations=Scripted(_1_1=25.0))
    _, told, _, _ = run(options, clients=2, rounds=1, timeout=10)
    assert told.of("late") == ([("late", 1, "late: no reply within 9 s")] if late else [])
    assert [event for event in told.of("reply") if not event[2]] == (
        [] if late else [("reply", 1, False, "no reply within 10 s")]
    )
    assert told.of("exchange_ended") == [("exchange_ended", "train", 1, 1)]


def test_further_clients_are_drawn_by_seed_stage_and_round():
    """By Python's own sampler among those that are not drawn yet; exchanges are told in the clients' order."""
    found = []
    for seed, stage in ((3, "s"), (4, "s"), (3, "t")):
        told = run(Options(oversample=2.0, seed=seed, stage=stage), 12, rounds=2, fraction=0.25)[1]
        for server_round, (_, _, asked) in enumerate(told.of("exchange_started"), 1):
            with seeded(seed, stage, server_round, "train"):
                first = random.sample(range(12), 3)
            with seeded(seed, stage, server_round, "oversample"):
                more = random.sample([c for c in range(12) if c not in first], 3)
            assert asked == sorted(first + more)
            found.append(tuple(more))
    assert len(set(found)) > 4


def test_an_error_counts_neither_as_an_answer_nor_as_one_of_the_others():
    """Two of three are waited for: one answers, one fails, one is slow. How many have come of how many is told."""

    class Counting(Told):
        def arrived(self, answers, sent):
            self.events.append(("arrived", answers, sent))

    grid, told = federation(3), Counting()
    grid.nodes[1] = lambda message: Error(code=1, reason="no memory")
    options = Options(oversample=1.5, deadline=10.0, durations=Scripted(_1_1=2.0, _2_1=25.0))
    fedtu = FedTU(build("fedavg", fraction_train=2 / 3), listener=told, options=options)
    fedtu.start(grid, adapter(noise("start")), num_rounds=1)
    assert told.of("late") == [("late", 2, "late: no reply within 10 s")]
    assert told.of("arrived") == [("arrived", 1, 3), ("arrived", 2, 3)]
