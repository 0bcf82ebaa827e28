"""Buffered asynchronous rounds: the paper's step, the barrier of unlearning, failures, real time and resume."""

import heapq
import itertools
import random

import numpy as np
import pytest
from flwr.app import Error
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fedtu_clients import Recorder, adapter, content, federation, flat, noise, request
from support.late import LateGrid

from strategies import message_keys
from strategies.metric_schema import Number
from strategies.protocols.base import ByUnlearning
from strategies.rounds.buffered import BufferedFedTU
from strategies.rounds.fedtu import FedTU, Options, RequestList
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rounds.model_versions import Buffer, Versions
from strategies.rounds.simulated_durations import Durations
from strategies.rounds.update_bounds import Bounds
from strategies.rules.factory import build


class Table:
    """Seconds by (kind, client, round), and `usual` where nothing is said."""

    def __init__(self, table=None, usual=1.0):
        self.table, self.usual = table or {}, usual

    def seconds(self, stage, kind, client, server_round):
        return self.table.get((kind, client, server_round), self.usual)


class Told(Recorder):
    def barrier(self, server_round, version, discarded):
        self.events.append(("barrier", server_round, version, discarded))

    def discarded(self, node):
        self.events.append(("discarded", node))

    def clock(self, seconds):
        self.events.append(("clock", seconds))


def buffered(size, concurrency, durations, *, due=(), inner="fedavg", exponent=0.5, listener=None, **more):
    """`due`: requests, or the `RequestList` that is to be looked at afterwards. `more`: options, and how to serve."""
    buffer = Buffer(size, concurrency, exponent)
    requests, serving = due if isinstance(due, RequestList) else RequestList(due), more.pop("serving", None)
    options = Options(buffer=buffer, durations=durations, **more)
    return BufferedFedTU(build(inner), requests=requests, serving=serving, listener=listener, options=options)


# -- the step ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.0, 0.5, 2.0])
@pytest.mark.parametrize(("clients", "size"), [(4, 1), (4, 3), (6, 2)])
def test_fedbuff_by_its_definition(clients, size, exponent):
    """An event queue with NumPy: all clients train at any time, each round takes the first K answers."""
    durations = Durations("lognormal", 10.0, 1.0, 0.5, seed=clients)
    ours = buffered(size, clients, durations, exponent=exponent)
    result = ours.start(federation(clients), adapter(noise("start")), num_rounds=7)
    model, idle, now, queue = noise("start").astype(np.float64), set(range(clients)), 0.0, []
    for server_round in range(1, 8):
        for client in idle:
            when = now + durations.seconds("train", message_keys.TRAIN, client, server_round)
            heapq.heappush(queue, (when, client, server_round))
        idle = set()
        total = weights = 0.0
        for _ in range(size):
            now, client, began = heapq.heappop(queue)
            staleness = server_round - began
            total += (client + 1) * (1 + staleness) ** -exponent * noise(client, began).astype(np.float64)
            weights += client + 1
            idle.add(client)
        model = model + total / weights
    assert np.allclose(flat(result.arrays), model, atol=1e-5)


@pytest.mark.parametrize("inner", ["fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedadagrad"])
def test_without_staleness_it_is_the_synchronous_round(inner):
    """K = M = all clients, equal times, requests included: the same bits."""
    due = [(2, request(1)), (3, request(2)), (3, request(0))]
    told, ours = Told(), Told()
    plain = FedTU(build(inner), requests=RequestList(due), listener=told)
    other = buffered(5, 5, Table(), due=due, inner=inner, listener=ours)
    start = {"initial_arrays": adapter(noise("start")), "num_rounds": 4}
    expected, found = plain.start(federation(5), **start), other.start(federation(5), **start)
    assert np.array_equal(flat(expected.arrays), flat(found.arrays))
    assert expected.train_metrics_clientapp == found.train_metrics_clientapp
    assert told.of("reply", "exchange_started", "checkpoint") == ours.of("reply", "exchange_started", "checkpoint")
    assert [e[3] for e in ours.of("barrier")] == [0, 0], "nobody was at work"


def test_what_a_stale_update_weighs():
    assert [Buffer(1, 1).weight(s) for s in (0, 3, 8)] == [1.0, 0.5, 1 / 3]
    assert Buffer(1, 1, 0.0).weight(9) == 1.0
    for wrong in ((0, 1), (1, 0), (1, 1, -1.0), (1, 1, float("nan"))):
        with pytest.raises(ValueError, match="expected"):
            Buffer(*wrong)


# -- the barrier -------------------------------------------------------------------------------------------------


class Knowing:
    """A federation in which it shows who knew what: number u of a model is what is known of client u's records.

    Training adds the client's own knowledge, unless it has buried its records, and strengthens all that the model which
    it started from knew. Unlearning removes what is known of the client.
    """

    def __init__(self, clients):
        self.clients, self.buried = clients, set()
        self.grid = MemoryGrid({client: self.node(client) for client in range(clients)})

    def node(self, client):
        def answer(message):
            model = flat(message.content["arrays"]).copy()
            if message.metadata.message_type == message_keys.UNLEARN:
                self.buried.add(client)
                model[client] = 0
                return content(model)
            model *= 1.5
            if client not in self.buried:
                model[client] += 1
            return content(model)

        return answer

    def run(self, fedtu, rounds, timeout=3600.0):
        """The models after each round, by round."""
        seen = {}
        start = adapter(np.zeros(self.clients))
        fedtu.start(self.grid, start, rounds, timeout, evaluate_fn=lambda r, a: seen.__setitem__(r, flat(a).copy()))
        return seen


def knowledge_after(seen, served):
    """What the models from the round on in which a request was served know of that client."""
    return [seen[r][client] for client, first in served.items() for r in seen if r >= first]


def interleavings():
    """Three clients of which two train, three rounds: each answer comes soon or late; who asks, and when."""
    keys = [(kind, c, r) for kind in (message_keys.TRAIN,) for c in range(3) for r in (1, 2)]
    for slow in itertools.product((1.0, 3.5), repeat=len(keys)):
        for asking, when in ((0, 2), (1, 3)):
            yield dict(zip(keys, slow, strict=True)), asking, when


def tainted():
    """In how many interleavings what was forgotten is known again, of how many."""
    found = []
    for table, asking, when in interleavings():
        told, requests = Told(), RequestList([(when, request(asking))])
        seen = Knowing(3).run(buffered(1, 2, Table(table), due=requests, listener=told), 4)
        served = {asking: requests.served_in[f"r{asking}"]}
        found.append(any(knowledge_after(seen, served)))
        assert [e[1] for e in told.of("barrier")] == [when]
    return sum(found), len(found)


@pytest.mark.slow
def test_no_interleaving_passes_the_barrier():
    assert tainted() == (0, 128)


@pytest.mark.slow
def test_without_the_barrier_they_would(monkeypatch):
    monkeypatch.setattr(Versions, "admits", lambda self, version: True)
    leaking, _ = tainted()
    assert leaking > 20, "those in which a client is at work from before the unlearning until after it"


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 6).flatmap(
        lambda clients: st.tuples(
            st.just(clients),
            st.integers(1, clients),
            st.integers(1, clients),
            st.dictionaries(st.integers(0, clients - 1), st.integers(1, 6), min_size=1),
        )
    ),
    st.sampled_from(["fedavg", "fedprox"]),
    st.integers(0, 10**6),
    st.sampled_from([0.3, 1.0, 3.0]),
    st.sampled_from([15.0, 100.0, 1e12]),
)
@pytest.mark.slow
def test_what_is_forgotten_is_never_known_again(federation_of, inner, seed, spread, timeout):
    """Any number of clients, K, M and requests, with heavy-tailed times, also of the requests."""
    clients, size, concurrency, due = federation_of
    told = Told()
    requests = RequestList([(when, request(client)) for client, when in due.items()])
    durations = Durations("pareto", 10.0, spread, 0.3, seed)
    each = ByUnlearning(summed=True)
    fedtu = buffered(
        size, concurrency, durations, due=requests, inner=inner, listener=told, serving=each, extra_rounds=4
    )
    knowing = Knowing(clients)
    seen = knowing.run(fedtu, 8, timeout)
    served = {int(name[1:]): when for name, when in requests.served_in.items()}
    assert not any(knowledge_after(seen, served))
    assert [e[1] for e in told.of("barrier")] == sorted(set(served.values()))
    if timeout == 1e12:
        assert served == due, "a FedTU exchange waits for its clients"
        sent = knowing.grid.sent[message_keys.TRAIN]
        merged = sum(e[2] for e in told.of("exchange_ended") if e[1] == "train")
        at_work = sent - merged - len(told.of("discarded"))
        assert 0 <= at_work <= clients, "each answer is merged, thrown away, or on its way at the end"


def test_what_the_barrier_stops_is_counted():
    """Client 2 is at work from round 1 on, client 0 forgets in round 2: version 1 is a step, 2 the unlearning."""
    table = {(message_keys.TRAIN, 2, 1): 100.0}
    told = Told()
    fedtu = buffered(2, 3, Table(table), due=[(2, request(0))], listener=told)
    knowing = Knowing(3)
    seen = knowing.run(fedtu, 3)
    assert told.of("barrier") == [("barrier", 2, 2, 1)] and fedtu.versions.barrier == 2
    assert seen[2][0] == seen[3][0] == 0 and seen[3][1] > 0


def test_a_request_that_is_not_served_raises_no_barrier():
    """The exchange misses the timeout; the next one serves it, and only then what is on its way is void."""
    table = {(message_keys.UNLEARN, 0, 2): 500.0}
    told, requests = Told(), RequestList([(2, request(0))])
    fedtu = buffered(1, 2, Table(table), due=requests, listener=told)
    fedtu.start(Knowing(3).grid, adapter(np.zeros(3)), 5, timeout=400)
    assert requests.attempts["r0"] >= 1 and requests.reasons["r0"] == "no reply within 400 s"
    assert [e[1] for e in told.of("barrier")] == [requests.served_in["r0"]] != [2]
    assert [e[1] for e in told.of("reply") if not e[2]] == [0], "who answered while the exchange waited has not failed"


@pytest.mark.parametrize("on_unlearn", ["keep", "reset"])
def test_the_servers_moments_take_in_nothing_from_before_the_barrier(on_unlearn):
    """As in synchronous rounds, `keep` keeps what they held at the barrier; after `reset` they know nothing."""
    table = {(message_keys.TRAIN, 2, 1): 3.5}
    states = {}

    class Watching(Told):
        def checkpoint(self, server_round, moment, arrays, state):
            states[server_round, moment] = {
                k: v.copy() for k, v in state.items() if not k.startswith(("buffer/", "clock/"))
            }

    options = {"inner": "fedavgm", "server_state_on_unlearn": on_unlearn, "seed": 1}
    Knowing(3).run(buffered(1, 2, Table(table), due=[(2, request(0))], listener=Watching(), **options), 4)
    ((name, before),) = states[1, "round"].items()
    after = states[2, "after_unlearn"]
    assert np.array_equal(after[name], before) if on_unlearn == "keep" else after == {}
    if on_unlearn == "reset":
        assert all(states[r, "round"][name][0] == 0 for r in (2, 3, 4))


# -- failures ----------------------------------------------------------------------------------------------------


def test_a_round_ends_where_all_that_may_train_fail():
    grid = MemoryGrid({p: lambda message: Error(code=1, reason="no memory") for p in range(4)})
    told = Told()
    start = noise("start")
    result = buffered(2, 3, Table(), listener=told).start(grid, adapter(start), num_rounds=2)
    assert np.array_equal(flat(result.arrays), start)
    assert all(not e[2] for e in told.of("reply")) and len(told.of("round_completed")) == 2


@pytest.mark.parametrize("concurrency", [1, 2, 3])
def test_a_round_asks_no_more_clients_than_may_train_where_all_fail(concurrency):
    told = Told()
    grid = MemoryGrid({p: lambda message: Error(code=1, reason="no memory") for p in range(6)})
    buffered(concurrency, concurrency, Table(), listener=told).start(grid, adapter(noise("start")), num_rounds=2)
    assert grid.sent[message_keys.TRAIN] == 2 * concurrency
    assert told.of("exchange_ended") == [("exchange_ended", "train", 0, concurrency)] * 2


def test_nobody_is_left_to_ask():
    """Two clients, of which one fails: a step with one update, though K is 2."""
    nodes = {0: federation(1).nodes[0], 1: lambda message: Error(code=1, reason="no memory")}
    result = buffered(2, 2, Table()).start(MemoryGrid(nodes), adapter(noise("start")), num_rounds=1)
    assert np.allclose(flat(result.arrays), noise("start") + noise(0, 1), atol=1e-6)


def test_no_client_of_a_buffer_counts_more_than_its_share():
    """The clients weigh 1 and 2; at most a half each."""
    fedtu = buffered(2, 2, Table(), bounds=Bounds(max_weight_share=0.5))
    result = fedtu.start(federation(2), adapter(noise("start")), num_rounds=1)
    assert np.allclose(flat(result.arrays), noise("start") + (noise(0, 1) + noise(1, 1)) / 2, atol=1e-6)


# -- real time ---------------------------------------------------------------------------------------------------


def test_real_time_with_a_lost_answer():
    """Client 1 is slow and client 2's first answer is lost for ever, as after a restart: it is asked again."""

    def delay(message):
        client, config = message.metadata.dst_node_id - 1000, message.content.config_records["config"]
        if message.metadata.message_type != message_keys.TRAIN:
            return 0.0
        if client == 2 and config["server-round"] == 1:
            return None
        return {1: 0.12}.get(client, 0.03)

    told, knowing, requests = Told(), Knowing(4), RequestList([(16, request(0))])
    fedtu = buffered(2, 3, None, due=requests, listener=told)
    seen = {}
    result = fedtu.start(
        LateGrid(knowing.grid, delay),
        adapter(np.zeros(4)),
        num_rounds=20,
        timeout=0.25,
        evaluate_fn=lambda r, a: seen.__setitem__(r, flat(a).copy()),
    )
    assert ("reply", 2, False, "no reply within 0.25 s") in told.events
    assert requests.served_in == {"r0": 16} and not any(knowledge_after(seen, {0: 16}))
    ((_, server_round, version, discarded),) = told.of("barrier")
    assert (server_round, version) == (16, 16) and discarded >= 1
    assert flat(result.arrays)[1] > 0 and len(told.of("round_completed")) == 20


def test_an_answer_that_comes_after_the_timeout_counts_for_nothing():
    """Client 1 takes three times as long as is waited for, each time: it failed, and its answers go nowhere."""
    grid, told = federation(3), Told()
    late = LateGrid(grid, lambda message: 0.15 if message.metadata.dst_node_id == 1001 else 0.02)
    result = buffered(1, 2, None, listener=told).start(late, adapter(noise("start")), num_rounds=14, timeout=0.05)
    assert ("reply", 1, False, "no reply within 0.05 s") in told.events
    assert 1 not in [e[1] for e in told.of("reply") if e[2]] and len(told.of("round_completed")) == 14
    assert np.isfinite(flat(result.arrays)).all()


def test_clients_of_asynchronous_rounds_get_the_proximal_term():
    grid = federation(2)
    buffered(1, 2, Table(), inner="fedprox").start(grid, adapter(noise("start")), num_rounds=1)
    sent = [record["config"][message_keys.PROXIMAL_MU] for kind, _, record in grid.log if kind == message_keys.TRAIN]
    assert set(sent) == {build("fedprox").proximal_mu} != {0}


# -- resume ------------------------------------------------------------------------------------------------------


def in_order(name, numbers):
    """Who is at work, by client: when each began, and when it is done."""
    return numbers[np.lexsort(numbers.T[::-1])] if name.endswith(("flights", "void")) else numbers


@pytest.mark.parametrize("stop", [(1, "round"), (3, "round"), (3, "after_unlearn"), (5, "round")])
def test_resumed_is_not_stopped(stop):
    """What was on its way is asked again, from the models of then; who works for nothing still does."""
    due = [(3, request(1)), (5, request(3))]
    durations = Durations("pareto", 10.0, 1.0, 0.3, seed=11)
    whole, again = Told(), Told()

    def make(requests, listener):
        return buffered(2, 4, durations, due=requests, inner="fedadam", listener=listener, seed=3)

    full = make(due, whole).start(federation(6), adapter(noise("start")), num_rounds=7)
    arrays, state = whole.checkpoints[stop]
    server_round, moment = stop
    left = [(r, q) for r, q in due if r > server_round]
    resumed = make(left, again)
    resumed.load_state_dict(state)
    first = server_round if moment == "after_unlearn" else server_round + 1
    result = resumed.start(federation(6), adapter(arrays), num_rounds=7, start_round=first)
    assert np.array_equal(flat(result.arrays), flat(full.arrays))
    for kind in ("clock", "barrier", "discarded", "reply"):
        assert again.of(kind) == whole.of(kind)[len(whole.of(kind)) - len(again.of(kind)) :]
    for key, (values, states) in again.checkpoints.items():
        assert np.array_equal(values, whole.checkpoints[key][0])
        assert states.keys() == whole.checkpoints[key][1].keys()
        assert f"buffer/model/{states['buffer/versions'][0]}/adapter" not in states, "that is the checkpoint's own"
        for name, numbers in states.items():
            np.testing.assert_array_equal(in_order(name, numbers), in_order(name, whole.checkpoints[key][1][name]))
    assert len(whole.of("barrier")) == 2 and sum(e[3] for e in whole.of("barrier")) > 0


def test_in_real_time_a_resumed_run_begins_from_the_present_model():
    told = Told()
    buffered(2, 3, None, listener=told).start(federation(4), adapter(noise("start")), num_rounds=3)
    arrays, state = told.checkpoints[2, "round"]
    assert [name for name in state if name.startswith(("buffer/", "clock/"))] == ["buffer/versions"]
    resumed = buffered(2, 3, None)
    resumed.load_state_dict(state)
    result = resumed.start(federation(4), adapter(arrays), num_rounds=4, start_round=3)
    assert resumed.versions.now == 4 and np.isfinite(flat(result.arrays)).all()


def test_what_cannot_be():
    for kind, options in ((BufferedFedTU, Options()), (FedTU, Options(buffer=Buffer(1, 1)))):
        with pytest.raises(ValueError, match="and BufferedFedTU for"):
            kind(build("fedavg"), options=options)
    with pytest.raises(ValueError, match="take an aggregator"):
        BufferedFedTU(FlowerFedAvg(), options=Options(buffer=Buffer(1, 1)))
    for wrong in ({"deadline": 1.0}, {"oversample": 2.0}):
        with pytest.raises(ValueError, match="asynchronous rounds have no"):
            Options(buffer=Buffer(1, 1), **wrong)


def test_who_was_at_work_and_is_gone_when_a_run_goes_on_is_named(caplog):
    """Its work is lost; that of the others is asked for again."""
    told = Told()
    durations = Durations("lognormal", 10.0, 1.0, 0.3, seed=11)
    buffered(1, 4, durations, listener=told, seed=3).start(federation(4), adapter(noise("start")), num_rounds=2)
    arrays, state = told.checkpoints[2, "round"]
    working = sorted(int(client) for client in state["buffer/flights"][:, 0])
    assert len(working) == 3
    grid = federation(4)
    del grid.nodes[working[0]]
    resumed = buffered(1, 4, durations, seed=3)
    resumed.load_state_dict(state)
    resumed.start(grid, adapter(arrays), num_rounds=3, start_round=3)
    lost = [r.getMessage() for r in caplog.records if "were at work when the run broke off" in r.getMessage()]
    assert len(lost) == 1 and f"clients {working[0]} were" in lost[0]
    assert {client for kind, client, _ in grid.log if kind == message_keys.TRAIN} >= set(working[1:])


def test_a_model_that_is_the_checkpoints_own_is_kept_once_also_where_a_round_changed_nothing():
    """Clients 1 and 2 fail at once and the round ends, while client 0 works on from the model that there still is."""
    grid, told = federation(3), Told()
    for client in (1, 2):
        grid.nodes[client] = lambda message: Error(code=1, reason="no memory")
    table = Table({(message_keys.TRAIN, 0, 1): 50.0})
    fedtu = buffered(2, 2, table, listener=told)
    fedtu.start(grid, adapter(noise("start")), num_rounds=1)
    state = told.checkpoints[1, "round"][1]
    at_work = state["buffer/flights"].tolist()
    assert [(row[0], row[1], row[4]) for row in at_work] == [(0, 0, 50.0)] and state["buffer/versions"][0] == 0
    assert not [name for name in state if name.startswith("buffer/model/")]


# -- who is drawn and who counts ---------------------------------------------------------------------------------


def test_those_that_work_for_nothing_are_no_clients_at_work_and_are_discarded_once():
    """Client s is slow from round 1 on; a request in round 2 voids its work, one in round 3 that of others alone."""
    first = Told()
    buffered(1, 2, Table(), listener=first).start(federation(3), adapter(noise("start")), num_rounds=1)
    ((_, _, drawn),) = first.of("exchange_started")
    (idle,) = {0, 1, 2} - set(drawn)
    slow, other = drawn
    told, table = Told(), Table({(message_keys.TRAIN, slow, 1): 50.0})
    due = [(2, request(idle, 1, "a")), (3, request(idle, 1, "b"))]
    fedtu = buffered(1, 2, table, due=due, listener=told)
    fedtu.start(federation(3), adapter(noise("start")), num_rounds=3)
    assert told.of("barrier") == [("barrier", 2, 2, 1), ("barrier", 3, 4, 1)]
    started = [sorted(event[2]) for event in told.of("exchange_started") if event[1] == "train"]
    assert started[:2] == [sorted(drawn), sorted({idle, other})], "two train at any time, beside the one for nothing"
    kept = {int(name.split("/")[2]) for name in told.checkpoints[3, "round"][1] if name.startswith("buffer/model/")}
    assert kept <= {0, fedtu.versions.now, fedtu.versions.now - 1}


def test_a_buffer_that_holds_some_takes_no_more_than_are_missing():
    """One answer after 1 s, two after 2 s: K = 2 is the first and the first of these; how many there are is told."""

    class Counting(Told):
        def arrived(self, answers, sent):
            self.events.append(("arrived", answers, sent))

    told, table = Counting(), Table({(message_keys.TRAIN, p, 1): 1.0 + (p > 0) for p in range(3)})
    fedtu = buffered(2, 3, table, listener=told)
    result = fedtu.start(federation(3), adapter(noise("start")), num_rounds=1)
    expected = noise("start") + (noise(0, 1) + 2 * noise(1, 1)) / 3
    np.testing.assert_allclose(flat(result.arrays), expected, atol=1e-6)
    assert told.of("arrived") == [("arrived", 1, 2), ("arrived", 2, 2)]


@pytest.mark.parametrize(
    ("inner", "options"),
    [
        ("fednova", {}),
        ("fedavg", {"numbers": {"train": {"num-examples": Number(1, 9), "train-steps": Number(3, 9)}}}),
    ],
)
def test_an_answer_that_lacks_a_number_or_has_it_out_of_range_takes_no_place_in_a_buffer(inner, options):
    """Client 0 tells 2 steps, or none where the aggregator needs them: the step is made of the other two."""
    grid, told = federation(3), Told()
    if inner == "fednova":
        grid.nodes[0] = lambda message: content(flat(message.content["arrays"]), train_loss=0.1)
    fedtu = buffered(2, 3, Table(), inner=inner, listener=told, **options)
    fedtu.start(grid, adapter(noise("start")), num_rounds=1)
    assert told.of("exchange_ended") == [("exchange_ended", "train", 2, 1)]
    assert {event[1]: event[2] for event in told.of("reply")} == {0: False, 1: True, 2: True}


@pytest.mark.parametrize("good", [True, False])
def test_a_buffer_without_any_good_answer_is_warned_of(good, caplog):
    grid = federation(2)
    if not good:
        grid.nodes = {p: lambda message: Error(code=1, reason="off") for p in range(2)}
    buffered(1, 2, Table()).start(grid, adapter(noise("start")), num_rounds=1)
    assert ("no valid reply, the model stays as it is" in caplog.text) is not good


def test_clients_are_drawn_by_seed_stage_round_and_how_many_were_asked():
    """By Python's own sampler among those that do nothing and were not asked in the round, told in their order."""
    found = []
    for seed, stage, server_round in ((3, "s", 1), (4, "s", 1), (3, "t", 1), (3, "s", 2)):
        told, grid = Told(), federation(11)
        grid.nodes = {p: lambda message: Error(code=1, reason="off") for p in range(11)}
        fedtu = buffered(2, 3, Table(), listener=told, seed=seed, stage=stage)
        fedtu.start(grid, adapter(noise("start")), num_rounds=server_round, start_round=server_round)
        first, more = (event[2] for event in told.of("exchange_started"))
        draw = [random.Random(f"{seed}/{stage}/{server_round}/train/{asked}") for asked in (0, 3)]
        assert first == sorted(draw[0].sample(range(11), 3))
        assert more == sorted(draw[1].sample([p for p in range(11) if p not in first], 2)), "two of the three failed"
        found += [tuple(first), tuple(more)]
    assert len(set(found)) > 5
