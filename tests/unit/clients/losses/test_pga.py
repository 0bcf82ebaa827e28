"""PGA: the ball that holds gradient ascent, the paper's radius, and where the client starts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support import tiny_llama

from clients.flat_parameters import FlatParameters
from clients.losses.pga import pga
from clients.optimisation import Ball, TrainSettings, Updater
from clients.unlearning import UnlearnOptions, unlearn

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
        model = tiny_llama.shallow()
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
