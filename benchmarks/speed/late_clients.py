"""Clients with heavy-tailed times: seconds of a simulated clock until the same loss, by how rounds wait for them.

    python -m benchmarks.speed.late_clients [--clients 100] [--at-once 10] [--seeds 5] [--persistence 0.5]
                                            [--requests 5] [--goal 0.95]

The rounds are the real ones (sampling, judging, aggregation, the clock, the barrier), over clients in this process that
train a softmax regression: what is compared is the waiting. A client has 40 records of one mixture of ten classes, its
labels drawn from Dirichlet(0.3) and its inputs shifted by an offset of its own, so that it matters who takes part. A
round makes five local epochs. The loss is the mean over all clients' records; the goal is 95 % of the way from the
start to the loss of the best single model. Each seed draws data, times and samples anew; medians over the seeds are
shown.

`synchronous`: a round waits for all that it asks. `deadline`: it goes on without those that have not replied after
three times the median time of a client. `over-sampling`: 1.3 times as many are asked, and it goes on when as many as
are needed have replied. `both`. `FedBuff`: as many train at any time as a synchronous round asks, and a server step
follows half as many updates. `requests`: the same, and every so many rounds a client asks to forget, which takes it as
long as training and changes nothing here: what exchanges and barriers cost.

`rounds`, `seconds`: until the goal. `faster`: than the synchronous rounds of the same seed. `way`: how far, when those
are there. `asked`: clients for one update that counts. `slowest`: the share of the updates that comes from the tenth
of the clients that is slowest on the whole; 10 % is its due.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray
from scipy.optimize import minimize

from strategies import message_keys
from strategies.rounds.buffered import BufferedFedTU
from strategies.rounds.fedtu import FedTU, Listener, Options, RequestList, UnlearnRequest
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rounds.model_versions import Buffer
from strategies.rounds.simulated_durations import Durations
from strategies.rules.factory import build

CLASSES, INPUTS, RECORDS, EPOCHS, BATCH, RATE = 10, 20, 40, 5, 10, 0.05
MEDIAN_S, OVERSAMPLE, DEADLINE_MEDIANS = 60.0, 1.3, 3.0
TIMES: dict[str, tuple[Literal["lognormal", "pareto"], float]] = {
    "lognormal, σ = 1": ("lognormal", 1.0),
    "Pareto, tail exponent 2": ("pareto", 0.5),
    "Pareto, tail exponent 1": ("pareto", 1.0),
}
MOST_ROUNDS = 3000


@dataclass(frozen=True)
class Problem:
    """`inputs` (K, n, d + 1), the last a one; `labels` (K, n); `start`, `best`: losses of the zero and the best model;
    `share`: of the way between them that is the goal.
    """

    inputs: NDArray
    labels: NDArray
    start: float
    best: float
    share: float

    @property
    def goal(self) -> float:
        return self.start - self.share * (self.start - self.best)

    def loss(self, model: NDArray) -> float:
        """Mean over all records, in nats."""
        return _loss(model, self.inputs.reshape(-1, INPUTS + 1), self.labels.reshape(-1))[0]


def problem(clients: int, seed: int, share: float) -> Problem:
    """Labels of each client from Dirichlet(0.3) over the classes; classes are Gaussian clouds, clients shift them."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, INPUTS))
    mixtures = rng.dirichlet(np.full(CLASSES, 0.3), size=clients)
    labels = np.array([rng.choice(CLASSES, size=RECORDS, p=mixture) for mixture in mixtures])
    shifts = 0.5 * rng.normal(size=(clients, 1, INPUTS))
    inputs = centres[labels] + shifts + 1.5 * rng.normal(size=(clients, RECORDS, INPUTS))
    inputs = np.concatenate([inputs, np.ones((clients, RECORDS, 1))], axis=2)
    together = inputs.reshape(-1, INPUTS + 1), labels.reshape(-1)
    zero = np.zeros(CLASSES * (INPUTS + 1))
    best = minimize(_loss, zero, together, jac=True, method="L-BFGS-B").fun
    return Problem(inputs, labels, math.log(CLASSES), float(best), share)


def _loss(model: NDArray, inputs: NDArray, labels: NDArray) -> tuple[float, NDArray]:
    """Cross-entropy in nats, and its gradient."""
    scores = inputs @ model.reshape(CLASSES, INPUTS + 1).T
    scores -= scores.max(axis=1, keepdims=True)
    exponents = np.exp(scores)
    shares = exponents / exponents.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float((np.log(exponents.sum(axis=1)) - scores[rows, labels]).mean())
    shares[rows, labels] -= 1
    return loss, (shares.T @ inputs).reshape(-1) / len(labels)


def federation(data: Problem) -> MemoryGrid:
    """Clients that train by SGD, and forget nothing when they are asked to."""

    def client(partition: int):
        inputs, labels = data.inputs[partition], data.labels[partition]

        def answer(message: Message) -> RecordDict:
            model = message.content.array_records[message_keys.ARRAYS][message_keys.ADAPTER].numpy().astype(np.float64)
            server_round = message.content.config_records[message_keys.CONFIG][message_keys.SERVER_ROUND]
            rng = np.random.default_rng([partition, int(server_round)])  # type: ignore[arg-type]
            for _ in range(EPOCHS if message.metadata.message_type == message_keys.TRAIN else 0):
                for batch in np.array_split(rng.permutation(RECORDS), RECORDS // BATCH):
                    model -= RATE * _loss(model, inputs[batch], labels[batch])[1]
            return RecordDict(
                {
                    message_keys.ARRAYS: ArrayRecord({message_keys.ADAPTER: Array(model.astype(np.float32))}),
                    message_keys.METRICS: MetricRecord({message_keys.NUM_EXAMPLES: RECORDS}),
                }
            )

        return answer

    return MemoryGrid({partition: client(partition) for partition in range(len(data.labels))})


class _Over(Exception):
    """The clock has gone far enough."""


@dataclass
class Course(Listener):
    """What a run comes to: seconds and loss after each round, who was asked, whose updates count. It ends with the
    goal, and not before `until` seconds.
    """

    goal: float
    until: float = 0.0
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    asked: int = 0
    counted: list[int] = field(default_factory=list)
    stopped: int = 0
    _kind: str = ""

    def exchange_started(self, kind: str, nodes: Sequence[int]) -> None:
        self._kind = kind
        self.asked += len(nodes) if kind == "train" else 0

    def reply(self, node: int, ok: bool, reason: str) -> None:
        if ok and self._kind == "train":
            self.counted.append(node)

    def barrier(self, server_round: int, version: int, discarded: int) -> None:
        self.stopped += discarded

    def clock(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if seconds >= self.until and min(self.losses) <= self.goal:
            raise _Over

    @property
    def rounds(self) -> float:
        """Until the goal; infinite where it was not reached."""
        return next((i for i, loss in enumerate(self.losses[1:], 1) if loss <= self.goal), math.inf)

    @property
    def reached(self) -> float:
        """Seconds until the goal."""
        return self.seconds[int(self.rounds) - 1] if self.rounds < math.inf else math.inf

    def loss_at(self, seconds: float) -> float:
        """That of the newest model by then."""
        return self.losses[sum(second <= seconds for second in self.seconds)]


@dataclass(frozen=True)
class Way:
    """How rounds wait: settings of FedTU. `share`: of those at work, how many updates make a step; 0: synchronous."""

    name: str
    oversample: float = 1.0
    deadline: float | None = None
    share: float = 0.0
    every: int = 0


def run(way: Way, data: Problem, durations: Durations, at_once: int, course: Course) -> Course:
    """Rounds until the course is over."""
    clients = len(data.labels)
    asking = range(way.every, MOST_ROUNDS, way.every) if way.every else ()
    due = [(r, UnlearnRequest(f"r{r}", 7 * number % clients, ("x",))) for number, r in enumerate(asking)]
    buffer = Buffer(max(1, round(at_once * way.share)), at_once) if way.share else None
    timing = {"deadline": way.deadline, "oversample": way.oversample, "durations": durations, "buffer": buffer}
    inner = build("fedavg", fraction_train=at_once / clients)
    kind = FedTU if buffer is None else BufferedFedTU
    options = Options(seed=durations.seed, **timing)  # type: ignore[arg-type]
    fedtu = kind(inner, requests=RequestList(due), listener=course, options=options)
    start = ArrayRecord({message_keys.ADAPTER: Array(np.zeros(CLASSES * (INPUTS + 1), np.float32))})

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        course.losses.append(data.loss(arrays[message_keys.ADAPTER].numpy().astype(np.float64)))

    with suppress(_Over):
        fedtu.start(federation(data), start, num_rounds=MOST_ROUNDS, timeout=1e9, evaluate_fn=evaluate)
    return course


def slowest(durations: Durations, clients: int) -> set[int]:
    """The tenth of the clients whose times have the largest mean logarithm."""
    mean = {
        c: statistics.fmean(math.log(durations.seconds("train", message_keys.TRAIN, c, r)) for r in range(1, 51))
        for c in range(clients)
    }
    return set(sorted(mean, key=mean.__getitem__)[-max(1, clients // 10) :])


def measured(way: Way, data: Problem, durations: Durations, at_once: int, plain: Course) -> list[float]:
    """The columns of one seed compared with the synchronous course `plain`."""
    course = run(way, data, durations, at_once, Course(data.goal, plain.reached))
    slow = slowest(durations, len(data.labels))
    return [
        course.rounds,
        course.reached,
        plain.reached / course.reached,
        100 * (data.start - course.loss_at(plain.reached)) / (data.start - data.best),
        course.asked / len(course.counted),
        100 * sum(client in slow for client in course.counted) / len(course.counted),
    ]


def main() -> None:
    """Measure and print a table for each distribution of times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--persistence", type=float, default=0.5)
    parser.add_argument("--requests", type=int, default=5)
    parser.add_argument("--goal", type=float, default=0.95)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    limit = DEADLINE_MEDIANS * MEDIAN_S
    ways = [
        Way("synchronous"),
        Way("deadline", deadline=limit),
        Way("over-sampling", OVERSAMPLE),
        Way("both", OVERSAMPLE, limit),
        Way("FedBuff", share=0.5),
        Way(f"requests, every {options.requests}", share=0.5, every=options.requests),
    ]
    for title, (distribution, spread) in TIMES.items():
        print(f"\n{title}, median {MEDIAN_S:g} s, persistence {options.persistence:g}, {options.seeds} seeds")
        print(f"{'':<18} {'rounds':>7} {'seconds':>9} {'faster':>7} {'way %':>6} {'asked':>6} {'slowest %':>10}")
        rows: dict[str, list[list[float]]] = {way.name: [] for way in ways}
        for seed in range(options.seeds):
            data = problem(options.clients, seed, options.goal)
            durations = Durations(distribution, MEDIAN_S, spread, options.persistence, seed)
            plain = run(ways[0], data, durations, options.at_once, Course(data.goal))
            for way in ways:
                rows[way.name].append(measured(way, data, durations, options.at_once, plain))
        for name, found in rows.items():
            rounds, seconds, faster, far, asked, slow = (
                statistics.median(column) for column in zip(*found, strict=True)
            )
            print(f"{name:<18} {rounds:>7.0f} {seconds:>9.0f} {faster:>7.2f} {far:>6.1f} {asked:>6.2f} {slow:>10.1f}")


if __name__ == "__main__":
    main()
