"""A federation of one client is that client's local training."""

import numpy as np
from flwr.app import Array, ArrayRecord
from support.aggregators import run
from support.stages import execute, new_run

from clients.flat_parameters import FlatParameters
from clients.training import TrainSettings, train
from oblivionis import seeds
from oblivionis.client.worker import Worker
from strategies.arrays import BLOCK
from strategies.rules.factory import build


def adapter(values):
    return ArrayRecord({"adapter": Array(np.asarray(values, dtype=np.float32))})


def flat(arrays):
    return arrays["adapter"].numpy()


def test_one_client_fedavg_is_that_client_bit_for_bit():
    local = np.random.default_rng(0).normal(size=BLOCK + 17).astype(np.float32)
    (got,) = run(build("fedavg"), adapter(np.zeros_like(local)), [[adapter(local)]], [3], 1)
    assert np.array_equal(flat(got), local)


def test_fedavg_of_one_client_equals_local_training(tmp_path):
    """Rounds of a whole run against a loop that trains on all records, from the model that the last round left."""
    overrides = ("federation.clients=1", "federation.fraction_train=1.0", "stages=[finetune]", "evaluation.every=0")
    config, federated = new_run(tmp_path, "one", *overrides, "federation.rounds.finetune=3")
    execute(config, federated)
    worker = Worker(config)
    model, training = worker.assembled.model, config.training
    local = FlatParameters(model)
    records = list(worker.holding(0).sequences)
    assert len(records) == 16
    settings = TrainSettings(
        epochs=config.federation.local_epochs,
        batch_size=training.batch_size,
        gradient_accumulation=training.gradient_accumulation,
        learning_rate=training.learning_rate,
        schedule=training.schedule,
        warmup_epochs=training.warmup_epochs,
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
    )
    start = local.numpy()
    for round in (1, 2, 3):
        train(model, local, records, settings, seed=seeds.derive(config.seed, "train", 0, round))
    np.testing.assert_array_equal(federated.load_checkpoint("finetune").vector, local.numpy())
    assert not np.array_equal(start, local.numpy())
