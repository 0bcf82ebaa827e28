"""The FedTU exchange, the judging of replies, reproducible sampling and resuming, on an in-memory federation."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.exception import AggregationError

from strategies import protocol
from strategies.factory import build, names
from strategies.fedtu import (
    ActorDied,
    FedTU,
    Listener,
    Listeners,
    NodeMap,
    NodeMapError,
    RequestList,
    UnlearnRequest,
)
from strategies.memory_grid import MemoryGrid
from strategies.nodes import OrderedGrid, seeded

SIZE = 12


def adapter(values) -> ArrayRecord:
    return ArrayRecord({"adapter": Array(np.asarray(values, dtype=np.float32))})


def flat(arrays: ArrayRecord) -> np.ndarray:
    return arrays["adapter"].numpy()


def content(values, examples: float = 2, **metrics) -> RecordDict:
    return RecordDict({"arrays": adapter(values), "metrics": MetricRecord({"num-examples": examples, **metrics})})


def noise(*labels) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(repr(labels).encode())).normal(size=SIZE).astype(np.float32)


def honest(partition: int, unlearned: np.ndarray | None = None):
    """Adds noise that depends on (partition, round) to what it receives; forgets by answering `unlearned`."""

    def answer(message: Message) -> RecordDict:
        received = flat(message.content["arrays"])
        round_ = int(message.content["config"]["server-round"])
        if message.metadata.message_type == protocol.UNLEARN:
            return content(received * 0.5 if unlearned is None else unlearned)
        if message.metadata.message_type == protocol.EVALUATE:
            return RecordDict({"metrics": MetricRecord({"num-examples": 1, "accuracy": 0.25})})
        return content(received + noise(partition, round_), examples=partition + 1, train_loss=0.1 * (partition + 1))

    return answer


def federation(count: int, **options) -> MemoryGrid:
    return MemoryGrid({p: honest(p) for p in range(count)}, keep_log=True, **options)


class Recorder(Listener):
    """Everything that was told, in order."""

    def __init__(self) -> None:
        self.events: list[tuple] = []
        self.checkpoints: dict[tuple[int, str], tuple[np.ndarray, dict]] = {}

    def round_started(self, round, total):
        self.events.append(("round_started", round, total))

    def exchange_started(self, kind, nodes):
        self.events.append(("exchange_started", kind, list(nodes)))

    def reply(self, node, ok, reason):
        self.events.append(("reply", node, ok, reason))

    def exchange_ended(self, kind, accepted, left_out, seconds):
        self.events.append(("exchange_ended", kind, accepted, left_out))

    def evaluating(self, round, moment):
        self.events.append(("evaluating", round, moment))

    def evaluated(self, round, moment, metrics, seconds):
        self.events.append(("evaluated", round, moment, dict(metrics)))

    def checkpoint(self, round, moment, arrays, state):
        self.events.append(("checkpoint", round, moment))
        self.checkpoints[round, moment] = (flat(arrays).copy(), {k: v.copy() for k, v in state.items()})

    def round_completed(self, round, arrays, metrics, seconds):
        self.events.append(("round_completed", round, dict(metrics)))

    def of(self, *kinds: str) -> list[tuple]:
        return [e for e in self.events if e[0] in kinds]


def request(node: int, count: int = 1, name: str | None = None) -> UnlearnRequest:
    return UnlearnRequest(name or f"r{node}", node, tuple(f"{node}-{i}" for i in range(count)))


def inners() -> list[flower.Strategy]:
    """Every aggregator here, and Flower's own that keep a copy of the model or change its dtype."""
    sampling = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
    ours = [build(name, **({"eta": 0.1} if "ada" in name or "yogi" in name else {})) for name in names()]
    theirs = [
        flower.FedAvgM(server_momentum=0.9, server_learning_rate=0.5, **sampling),
        flower.FedAdam(eta=0.1, **sampling),
        flower.QFedAvg(client_learning_rate=0.1, **sampling),
    ]
    return [*ours, *theirs]


def label(strategy: flower.Strategy) -> str:
    return f"{type(strategy).__module__.split('.')[0]}.{type(strategy).__name__}"


# ---------------------------------------------------------------------------------------------------- the exchange


@pytest.mark.parametrize("inner", inners(), ids=label)
def test_next_exchange_starts_from_the_unlearned_model(inner):
    """The trap of cached models: φ_u of round 3 reaches every sampled client bit for bit, and Δ is relative to it."""
    phi_u = noise("unlearned")
    grid = federation(4)
    grid.nodes[2] = honest(2, unlearned=phi_u)
    FedTU(inner, requests=RequestList([(3, request(2))])).start(grid, adapter(noise("start")), num_rounds=3)
    sent = [flat(c["arrays"]) for kind, _, c in grid.log if kind == "train" and c["config"]["server-round"] == 3]
    assert len(sent) == 4
    assert all(np.array_equal(s, phi_u) for s in sent)


@pytest.mark.parametrize("inner", inners(), ids=label)
def test_the_step_after_unlearning_is_relative_to_the_unlearned_model(inner):
    """Clients that answer what they got leave φ_u where it is but for momentum; without momentum exactly."""
    phi_u = noise("unlearned")
    grid = federation(3)
    for p in grid.nodes:
        grid.nodes[p] = lambda m: content(
            phi_u if m.metadata.message_type == protocol.UNLEARN else flat(m.content["arrays"]), train_loss=0.1
        )
    result = FedTU(inner, requests=RequestList([(2, request(1))])).start(grid, adapter(noise("start")), num_rounds=2)
    np.testing.assert_allclose(flat(result.arrays), phi_u, rtol=1e-6, atol=1e-6)


def test_flowers_fedavgm_alone_would_undo_it():
    """What FedTU refreshes copies for: FedAvgM steps from the model of its own last round, not from what it is given."""
    inner = flower.FedAvgM(server_learning_rate=0.5, min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    grid = MemoryGrid({0: lambda m: content(flat(m.content["arrays"]) + 1)})
    first = inner.start(grid, adapter([0]), num_rounds=1).arrays
    assert flat(first)[0] == 0.5
    messages = list(inner.configure_train(2, adapter([100]), ConfigRecord(), grid))
    undone, _ = inner.aggregate_train(2, grid.send_and_receive(messages))
    assert undone is not None
    assert flat(undone)[0] == 0.5 + 0.5 * (101 - 0.5), (
        "Flower mended its FedAvgM (100.5): drop the refreshing of copies"
    )


def test_one_client_replaces_the_model_bit_for_bit():
    phi_u = np.array([1e-40, -0.0, 3.4e38, 1 / 3], dtype=np.float32)
    recorder = Recorder()
    grid = MemoryGrid({5: lambda m: content(phi_u) if m.metadata.message_type == protocol.UNLEARN else None})
    requests = RequestList([(1, request(5, 3))])
    result = FedTU(build("fedavg"), requests=requests, listener=recorder).start(
        grid, adapter(np.zeros(4)), 1, timeout=9
    )
    assert flat(result.arrays).tobytes() == phi_u.tobytes()
    assert requests.served_in == {"r5": 1}
    assert recorder.of("exchange_started")[0] == ("exchange_started", "unlearn", [5])
    assert grid.sent == {"query": 1, "train.unlearn": 1, "train": 1}


def test_several_clients_are_merged_by_forget_set_size():
    start = noise("start")
    models = {1: noise("one"), 3: noise("three")}
    grid = federation(4)
    for p, model in models.items():
        grid.nodes[p] = honest(p, unlearned=model)
    recorder = Recorder()
    requests = RequestList([(1, request(1, 1)), (1, request(3, 2, "a")), (1, request(3, 1, "b"))])
    FedTU(build("fedavg"), requests=requests, listener=recorder).start(grid, adapter(start), num_rounds=1)
    after, _ = recorder.checkpoints[1, "after_unlearn"]
    base, one, three = (x.astype(np.float64) for x in (start, models[1], models[3]))
    expected = base + 1 / 4 * (one - base) + 3 / 4 * (three - base)
    np.testing.assert_allclose(after, expected, rtol=1e-6, atol=1e-7)
    assert requests.served_in == {"r1": 1, "a": 1, "b": 1}
    assert grid.sent["train.unlearn"] == 2, "one message per client, not per request"
    config = next(c["config"] for kind, p, c in grid.log if kind == "train.unlearn" and p == 3)
    assert list(config[protocol.REQUEST_IDS]) == ["a", "b"]
    assert list(config[protocol.RECORD_IDS]) == ["3-0", "3-1", "3-0"]
    assert list(config[protocol.RECORD_COUNTS]) == [2, 1]


def test_messages_carry_settings_seed_stage_and_round():
    grid = federation(2)
    fedtu = FedTU(
        build("fedprox", proximal_mu=0.5),
        requests=RequestList([(2, request(0))]),
        seed=11,
        stage="unlearn",
        unlearn_config={"method": "npo"},
    )
    settings = ConfigRecord({"epochs": 5})
    fedtu.start(grid, adapter(np.zeros(SIZE)), num_rounds=2, train_config=settings)
    by_kind = {(kind, c["config"].get("server-round")): dict(c["config"]) for kind, _, c in grid.log}
    common = {"epochs": 5, "run-seed": 11, "stage": "unlearn"}
    assert by_kind["train", 1] == {**common, "server-round": 1, "proximal-mu": 0.5}
    assert by_kind["train.unlearn", 2] == {
        **common,
        "server-round": 2,
        "method": "npo",
        "request-ids": ["r0"],
        "record-ids": ["0-0"],
        "record-counts": [1],
    }
    assert dict(settings) == {"epochs": 5}, "the caller's settings were changed"


def test_events_come_in_order():
    recorder, second = Recorder(), Recorder()
    FedTU(
        build("fedavg", fraction_evaluate=1.0),
        requests=RequestList([(1, request(1))]),
        listener=Listeners(recorder, second),
        evaluate_after_unlearn=lambda r, a: MetricRecord({"forget": 0.0}),
    ).start(
        federation(2), adapter(np.zeros(SIZE)), num_rounds=1, evaluate_fn=lambda r, a: MetricRecord({"utility": 1.0})
    )
    assert recorder.events == [
        ("evaluating", 0, "initial"),
        ("evaluated", 0, "initial", {"utility": 1.0}),
        ("round_started", 1, 1),
        ("exchange_started", "unlearn", [1]),
        ("reply", 1, True, ""),
        ("exchange_ended", "unlearn", 1, 0),
        ("evaluating", 1, "after_unlearn"),
        ("evaluated", 1, "after_unlearn", {"forget": 0.0}),
        ("checkpoint", 1, "after_unlearn"),
        ("exchange_started", "train", [0, 1]),
        ("reply", 0, True, ""),
        ("reply", 1, True, ""),
        ("exchange_ended", "train", 2, 0),
        ("exchange_started", "evaluate", [0, 1]),
        ("reply", 0, True, ""),
        ("reply", 1, True, ""),
        ("exchange_ended", "evaluate", 2, 0),
        ("evaluating", 1, "round"),
        ("evaluated", 1, "round", {"utility": 1.0}),
        ("checkpoint", 1, "round"),
        ("round_completed", 1, {"train_loss": pytest.approx(0.5 / 3)}),
    ]
    assert second.events == recorder.events


@pytest.mark.parametrize("inner", [*names(), "flower"])
def test_without_requests_it_is_the_inner_strategy(inner):
    """Bit for bit Flower's own loop, client-side evaluation and metrics included."""

    def make():
        if inner == "flower":
            return flower.FedAvgM(server_momentum=0.9)
        return build(inner, fraction_evaluate=1.0)

    start, seen = adapter(noise("start")), {"bare": [], "fedtu": []}
    by_node = {"order": lambda replies: sorted(replies, key=lambda r: r.metadata.src_node_id)}
    bare = make().start(
        federation(3, **by_node), start, num_rounds=3, evaluate_fn=lambda r, a: seen["bare"].append(flat(a))
    )
    ours = FedTU(make()).start(
        federation(3, **by_node), start, num_rounds=3, evaluate_fn=lambda r, a: seen["fedtu"].append(flat(a))
    )
    assert all(np.array_equal(a, b) for a, b in zip(seen["bare"], seen["fedtu"], strict=True))
    assert np.array_equal(flat(bare.arrays), flat(ours.arrays))
    assert bare.train_metrics_clientapp == ours.train_metrics_clientapp
    assert bare.evaluate_metrics_clientapp == ours.evaluate_metrics_clientapp


# ---------------------------------------------------------------------------------------------------------- faults


def broken(kind: str):
    """A client whose reply has one fault."""

    def answer(message: Message):
        good = content(flat(message.content["arrays"]) + 1000, train_loss=0.0)
        values = flat(good["arrays"])
        metrics = good["metrics"]
        match kind:
            case "error":
                return Error(code=2, reason="cannot")
            case "unavailable":
                return Error(code=5)
            case "silent":
                return None
            case "empty":
                return RecordDict()
            case "no arrays":
                del good["arrays"]
            case "renamed record":
                good["weights"] = good.array_records["arrays"]
                del good["arrays"]
            case "two records":
                good["more"] = adapter([1])
            case "missing array":
                good["arrays"] = ArrayRecord()
            case "extra array":
                good["arrays"]["more"] = Array(values)
            case "renamed array":
                good["arrays"] = ArrayRecord({"other": Array(values)})
            case "shape":
                good["arrays"] = adapter(values[:-1])
            case "reshaped":
                good["arrays"] = adapter(values.reshape(2, -1))
            case "dtype":
                good["arrays"] = ArrayRecord({"adapter": Array(values.astype(np.float64))})
            case "nan" | "inf" | "-inf":
                values[-1] = float(kind)
                good["arrays"] = adapter(values)
            case "garbage":
                good["arrays"] = ArrayRecord({"adapter": Array("float32", (SIZE,), "numpy.ndarray", b"garbage")})
            case "no metrics":
                del good["metrics"]
            case "two metric records":
                good["more"] = MetricRecord({"num-examples": 1})
            case "no weight":
                del metrics["num-examples"]
            case "zero weight":
                metrics["num-examples"] = 0
            case "negative weight":
                metrics["num-examples"] = -3
            case "list weight":
                metrics["num-examples"] = [1, 2]
            case "nan weight":
                metrics["num-examples"] = float("nan")
            case "inf metric":
                metrics["train_loss"] = float("inf")
            case "nan in list metric":
                metrics["train_loss"] = [0.0, float("nan")]
            case "other metrics":
                metrics["surprise"] = 1.0
            case "list metric":
                metrics["train_loss"] = [0.0, 1.0]
            case "foreign":
                metrics["partition-id"] = 4711
            case _:
                raise AssertionError(kind)
        return good

    return answer


FAULTS = {
    "error": "error 2: cannot",
    "unavailable": "error 5",
    "silent": "no reply within 60 s",
    "empty": "expected one ArrayRecord 'arrays', got none",
    "no arrays": "got none",
    "renamed record": "got ['weights']",
    "two records": "got ['arrays', 'more']",
    "missing array": "missing ['adapter']",
    "extra array": "unknown ['more']",
    "renamed array": "missing ['adapter'], unknown ['other']",
    "shape": "shape (11,), expected (12,)",
    "reshaped": "shape (2, 6), expected (12,)",
    "dtype": "dtype float64, expected float32",
    "nan": "NaN or infinite",
    "inf": "NaN or infinite",
    "-inf": "NaN or infinite",
    "garbage": "cannot be read",
    "no metrics": "expected one MetricRecord, got 0",
    "two metric records": "expected one MetricRecord, got 2",
    "no weight": "'num-examples' is missing",
    "zero weight": "'num-examples' is 0",
    "negative weight": "'num-examples' is -3",
    "list weight": "'num-examples' is [1, 2]",
    "nan weight": "'num-examples' is nan",
    "inf metric": "'train_loss' is inf",
    "nan in list metric": "'train_loss' is [0.0, nan]",
    "other metrics": "differ from those of the other replies",
    "list metric": "differ from those of the other replies",
    "foreign": "signed by client 4711",
}


def expected_without(bad: set[int], count: int) -> np.ndarray:
    """FedAvg over the honest clients only."""
    start = noise("start").astype(np.float64)
    good = [p for p in range(count) if p not in bad]
    total = sum(p + 1 for p in good)
    return sum((p + 1) / total * (start.astype(np.float32) + noise(p, 1)).astype(np.float64) for p in good)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_bad_training_reply_is_left_out(kind):
    grid, recorder = federation(4), Recorder()
    grid.nodes[2] = broken(kind)
    result = FedTU(build("fedavg"), listener=recorder).start(grid, adapter(noise("start")), num_rounds=1, timeout=60)
    np.testing.assert_allclose(flat(result.arrays), expected_without({2}, 4), rtol=1e-6, atol=1e-7)
    replies = recorder.of("reply")
    assert [e[1:3] for e in replies] == [(0, True), (1, True), (2, False), (3, True)]
    assert FAULTS[kind] in replies[2][3]
    assert recorder.of("exchange_ended") == [("exchange_ended", "train", 3, 1)]


def test_many_faults_at_once():
    kinds = list(FAULTS)
    grid, recorder = federation(len(kinds) + 3), Recorder()
    for p, kind in enumerate(kinds):
        grid.nodes[p] = broken(kind)
    result = FedTU(build("fedavg"), listener=recorder).start(grid, adapter(noise("start")), num_rounds=1, timeout=60)
    bad = set(range(len(kinds)))
    np.testing.assert_allclose(flat(result.arrays), expected_without(bad, len(kinds) + 3), rtol=1e-6, atol=1e-6)
    reasons = {e[1]: e[3] for e in recorder.of("reply") if not e[2]}
    assert reasons.keys() == bad
    assert all(FAULTS[kind] in reasons[p] for p, kind in enumerate(kinds))


@pytest.mark.parametrize("inner", inners(), ids=label)
def test_a_round_without_valid_replies_changes_nothing(inner):
    """Not the model, not the moments, and not the rounds that follow."""

    def run(bad_round: int | None) -> tuple[list[np.ndarray], Recorder]:
        recorder, models = Recorder(), []
        grid = federation(3)
        for p in grid.nodes:
            good, bad = honest(p), broken("nan")

            def answer(message, good=good, bad=bad):
                round_ = message.content["config"]["server-round"]
                return bad(message) if round_ == bad_round else good(message)

            grid.nodes[p] = answer
        inner_ = next(i for i in inners() if label(i) == label(inner))
        fedtu = FedTU(inner_, listener=recorder)
        fedtu.start(grid, adapter(noise("start")), 3, evaluate_fn=lambda r, a: models.append(flat(a).copy()))
        return models, recorder

    models, recorder = run(bad_round=2)
    assert np.array_equal(models[2], models[1])
    assert not np.array_equal(models[3], models[2])
    before, after = recorder.checkpoints[1, "round"][1], recorder.checkpoints[2, "round"][1]
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[k], after[k]) for k in before)
    assert recorder.of("round_completed")[1] == ("round_completed", 2, {})


@pytest.mark.parametrize("kind", [k for k in FAULTS if k not in ("other metrics", "list metric")])
def test_a_bad_unlearning_reply_leaves_the_request_pending(kind):
    """The model of the round starts where it was; a later good reply serves the request."""
    grid, recorder = federation(2), Recorder()
    good, bad = honest(1), broken(kind)

    def answer(message):
        first = message.metadata.message_type == protocol.UNLEARN and message.content["config"]["server-round"] < 3
        return bad(message) if first else good(message)

    grid.nodes[1] = answer
    requests = RequestList([(1, request(1))])
    FedTU(build("fedavg"), requests=requests, listener=recorder).start(grid, adapter(noise("start")), 4, timeout=60)
    assert requests.attempts == {"r1": 2}
    assert FAULTS[kind] in requests.reasons["r1"]
    assert requests.served_in == {"r1": 3}
    assert [k for k in recorder.checkpoints if k[1] == "after_unlearn"] == [(3, "after_unlearn")]
    sent = [flat(c["arrays"]) for k, _, c in grid.log if k == "train" and c["config"]["server-round"] == 1]
    assert all(np.array_equal(s, noise("start")) for s in sent)


def test_of_several_requests_only_the_failed_stay():
    grid, recorder = federation(3), Recorder()
    grid.nodes[0] = broken("nan")
    grid.nodes[2] = honest(2, unlearned=noise("two"))
    requests = RequestList([(1, request(0)), (1, request(2)), (1, request(9))])
    FedTU(build("fedavg"), requests=requests, listener=recorder).start(grid, adapter(noise("start")), num_rounds=1)
    assert requests.served_in == {"r2": 1}
    assert requests.reasons.keys() == {"r0", "r9"}
    assert requests.reasons["r9"] == "not connected"
    assert np.array_equal(recorder.checkpoints[1, "after_unlearn"][0], noise("two"))


def test_extra_rounds_while_requests_are_pending():
    def run(extra: int, serve_in: int) -> tuple[int, RequestList]:
        grid, recorder = federation(2), Recorder()
        good = honest(1)
        grid.nodes[1] = lambda m: (
            Error(code=2)
            if m.metadata.message_type == protocol.UNLEARN and m.content["config"]["server-round"] < serve_in
            else good(m)
        )
        requests = RequestList([(1, request(1))])
        FedTU(build("fedavg"), requests=requests, listener=recorder, extra_rounds=extra).start(
            grid, adapter(noise("start")), num_rounds=2
        )
        return len(recorder.of("round_completed")), requests

    assert run(extra=0, serve_in=4)[0] == 2
    rounds, requests = run(extra=5, serve_in=4)
    assert (rounds, requests.served_in) == (4, {"r1": 4})
    rounds, requests = run(extra=5, serve_in=99)
    assert (rounds, requests.served_in) == (7, {})


@pytest.mark.parametrize("message_type", [protocol.TRAIN, protocol.UNLEARN])
def test_a_dead_simulation_worker_ends_the_run(message_type):
    grid = federation(3)
    good = honest(1)
    dead = Error(code=0, reason="<class 'ray.exceptions.ActorDiedError'>")
    grid.nodes[1] = lambda m: dead if m.metadata.message_type == message_type else good(m)
    requests = RequestList([(1, request(1))])
    with pytest.raises(ActorDied, match="client 1 died.*ActorDiedError"):
        FedTU(build("fedavg"), requests=requests).start(grid, adapter(noise("start")), num_rounds=1)
    assert requests.attempts == {}


def test_a_diverged_aggregate_ends_the_run():
    class Diverging(flower.FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return adapter(np.full(SIZE, np.nan)), metrics

    with pytest.raises(AggregationError, match="round 1: .*not finite"):
        FedTU(Diverging()).start(federation(2), adapter(np.zeros(SIZE)), num_rounds=1)


# ------------------------------------------------------------------------------------------- sampling and resuming


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
            build("fedavg", fraction_train=0.3), requests=RequestList([(2, request(3)), (2, request(7))]), seed=4
        )
        result = fedtu.start(grid, adapter(noise("start")), num_rounds=3)
        assert random.getstate() == state, "the sampling left its traces in the global generator"
        runs.append((trained(grid), flat(result.arrays).tobytes()))
    assert runs[0] == runs[1] == runs[2]
    assert all(len(set(p)) == 6 for p in runs[0][0].values())


def test_sampling_depends_on_seed_stage_and_round():
    def sampled(**options) -> dict[int, list[int]]:
        grid = federation(40)
        FedTU(build("fedavg", fraction_train=0.2), **options).start(grid, adapter(np.zeros(SIZE)), num_rounds=2)
        return trained(grid)

    base = sampled(seed=1, stage="finetune")
    assert base[1] != base[2]
    assert base[1] != sampled(seed=2, stage="finetune")[1]
    assert base[1] != sampled(seed=1, stage="retrain")[1]
    assert base == sampled(seed=1, stage="finetune")


def test_sampling_is_flowers_with_a_seed():
    """The partitions that Python's own sampler draws from the ordered list."""
    grid = federation(30)
    FedTU(build("fedavg", fraction_train=0.1), seed=5, stage="s").start(grid, adapter(np.zeros(SIZE)), num_rounds=1)
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
        FedTU(build("fedavg", fraction_train=3 / nodes), nodes=shared, stage=stage).start(
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


class Silent(MemoryGrid):
    """Some nodes do not answer queries, or with nonsense."""

    silent: set[int] = set()
    answer: RecordDict | Error | None = None

    def _deliver(self, message):
        known = super()._deliver(message)
        node = message.metadata.dst_node_id
        return self.answer if message.metadata.message_type == "query" and node - 1000 in self.silent else known


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


def test_no_usable_node_is_an_error():
    grid = Silent({p: honest(p) for p in range(2)})
    grid.silent, grid.answer = {0, 1}, Error(code=1, reason="no app")
    with pytest.raises(NodeMapError, match="none of 2 nodes .*no app"):
        NodeMap().refresh(grid)
    with pytest.raises(NodeMapError, match="2 of 3 clients connected"):
        NodeMap(min_nodes=3, wait_s=0.01).refresh(grid)
    grid.answer = Error(code=0, reason="ActorDiedError")
    with pytest.raises(ActorDied):
        NodeMap().refresh(grid)


def test_two_nodes_of_one_partition():
    grid = Silent({p: honest(p) for p in range(3)})
    grid.silent = {2}
    grid.answer = RecordDict({"metrics": MetricRecord({"partition-id": 0})})
    with pytest.raises(NodeMapError, match="nodes 1000 and 1002 both hold partition 0"):
        NodeMap().refresh(grid)


def test_a_client_that_comes_back_under_a_new_id_replaces_the_old():
    grid, nodes = federation(2), NodeMap()
    nodes.refresh(grid)
    grid.node_ids[1] = 77
    assert nodes.refresh(grid) == {0: 1000, 1: 77}
    assert nodes.partition(77) == 1
    assert nodes.partition(1001) is None


@pytest.mark.parametrize("inner", names())
@pytest.mark.parametrize("stop", [(2, "round"), (2, "after_unlearn"), (3, "round")])
def test_resume_equals_not_stopping(inner, stop):
    def make(requests, listener=None):
        return FedTU(build(inner, fraction_train=0.5), requests=requests, listener=listener, seed=3)

    due = [(2, request(1)), (4, request(3)), (4, request(5))]
    whole = Recorder()
    full = make(RequestList(due), whole).start(federation(6), adapter(noise("start")), num_rounds=5)
    round_, moment = stop
    arrays, state = whole.checkpoints[stop]
    requests = RequestList([(r, q) for r, q in due if r > round_])
    resumed, rest = make(requests, again := Recorder()), round_ if moment == "after_unlearn" else round_ + 1
    resumed.load_state_dict(state)
    seen = []
    result = resumed.start(
        federation(6), adapter(arrays), num_rounds=5, start_round=rest, evaluate_fn=lambda r, a: seen.append(r)
    )
    assert np.array_equal(flat(result.arrays), flat(full.arrays))
    assert seen == list(range(rest, 6)), "the initial model is not evaluated again"
    for key, (a, s) in again.checkpoints.items():
        assert np.array_equal(a, whole.checkpoints[key][0])
        assert s.keys() == whole.checkpoints[key][1].keys()
        assert all(np.array_equal(s[k], whole.checkpoints[key][1][k]) for k in s)


def test_server_state_is_kept_or_reset_after_unlearning():
    def run(mode) -> tuple[Recorder, np.ndarray]:
        recorder = Recorder()
        fedtu = FedTU(
            build("fedavgm"), requests=RequestList([(3, request(1))]), listener=recorder, server_state_on_unlearn=mode
        )
        return recorder, flat(fedtu.start(federation(2), adapter(noise("start")), num_rounds=3).arrays)

    kept, with_momentum = run("keep")
    reset, without = run("reset")
    before, after = kept.checkpoints[2, "round"][1], kept.checkpoints[3, "after_unlearn"][1]
    assert np.array_equal(before["m/adapter"], after["m/adapter"])
    assert reset.checkpoints[3, "after_unlearn"][1] == {}
    assert np.array_equal(reset.checkpoints[2, "round"][1]["m/adapter"], before["m/adapter"])
    np.testing.assert_allclose(with_momentum - without, 0.9 * before["m/adapter"], rtol=1e-4, atol=1e-5)


def test_a_failed_exchange_resets_nothing():
    grid, recorder = federation(2), Recorder()
    good = honest(1)
    grid.nodes[1] = lambda m: Error(code=2) if m.metadata.message_type == protocol.UNLEARN else good(m)
    fedtu = FedTU(
        build("fedavgm"),
        requests=RequestList([(2, request(1))]),
        listener=recorder,
        server_state_on_unlearn="reset",
    )
    fedtu.start(grid, adapter(noise("start")), num_rounds=2)
    clean = Recorder()
    FedTU(build("fedavgm"), listener=clean).start(federation(2), adapter(noise("start")), num_rounds=2)
    assert np.array_equal(recorder.checkpoints[2, "round"][0], clean.checkpoints[2, "round"][0])


def test_bad_arguments():
    with pytest.raises(ValueError, match="server_state_on_unlearn is 'drop'"):
        FedTU(build("fedavg"), server_state_on_unlearn="drop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start_round is 0"):
        FedTU(build("fedavg")).start(federation(1), adapter([0.0]), start_round=0)
    with pytest.raises(ValueError, match="names no record"):
        UnlearnRequest("r", 0, ())
    with pytest.raises(ValueError, match="cannot load a state"):
        FedTU(flower.FedAvg()).load_state_dict({"m/adapter": np.zeros(1)})


def test_a_count_alone_weights_a_request_whose_records_stay_private():
    assert UnlearnRequest("r", 0, (), 4).num_records == 4
    assert request(0, 3).num_records == 3


def test_dtype_of_the_model_survives_flowers_fedadam():
    inner = flower.FedAdam(fraction_evaluate=0.0)
    result = FedTU(inner).start(federation(2), adapter(noise("start")), num_rounds=2)
    assert flat(result.arrays).dtype == np.float32
    assert len(result.train_metrics_clientapp) == 2, "the second round was refused for its dtype"
