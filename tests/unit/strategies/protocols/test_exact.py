"""Exact erasure against federations that never had the demanded records, bit for bit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from flwr.app import Error, RecordDict
from flwr.app import MetricRecord as Metrics
from support.erasing import SETTINGS
from support.fedtu_clients import Recorder, adapter, content, flat

from strategies import message_keys
from strategies.protocols.base import ByUnlearning, UnlearningProtocol
from strategies.protocols.by_shard import ByShard
from strategies.protocols.exact import ExactProtocol
from strategies.protocols.update_history import MemoryHistory
from strategies.rounds.fedtu import FedTU, Options, RequestList, UnlearnRequest
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rounds.nodes import NodeMap
from strategies.rounds.update_bounds import Bounds
from strategies.rules.factory import build
from strategies.rules.fedadam import FedAdam
from strategies.rules.server_step import ServerStep
from strategies.rules.shard_rules import ShardRules
from strategies.shards import Shards, balanced, dealt

SIZE, RATE, EPOCHS = 6, 0.05, 3
LABELS = {"finetune": "train", "unlearn": "unlearn"}
START = np.linspace(-1, 1, SIZE, dtype=np.float32)


class Client:
    """Gradient descent in a seeded order on the rows that are left of a least-squares problem."""

    def __init__(self, number: int, without: frozenset[int] = frozenset()) -> None:
        rng = np.random.default_rng(1000 + number)
        rows = number + 2
        self.number, self.x, self.y = number, rng.normal(size=(rows, SIZE)), rng.normal(size=rows)
        self.live = [row for row in range(rows) if row not in without]
        self.silent, self.forgets = False, True
        self.did: dict[tuple[str, int, int], list[int]] = {}
        self.leaves_out: dict[tuple[str, int, int], set[int]] = {}
        """Rows that it begins to withhold by itself right before a round, by stage, round and replay."""

    def __call__(self, message):
        config = message.content["config"]
        if message.metadata.message_type == message_keys.BURY:
            asked = {int(name.split("/")[1]) for name in config["record-ids"]}
            self.live = [row for row in self.live if row not in asked or not self.forgets]
            return RecordDict({"metrics": Metrics({"num-examples": len(asked), "live-records": len(self.live)})})
        if self.silent:
            return Error(code=2, reason="off")
        replay = config.get("replay", 0)
        work = config["stage"], config["server-round"]
        self.live = [row for row in self.live if row not in self.leaves_out.get((*work, replay), ())]
        self.did[*work, replay] = list(self.live)
        said = {}
        if replay:
            then = self.did[*work, config["replayed-before"]]
            said = {"live-records": len(self.live), "changed-records": len(set(self.live) ^ set(then))}
        order = list(self.live)
        assert order, "a client without records is asked to train"
        rng = random.Random(f"{config['stage']}/{config['server-round']}/{self.number}")
        received = flat(message.content["arrays"])
        phi = received.astype(np.float64)
        for _ in range(EPOCHS):
            rng.shuffle(order)
            for row in order:
                gradient = self.x[row] * (self.x[row] @ phi - self.y[row])
                phi = phi - RATE * (gradient + config.get("proximal-mu", 0.0) * (phi - received))
        said["train-steps"] = EPOCHS * len(order)
        return content(phi.astype(np.float32), examples=len(order), **said)


@dataclass
class Plan:
    """A federation, its rounds, and who asks in which round of unlearn for which rows."""

    aggregator: str
    clients: int
    fraction: float
    rounds: dict[str, int]
    demands: dict[int, dict[int, frozenset[int]]] = field(default_factory=dict)
    every: int = 1
    carries_on: bool = False
    cut: int | None = None
    """After which round of unlearn the run is stopped, and resumed."""
    bounds: Bounds | None = None
    shards: Shards = field(default_factory=lambda: Shards((0,)))

    @classmethod
    def sharded(cls, seed: int) -> Plan:
        """A drawn plan whose clients are dealt to two to four shards."""
        plan, rng = cls.drawn(seed), random.Random(f"shards/{seed}")
        count = rng.randint(2, 4)
        plan.shards = rng.choice(
            [
                dealt(plan.clients, count, seed),
                balanced([client + 2 for client in range(plan.clients)], count),
                dealt(plan.clients, count, seed, set(plan.until(99))),
            ]
        )
        return plan

    @classmethod
    def drawn(cls, seed: int) -> Plan:
        rng = random.Random(seed)
        clients, unlearn = rng.randint(5, 7), rng.randint(3, 5)
        demands: dict[int, dict[int, frozenset[int]]] = {}
        for client in rng.sample(range(clients), rng.randint(1, 3)):
            rows = client + 2
            some = rng.sample(range(rows), rng.choice([1, rng.randint(1, rows), rows]))
            demands.setdefault(rng.randint(1, unlearn), {})[client] = frozenset(some)
        return cls(
            aggregator=sorted(SETTINGS)[seed % len(SETTINGS)],
            clients=clients,
            fraction=rng.choice([0.4, 0.6, 1.0]),
            rounds={"finetune": rng.randint(2, 6), "unlearn": unlearn},
            demands=demands,
            every=rng.choice([1, 1, 2, 3]),
            carries_on=rng.random() < 0.5,
            cut=rng.choice([None, rng.randint(1, unlearn - 1)]),
            bounds=rng.choice([None, Bounds(max_weight_share=0.35, max_update_norm=1.0)]),
        )

    def until(self, server_round: int) -> dict[int, frozenset[int]]:
        """All that is demanded up to a round, by client."""
        found: dict[int, frozenset[int]] = {}
        for at, asked in self.demands.items():
            if at <= server_round:
                for client, rows in asked.items():
                    found[client] = found.get(client, frozenset()) | rows
        return found

    def requests(self) -> RequestList:
        return RequestList(
            [
                (at, UnlearnRequest(f"r{client}", client, tuple(f"{client}/{row}" for row in sorted(rows))))
                for at, asked in sorted(self.demands.items())
                for client, rows in sorted(asked.items())
            ]
        )


class Run:
    """A federation that goes through finetune and unlearn."""

    def __init__(self, plan: Plan, clients: list[Client], requests: RequestList | None) -> None:
        self.plan, self.clients, self.requests = plan, clients, requests
        self.grid = MemoryGrid({client.number: client for client in clients}, keep_log=True)
        self.histories = [MemoryHistory(every=plan.every, models_only=True) for _ in range(plan.shards.count)]
        self.recorder, self.drawn_by_records = Recorder(), False
        self.state: dict[str, np.ndarray] = {}

    @property
    def history(self) -> MemoryHistory:
        (history,) = self.histories
        return history

    def rule(self) -> ServerStep:
        return build(self.plan.aggregator, fraction_train=self.plan.fraction, **SETTINGS[self.plan.aggregator])

    def protocol(self, name: str, inner: ServerStep, history: MemoryHistory) -> UnlearningProtocol:
        history.stage = name
        if name != "unlearn":
            return ByUnlearning(history=history)
        return ExactProtocol(inner, history, LABELS, carries_on=self.plan.carries_on)

    def stage(self, name: str, model: np.ndarray, rounds: range) -> np.ndarray:
        shards, nodes = self.plan.shards, NodeMap()
        rules = [self.rule() for _ in self.histories]
        parts = [self.protocol(name, *pair) for pair in zip(rules, self.histories, strict=True)]
        inner, serving, options = rules[0], parts[0], Options(stage=LABELS[name], bounds=self.plan.bounds)
        if shards.count > 1:
            inner, serving = ShardRules(rules, shards, nodes.partition), ByShard(shards, parts, self.histories)
            bounds = None if self.plan.bounds is None else self.plan.bounds.by_shard(shards)
            options = Options(stage=LABELS[name], bounds=bounds, fitting=shards)
        self.recorder = Recorder()
        fedtu = FedTU(
            inner,
            requests=self.requests if name == "unlearn" else None,
            serving=serving,
            listener=self.recorder,
            nodes=nodes,
            **{"eligible" if self.drawn_by_records else "trains": lambda client: bool(self.clients[client].live)},
            options=options,
        )
        if rounds.start > 1:
            fedtu.load_state_dict(self.state)
        elif name == "unlearn" and self.plan.carries_on:
            fedtu.go_on_from(self.state)
        result = fedtu.start(self.grid, adapter(model), num_rounds=rounds.stop - 1, start_round=rounds.start)
        self.state = fedtu.state_dict()
        return flat(result.arrays)

    def whole(self) -> tuple[dict[int, np.ndarray], np.ndarray]:
        """The model before each round's training in unlearn, and the final one."""
        last, cut = self.plan.rounds["unlearn"], self.plan.cut
        start = np.tile(START, self.plan.shards.count)
        model = self.stage("finetune", start, range(1, self.plan.rounds["finetune"] + 1))
        before = {}
        for part in [range(1, last + 1)] if cut is None else [range(1, cut + 1), range(cut + 1, last + 1)]:
            ends = {part.start - 1: model}
            model = self.stage("unlearn", model, part)
            kept = self.recorder.checkpoints
            ends |= {at: vector for (at, moment), (vector, _) in kept.items() if moment == "round"}
            before |= {at: ends[at - 1] for at in part}
            before |= {at: vector for (at, moment), (vector, _) in kept.items() if moment == "after_unlearn"}
        return before, model


def federation(plan: Plan, demanded: dict[int, frozenset[int]] | None = None) -> list[Client]:
    return [Client(number, (demanded or {}).get(number, frozenset())) for number in range(plan.clients)]


@pytest.mark.parametrize("plan", [*map(Plan.drawn, range(63)), *map(Plan.sharded, range(63))])
def test_the_model_and_the_moments_are_those_of_a_federation_that_never_had_the_records(plan):
    run = Run(plan, federation(plan), plan.requests())
    before, final = run.whole()
    assert {r for r in run.requests.served_in} == {f"r{c}" for asked in plan.demands.values() for c in asked}
    for at in sorted(plan.demands):
        never = Run(plan, federation(plan, plan.until(at)), None)
        expected, last = never.whole()
        np.testing.assert_array_equal(before[at], expected[at])
    # The last of them never had any of the records.
    np.testing.assert_array_equal(final, last)
    assert run.state.keys() == never.state.keys()
    for name, values in run.state.items():
        np.testing.assert_array_equal(values, never.state[name])


@pytest.mark.parametrize("seed", range(12))
def test_shards_that_nobody_asks_of_keep_their_numbers_hashes_and_stored_rounds(seed):
    plan = Plan.sharded(seed)
    run, idle = Run(plan, federation(plan), plan.requests()), Run(plan, federation(plan), None)
    (_, model), (_, without) = run.whole(), idle.whole()
    touched = {plan.shards.of_client[client] for client in plan.until(99)}
    found, expected = (np.split(each, plan.shards.count) for each in (model, without))
    for shard in set(range(plan.shards.count)) - touched:
        np.testing.assert_array_equal(found[shard], expected[shard])
        assert run.histories[shard].rounds() == idle.histories[shard].rounds()
        for past in (past for past in run.histories[shard].rounds() if past.stored):
            kept, same = (each.histories[shard].read(past) for each in (run, idle))
            np.testing.assert_array_equal(flat(kept.sent), flat(same.sent))
    again = {c for kind, c, content in run.grid.log if kind == message_keys.TRAIN and "replay" in content["config"]}
    assert {plan.shards.of_client[client] for client in again} <= touched


def asking(**changes) -> Plan:
    plan = Plan("fedadam", 5, 0.6, {"finetune": 4, "unlearn": 2}, {1: {3: frozenset({0})}})
    for name, value in changes.items():
        setattr(plan, name, value)
    return plan


@pytest.mark.parametrize("shards", [Shards((0,)), Shards((0, 1, 1, 0, 1))])
@pytest.mark.parametrize("planted", ["moments", "record", "draw"])
def test_what_survives_is_found_by_the_comparison(monkeypatch, planted, shards):
    asked, rounds = {1: {3: frozenset(range(5))}}, {"finetune": 6, "unlearn": 3}
    plan = asking(aggregator="fedadam", demands=asked, rounds=rounds, shards=shards)
    run, never = Run(plan, federation(plan), plan.requests()), Run(plan, federation(plan, plan.until(1)), None)
    expected = never.whole()[1]
    np.testing.assert_array_equal(Run(plan, federation(plan), plan.requests()).whole()[1], expected)
    if planted == "moments":
        monkeypatch.setattr(FedAdam, "load_state_dict", lambda self, state: None)
    if planted == "record":
        run.clients[3].forgets = False
    if planted == "draw":
        run.drawn_by_records = True
    assert not np.array_equal(run.whole()[1], expected)


def test_rounds_before_a_client_took_part_are_not_held_again():
    plan = asking(fraction=0.4, rounds={"finetune": 8, "unlearn": 1})
    run = Run(plan, federation(plan), plan.requests())
    run.stage("finetune", START, range(1, 9))
    first = next(i for i, past in enumerate(run.history.rounds()) if 3 in past.clients)
    sent = len(run.grid.log)
    run.stage("unlearn", START, range(1, 2))
    replayed = [
        record["config"]["server-round"]
        for kind, _, record in run.grid.log[sent:]
        if kind == message_keys.TRAIN and record["config"]["stage"] == "train"
    ]
    assert first > 0
    assert sorted(set(replayed)) == list(range(first + 1, 9))


def test_a_client_that_trains_on_a_model_of_another_shard_is_found_by_the_comparison(monkeypatch):
    """What a shard's clients learn leaks to those of another one."""
    plan = asking(aggregator="fedavg", fraction=1.0, shards=Shards((0, 1, 1, 0, 1)))
    run, never = Run(plan, federation(plan), plan.requests()), Run(plan, federation(plan, plan.until(1)), None)
    expected = never.whole()[1]
    part = Shards.part
    monkeypatch.setattr(Shards, "part", lambda self, model, shard: part(self, model, 0))
    assert not np.array_equal(run.whole()[1], expected)


@pytest.mark.parametrize("silent", [1, 2])
def test_a_silent_client_of_another_shard_keeps_nobody_waiting(silent):
    plan = asking(fraction=1.0, rounds={"finetune": 4, "unlearn": 1}, shards=Shards((0, 0, 1, 0, 1)))
    run = Run(plan, federation(plan), plan.requests())
    model = run.stage("finetune", np.tile(START, 2), range(1, 5))
    run.clients[silent].silent = True
    run.stage("unlearn", model, range(1, 2))
    assert run.requests.served_in == ({} if silent == 1 else {"r3": 1})
    assert ("client 1, which took part" in run.requests.reasons.get("r3", "")) is (silent == 1)


def test_a_silent_client_makes_it_impossible_and_is_named(caplog):
    plan = asking(fraction=1.0)
    run = Run(plan, federation(plan), plan.requests())
    model = run.stage("finetune", START, range(1, 5))
    lineage = run.history.rounds()
    run.clients[1].silent = True
    run.stage("unlearn", model, range(1, 2))
    (request,) = run.requests.pending(2)
    assert request.request_id == "r3"
    assert "client 1, which took part in round 1 of finetune, gave no valid reply" in run.requests.reasons["r3"]
    assert run.history.rounds()[: len(lineage)] == lineage, "the old rounds are still there"
    assert run.requests.served_in == {}


def test_a_client_whose_work_comes_out_otherwise_is_named():
    plan = asking(fraction=0.4, every=9, rounds={"finetune": 8, "unlearn": 1})
    run = Run(plan, federation(plan), plan.requests())
    model = run.stage("finetune", START, range(1, 9))
    first = run.history.rounds()[0].clients
    assert 3 not in first
    run.clients[first[-1]].y[0] += 1e-3
    run.stage("unlearn", model, range(1, 2))
    assert f"client {first[-1]} does not give what it gave in round 1 of finetune" in run.requests.reasons["r3"]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("fraction", [0.4, 1.0])
def test_a_client_that_withholds_what_nobody_serves_yet_is_held_again_as_if_it_had_asked(every, fraction):
    plan = asking(fraction=fraction, every=every, rounds={"finetune": 8, "unlearn": 1})
    for other in (0, 1, 2, 4):
        run = Run(plan, federation(plan), plan.requests())
        model = run.stage("finetune", START, range(1, 9))
        run.clients[other].live.remove(1)
        final = run.stage("unlearn", model, range(1, 2))
        assert run.requests.served_in == {"r3": 1}, run.requests.reasons
        never = Run(plan, federation(plan, {3: frozenset({0}), other: frozenset({1})}), None)
        np.testing.assert_array_equal(final, never.whole()[1])


def test_a_client_that_withholds_more_while_rounds_are_held_again_is_named_and_served_afterwards():
    plan = asking(fraction=1.0, rounds={"finetune": 4, "unlearn": 2})
    run = Run(plan, federation(plan), plan.requests())
    run.clients[3].leaves_out["train", 3, 1] = {2}
    model = run.stage("finetune", START, range(1, 5))
    final = run.stage("unlearn", model, range(1, 3))
    reason = "client 3 withholds other records in round 3 of finetune than when the replay began"
    assert reason in run.requests.reasons["r3"]
    assert run.requests.served_in == {"r3": 2}
    never = Run(plan, federation(plan, {3: frozenset({0, 2})}), None)
    np.testing.assert_array_equal(final, never.whole()[1])


def test_a_client_from_before_the_stored_rounds_keeps_the_others_waiting_and_is_named():
    plan = asking(fraction=0.4, rounds={"finetune": 8, "unlearn": 1})
    run = Run(plan, federation(plan), None)
    run.histories = [MemoryHistory(keep=6, models_only=True)]
    model = run.stage("finetune", START, range(1, 9))
    firsts = {c: next(i for i, p in enumerate(run.history.rounds()) if c in p.clients) for c in range(5)}
    early, late = min(firsts, key=firsts.__getitem__), max(firsts, key=firsts.__getitem__)
    assert firsts[early] < 2 <= firsts[late]
    plan.demands = {1: {early: frozenset({0}), late: frozenset({0})}}
    run.requests = plan.requests()
    run.stage("unlearn", model, range(1, 2))
    assert run.requests.served_in == {}
    reason = f"exact erasure: client {early}: a replay needs the updates from round {firsts[early] + 1} of finetune on"
    assert all(reason in run.requests.reasons[f"r{client}"] for client in (early, late))
    assert (1, "after_unlearn") not in run.recorder.checkpoints


def test_a_client_that_never_took_part_needs_no_work():
    plan = asking(fraction=0.2, rounds={"finetune": 1, "unlearn": 1})
    run = Run(plan, federation(plan), None)
    model = run.stage("finetune", START, range(1, 2))
    absent = next(c for c in range(5) if c not in run.history.rounds()[0].clients)
    plan.demands = {1: {absent: frozenset({0})}}
    run.requests = plan.requests()
    sent = len(run.grid.log)
    run.stage("unlearn", model, range(1, 2))
    held = [record["config"].get("stage") for _, _, record in run.grid.log[sent:]]
    assert run.requests.served_in == {f"r{absent}": 1}
    assert "train" not in held
