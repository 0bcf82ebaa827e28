"""Calibrated forgetting's loss: numbers by hand, both sides, a slow loop with a base model of its own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from support.slow_unlearning import FORGET, RETAIN, SEED, SETTINGS, nll, rows, trajectory
from torch import Tensor

from clients.calibrated_forgetting import Target
from clients.flat_parameters import FlatParameters
from clients.losses.calibrated import calibrated
from clients.unlearning import UnlearnOptions, unlearn
from evaluation.engine.sequences import TokenSequence


def test_by_hand() -> None:
    """Gaps 0.5 and −2, divergences 0.2 and 0.4, leads 0 and 0.8: 2 (0.25 + 4)/2 + 0.5 · 0.3 + 3 · 0.4; the retain term
    adds 0.5 · 0.4."""
    values = (torch.tensor([1.5, 1.0]), torch.tensor([1.0, 3.0]), torch.tensor([0.2, 0.4]), torch.tensor([0.0, 0.8]))
    weights = {"gamma": 2.0, "kappa": 0.5, "rho": 3.0}
    assert calibrated(*values, **weights).item() == pytest.approx(4.25 + 0.15 + 1.2)
    retain = torch.tensor([0.3, 0.5])
    assert calibrated(*values, retain, **weights, alpha=0.5).item() == pytest.approx(5.6 + 0.2)


def test_what_is_known_too_well_is_pushed_and_what_is_avoided_is_pulled() -> None:
    found = torch.tensor([0.1, 5.0, 2.0], requires_grad=True)
    calibrated(found, torch.tensor([2.0, 2.0, 2.0]), torch.zeros(3), torch.zeros(3)).backward()
    assert found.grad is not None and found.grad[0] < 0 < found.grad[1] and found.grad[2] == 0


@pytest.mark.parametrize("recited", [False, True])
def test_trajectory_equals_the_slow_loop(recited: bool) -> None:
    """The base model has other parameters than the model as received; its logits are sharpened, the labels' lowered. Of
    recited records the even tokens of the first one count, and none of the second."""
    levels, sharpness = [1.0 + 0.4 * i for i in range(len(FORGET))], 1.4
    lowered = tuple(torch.linspace(-1.0, 2.5, len(record.answer)) for record in FORGET)
    masks = [torch.arange(len(record.answer)) % 2 == 0 for record in FORGET]
    tokens = (masks[0], torch.zeros_like(masks[1]), *masks[2:]) if recited else None
    other = tiny_llama.shallow()
    base = FlatParameters(other)
    moved = base.numpy() + np.random.default_rng(4).normal(0, 0.03, base.size).astype(np.float32)
    base.load(moved)
    other = copy.deepcopy(other).eval()

    def loss(model: Any, received: Any, forget: list[TokenSequence], retain: list[TokenSequence]) -> Tensor:
        terms = []
        for record in forget:
            ours, count = rows(model, record), len(record.answer)
            with torch.no_grad():
                theirs = sharpness * rows(other, record)
                for i, token in enumerate(record.answer):
                    theirs[i, token] -= lowered[FORGET.index(record)][i]
                theirs = theirs.log_softmax(-1)
            gap = -sum(ours[i, t] for i, t in enumerate(record.answer)) / count - levels[FORGET.index(record)]
            terms.append(0.7 * gap**2 + 1.3 * (theirs.exp() * (theirs - ours)).sum() / count)
            places = [i for i in range(count) if tokens is not None and tokens[FORGET.index(record)][i]]
            if places:
                p = ours.exp()
                leads = [p[i, t] - torch.cat([p[i, :t], p[i, t + 1 :]]).max() for i, t in enumerate(record.answer)]
                terms[-1] = terms[-1] + 9.0 * sum(leads[i].clamp(min=0) for i in places) / len(places)
        return torch.stack(terms).mean() + 0.6 * nll(model, retain)

    expected_history, expected = trajectory(loss)
    model = tiny_llama.shallow()
    flat, history = FlatParameters(model), []
    options = UnlearnOptions(target=Target(torch.tensor(levels), 0.01, moved, sharpness, lowered, recited=tokens))
    unlearn(
        model, flat, FORGET, RETAIN, "calibrated", {"gamma": 0.7, "kappa": 1.3, "rho": 9.0, "alpha": 0.6}, SETTINGS,
        seed=SEED, options=options, on_step=lambda _, value: history.append(value),
    )  # fmt: skip
    np.testing.assert_allclose(history, expected_history, rtol=0, atol=2e-4)
    np.testing.assert_allclose(flat.numpy(), expected, rtol=0, atol=2e-3)  # Adam turns rounding near 0 into steps
