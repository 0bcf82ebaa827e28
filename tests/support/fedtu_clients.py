"""Clients, requests and a recorder for the tests of FedTU on an in-memory federation."""

from __future__ import annotations

import zlib

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

from strategies import message_keys
from strategies.arrays import view
from strategies.rounds.fedtu import Listener, RequestList, UnlearnRequest
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rules.factory import build, names

SIZE = 12


def adapter(values) -> ArrayRecord:
    return ArrayRecord({"adapter": Array(np.asarray(values, dtype=np.float32))})


def flat(arrays: ArrayRecord) -> np.ndarray:
    return view(arrays["adapter"]).copy()


def content(values, examples: float = 2, **metrics) -> RecordDict:
    return RecordDict({"arrays": adapter(values), "metrics": MetricRecord({"num-examples": examples, **metrics})})


def noise(*labels) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(repr(labels).encode())).normal(size=SIZE).astype(np.float32)


def honest(partition: int, unlearned: np.ndarray | None = None):
    """Adds noise that depends on (partition, round) to what it receives; forgets by answering `unlearned`."""

    def answer(message: Message) -> RecordDict:
        received = flat(message.content["arrays"])
        round_ = int(message.content["config"]["server-round"])
        if message.metadata.message_type == message_keys.UNLEARN:
            return content(received * 0.5 if unlearned is None else unlearned)
        if message.metadata.message_type == message_keys.EVALUATE:
            return RecordDict({"metrics": MetricRecord({"num-examples": 1, "accuracy": 0.25})})
        metrics = {"train_loss": 0.1 * (partition + 1), "train-steps": partition + 2}
        return content(received + noise(partition, round_), examples=partition + 1, **metrics)

    return answer


def federation(count: int, **options) -> MemoryGrid:
    return MemoryGrid({p: honest(p) for p in range(count)}, keep_log=True, **options)


class Recorder(Listener):
    """Everything that was told, in order."""

    def __init__(self) -> None:
        self.events: list[tuple] = []
        self.checkpoints: dict[tuple[int, str], tuple[np.ndarray, dict]] = {}

    def round_started(self, server_round, total):
        self.events.append(("round_started", server_round, total))

    def exchange_started(self, kind, nodes):
        self.events.append(("exchange_started", kind, list(nodes)))

    def reply(self, node, ok, reason):
        self.events.append(("reply", node, ok, reason))

    def exchange_ended(self, kind, accepted, left_out, seconds):
        self.events.append(("exchange_ended", kind, accepted, left_out))

    def evaluating(self, server_round, moment):
        self.events.append(("evaluating", server_round, moment))

    def evaluated(self, server_round, moment, metrics, seconds):
        self.events.append(("evaluated", server_round, moment, dict(metrics)))

    def checkpoint(self, server_round, moment, arrays, state):
        self.events.append(("checkpoint", server_round, moment))
        self.checkpoints[server_round, moment] = (flat(arrays).copy(), {k: v.copy() for k, v in state.items()})

    def round_completed(self, server_round, arrays, metrics, seconds):
        self.events.append(("round_completed", server_round, dict(metrics)))

    def of(self, *kinds: str) -> list[tuple]:
        return [e for e in self.events if e[0] in kinds]


class Repeating(RequestList):
    """Each served request is served again in the two rounds after."""

    def __init__(self, due):
        super().__init__(due)
        self.known, self.repeated = {r.request_id: r for _, r in due}, []

    def again(self, server_round):
        return [self.known[i] for i, at in self.served_in.items() if at < server_round <= at + 2]

    def served_again(self, request, server_round, info):
        self.repeated.append((request.request_id, server_round))


def request(node: int, count: int = 1, name: str | None = None) -> UnlearnRequest:
    return UnlearnRequest(name or f"r{node}", node, tuple(f"{node}-{i}" for i in range(count)))


def inners() -> list[flower.Strategy]:
    """Every aggregator here, and Flower's own that keep a copy of the model, change its dtype or empty the replies."""
    sampling = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
    ours = [build(name, **({"eta": 0.1} if "ada" in name or "yogi" in name else {})) for name in names()]
    theirs = [
        flower.FedAvgM(server_momentum=0.9, server_learning_rate=0.5, **sampling),
        flower.FedAdam(eta=0.1, **sampling),
        flower.QFedAvg(client_learning_rate=0.1, **sampling),
        flower.FedMedian(**sampling),
        flower.FedTrimmedAvg(**sampling),
        flower.Krum(**sampling),
    ]
    return [*ours, *theirs]


def label(strategy: flower.Strategy) -> str:
    return f"{type(strategy).__module__.split('.')[0]}.{type(strategy).__name__}"
