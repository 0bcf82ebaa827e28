"""Shared by tests: see `test_federaser`."""

from __future__ import annotations

import numpy as np
from flwr.app import MetricRecord as Metrics
from flwr.app import RecordDict
from support.fedtu_clients import content, flat

from strategies import message_keys
from strategies.rounds.memory_grid import MemoryGrid

CLIENTS, SIZE, EPOCHS, RATE = 6, 5, 4, 0.02
SETTINGS = {
    "fedavg": {},
    "fedavgm": {"server_momentum": 0.7, "server_learning_rate": 0.8},
    "fedprox": {"proximal_mu": 0.5},
    "fedadagrad": {"eta": 0.1, "tau": 0.01},
    "fedadam": {"eta": 0.1, "tau": 0.01, "beta_1": 0.8, "beta_2": 0.9},
    "fedyogi": {"eta": 0.1, "tau": 0.01, "beta_1": 0.8, "beta_2": 0.9},
    "fednova": {},
    "fedmedian": {},
    "krum": {"num_malicious_nodes": 1},
}
START = np.linspace(-1, 1, SIZE, dtype=np.float32)


def problem(client):
    rng = np.random.default_rng(client)
    return rng.normal(size=(client + 2, SIZE)), rng.normal(size=client + 2)


def fit(client, start, epochs, mu=0.0):
    """Gradient descent on ½‖Xφ − y‖² + (μ/2)‖φ − start‖², in float64."""
    x, y = problem(client)
    phi = start.astype(np.float64)
    for _ in range(epochs):
        phi = phi - RATE * (x.T @ (x @ phi - y) + mu * (phi - start))
    return phi.astype(np.float32)


def steps(client):
    """How many steps a client says it took."""
    return client % 3 + 1


def learner(client):
    def answer(message):
        if message.metadata.message_type == message_keys.BURY:
            assert not message.content.array_records, "burying needs no model"
            return RecordDict({"metrics": Metrics({"num-examples": 1, "live-records": 2})})
        config = message.content["config"]
        epochs, mu = config.get("epochs", EPOCHS), config.get("proximal-mu", 0.0)
        model = fit(client, flat(message.content["arrays"]), epochs, mu)
        return content(model, examples=client + 2, **{"train-steps": steps(client)})

    return answer


def federation():
    return MemoryGrid({p: learner(p) for p in range(CLIENTS)}, keep_log=True)
