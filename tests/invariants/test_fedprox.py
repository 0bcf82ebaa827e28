"""FedProx with μ = 0 is FedAvg."""

import numpy as np
from flwr.app import Array, ArrayRecord
from support import tiny_llama
from support.aggregators import run

from clients.flat_parameters import FlatParameters
from clients.training import Prox, TrainSettings, train
from strategies.rules.factory import build


def fast(model, prox=None):
    flat, losses = FlatParameters(model), []
    settings = TrainSettings(epochs=2, batch_size=4, learning_rate=3e-3, warmup_epochs=0)
    train(model, flat, tiny_llama.sequences(14), settings, seed=5, prox=prox, on_step=lambda _, x: losses.append(x))
    return losses, flat.numpy()


def test_fedprox_without_mu_is_plain_training():
    model = tiny_llama.lora()
    reference = FlatParameters(model).numpy() + 1.0
    with_term, plain = fast(model, prox=Prox(0.0, reference)), fast(tiny_llama.lora())
    assert with_term[0] == plain[0]
    np.testing.assert_array_equal(with_term[1], plain[1])


def test_the_server_of_fedprox_averages_as_that_of_fedavg():
    draw = np.random.default_rng(1)
    record = lambda: ArrayRecord({"adapter": Array(draw.normal(size=50).astype(np.float32))})  # noqa: E731
    start, models = record(), [[record() for _ in range(3)] for _ in range(4)]
    ours, theirs = (
        run(strategy, start, models, [2, 3, 5], 4) for strategy in (build("fedprox", proximal_mu=0.0), build("fedavg"))
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a["adapter"].numpy(), b["adapter"].numpy())
