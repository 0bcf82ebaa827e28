"""Shared by tests: see `test_strategies`."""

from __future__ import annotations

import math

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict

from strategies.rounds.memory_grid import MemoryGrid

SETTINGS = {
    "fedavg": {},
    "fedprox": {"proximal_mu": 0.01},
    "fedavgm": {"server_momentum": 0.9},
    "fedadagrad": {"eta": 0.1, "tau": 0.05},
    "fedadam": {"eta": 0.1, "beta_1": 0.8, "beta_2": 0.95, "tau": 0.05},
    "fedyogi": {"eta": 0.1, "beta_1": 0.8, "beta_2": 0.95, "tau": 0.05},
}


def reply(arrays: ArrayRecord, examples: float = 1, **metrics) -> RecordDict:
    return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": examples, **metrics})})


def run(strategy, initial: ArrayRecord, models, counts, rounds: int, steps=None) -> list[ArrayRecord]:
    """All global models of a run in which client k answers `models[round][k]` with `counts[k]` examples.

    It tells of `steps[k]` local steps, of none without `steps`.
    """
    told = [{} if steps is None else {"train-steps": steps[k]} for k in range(len(counts))]

    def client(k):
        def answer(message):
            round_ = int(message.content["config"]["server-round"])
            return reply(models[round_ - 1][k], counts[k], loss=0.5, **told[k])

        return answer

    grid = MemoryGrid({k: client(k) for k in range(len(counts))})
    seen = []
    strategy.start(grid, initial, num_rounds=rounds, evaluate_fn=lambda r, a: seen.append(a))
    return seen[1:]


def oracle(
    name: str, start: np.ndarray, models: list[list[np.ndarray]], counts: list[int], s: dict
) -> list[np.ndarray]:
    """The table of the six aggregators, number by number in Python floats."""
    phi = [float(x) for x in start]
    size, m, out = len(phi), None, []
    v = [s.get("tau", 0.0) ** 2] * size
    for clients in models:
        total = sum(counts)
        mean = [sum(n / total * float(c[i]) for n, c in zip(counts, clients, strict=True)) for i in range(size)]
        delta = [mean[i] - phi[i] for i in range(size)]
        first = m is None
        if name in ("fedavg", "fedprox"):
            phi, m = mean, []
        elif name == "fedavgm":
            m = delta if first else [s["server_momentum"] * m[i] + delta[i] for i in range(size)]
            phi = [phi[i] + m[i] for i in range(size)]
        elif name == "fedadagrad":
            m = []
            v = [v[i] + delta[i] ** 2 for i in range(size)]
            phi = [phi[i] + s["eta"] * delta[i] / (math.sqrt(v[i]) + s["tau"]) for i in range(size)]
        else:
            b1, b2 = s["beta_1"], s["beta_2"]
            m = delta if first else [b1 * m[i] + (1 - b1) * delta[i] for i in range(size)]
            for i in range(size):
                d2 = delta[i] ** 2
                if name == "fedadam":
                    v[i] = b2 * v[i] + (1 - b2) * d2
                else:
                    sign = (v[i] > d2) - (v[i] < d2)
                    v[i] = v[i] - (1 - b2) * d2 * sign
            phi = [phi[i] + s["eta"] * m[i] / (math.sqrt(v[i]) + s["tau"]) for i in range(size)]
        phi = [float(np.float32(x)) for x in phi]
        out.append(np.array(phi))
    return out
