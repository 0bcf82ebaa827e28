"""PGA: the ball that holds gradient ascent, the paper's radius, and where the client starts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support import tiny_llama
from transformers import LlamaConfig, LlamaForCausalLM

from clients.flat import FlatParameters
from clients.losses.pga import pga
from clients.optimisation import Ball, TrainSettings, Updater
from clients.unlearning import UnlearnOptions, unlearn
from oblivionis.client.worker import Worker
from oblivionis.config import compose as configuration
from oblivionis.errors import ClientError
from oblivionis.models.assembly import assemble
from oblivionis.models.random_model import expected_distance

FORGET = tiny_llama.sequences(4)


def plane(*values: float) -> FlatParameters:
    model = torch.nn.Linear(len(values), 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([values]))
    return FlatParameters(model)


def settings(**changes) -> TrainSettings:
    return TrainSettings(
        **{"epochs": 1, "learning_rate": 1.0, "weight_decay": 0.0, "warmup_epochs": 0.0, "batch_size": 4, **changes}
    )


def test_the_loss_is_the_negative_mean() -> None:
    assert pga(torch.tensor([1.0, 4.0])).item() == -2.5


@pytest.mark.parametrize(
    ("radius", "expected"),
    [(1.0, [2 + math.sqrt(0.5), 3 - math.sqrt(0.5)]), (5.0, [3.0, 2.0])],
)
def test_a_step_on_a_quadratic_by_hand(radius: float, expected: list[float]) -> None:
    """Ascent on ½(φ_1² − φ_2²) at (2, 3): AdamW's first step is the sign of the gradient (2, −3), so to (3, 2).

    That is √2 away from the center (2, 3): projected onto the ball of radius 1, untouched in one of radius 5.
    """
    flat = plane(2.0, 3.0)
    updater = Updater(flat, settings(), 1, None, ball=Ball(np.array([2.0, 3.0], np.float32), radius))
    phi = flat.vector
    updater.backward(-(phi[0] ** 2 - phi[1] ** 2) / 2)
    updater.step()
    np.testing.assert_allclose(flat.numpy(), expected, rtol=1e-6)


def test_every_update_stays_in_the_ball_and_reaches_its_surface() -> None:
    radius, distances = 0.05, {}
    for held in (True, False):
        model = tiny_llama.lora()
        flat = FlatParameters(model)
        center = flat.numpy()
        found: list[float] = []

        def measure(step: int, loss: float, flat=flat, center=center, found=found) -> None:
            found.append(float(np.linalg.norm(flat.numpy().astype(np.float64) - center)))

        report = unlearn(
            model,
            flat,
            FORGET,
            [],
            "pga",
            {},
            settings(epochs=6, learning_rate=3e-3),
            seed=0,
            options=UnlearnOptions(ball=Ball(center, radius) if held else None),
            on_step=measure,
        )
        distances[held] = found
        assert report.last_forget_nll > report.first_forget_nll
    assert max(distances[True]) <= radius * (1 + 1e-5)
    assert distances[True][-1] == pytest.approx(radius, rel=1e-5), "ascent is unbounded: it ends on the surface"
    assert distances[False][-1] > 2 * radius


def test_bad_balls() -> None:
    flat = plane(1.0, 2.0)
    for radius in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="radius"):
            Updater(flat, settings(), 1, None, ball=Ball(flat.numpy(), radius))
    with pytest.raises(ValueError, match="center"):
        Updater(flat, settings(), 1, None, ball=Ball(np.zeros(3, np.float32), 1.0))


def test_the_distance_to_random_adapters_against_ten_of_them() -> None:
    model = configuration.compose("smoke").model
    vectors = [assemble(model, seed).flat.numpy() for seed in range(11)]
    reference, manifest = vectors.pop(), assemble(model, 0).flat.manifest
    reference = reference + np.float32(0.01)
    distances = [np.linalg.norm(reference.astype(np.float64) - vector) for vector in vectors]
    assert np.ptp(distances) < 0.02 * np.mean(distances), "the distance hardly varies"
    assert expected_distance(reference, manifest, "lora", 0.02) == pytest.approx(np.mean(distances), rel=5e-3)


@pytest.mark.parametrize("deviation", [0.02, 0.3])
def test_the_distance_to_random_models_against_ten_of_them(deviation: float) -> None:
    """With biases, tied and untied weights as transformers initialises them."""
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    options = {"vocab_size": 97, "attention_bias": True, "initializer_range": deviation, **shape}

    def draw(seed: int) -> FlatParameters:
        torch.manual_seed(seed)
        return FlatParameters(LlamaForCausalLM(LlamaConfig(**options)))

    reference = draw(99)
    vector = reference.numpy() + np.float32(0.05)
    distances = [np.linalg.norm(vector.astype(np.float64) - draw(seed).numpy()) for seed in range(10)]
    found = expected_distance(vector, reference.manifest, "full", deviation)
    assert found == pytest.approx(np.mean(distances), rel=1e-2)


@pytest.fixture(scope="module")
def worker() -> Worker:
    overrides = ["unlearning=pga", "unlearning.epochs=3", "unlearning.learning_rate=1e-2"]
    return Worker(configuration.compose("smoke", overrides))


@pytest.fixture(scope="module")
def reference(worker: Worker) -> np.ndarray:
    return worker.assembled.flat.numpy()


def forget(worker: Worker, reference: np.ndarray | None, **changes):
    worker.config = configuration.compose("smoke", ["unlearning=pga", *(f"{k}={v}" for k, v in changes.items())])
    vector = np.full(worker.flat.size, 9.0, np.float32)
    ids = [record.id for record in worker.holding(0).records][:2]
    return worker.forget(0, vector, record_ids=ids, tombstones=ids, proximal_mu=0.0, seed=1, reference=reference)


def test_a_client_starts_from_the_model_of_the_others(worker: Worker, reference: np.ndarray) -> None:
    unchanged, report = forget(worker, reference, **{"unlearning.forget_nll_limit": 1e-6})
    assert report.stopped and report.steps == 0
    assert unchanged.tobytes() == reference.tobytes(), "not the global model, which is far away here"
    with pytest.raises(ClientError, match="other clients"):
        forget(worker, None)


def test_a_client_stays_within_the_configured_radius_or_a_third_of_the_distance_to_random(
    worker: Worker, reference: np.ndarray
) -> None:
    fast = {"unlearning.learning_rate": 0.1, "unlearning.epochs": 8, "unlearning.forget_nll_limit": 1e9}
    found, _ = forget(worker, reference, **fast, **{"unlearning.params.radius": 0.25})
    assert np.linalg.norm(found - reference) == pytest.approx(0.25, rel=1e-4)
    third = expected_distance(reference, worker.flat.manifest, "lora", 0.02) / 3
    found, _ = forget(worker, reference, **fast, **{"unlearning.params.radius": "null"})
    assert np.linalg.norm(found - reference) == pytest.approx(third, rel=1e-4)


def test_ascent_stops_at_chance_level(worker: Worker, reference: np.ndarray) -> None:
    """Without a configured limit: ln V, the loss of a model that knows nothing."""
    options = {"unlearning.learning_rate": 0.02, "unlearning.epochs": 50, "unlearning.forget_nll_limit": "null"}
    _, report = forget(worker, reference, **options)
    assert report.stopped and report.last_forget_nll <= math.log(len(worker.assembled.tokenizer))
