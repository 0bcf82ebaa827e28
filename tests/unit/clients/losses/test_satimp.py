"""SatImp: numbers by hand, WGA as its limit, a slow loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from support.slow_unlearning import FORGET, RETAIN, SEED, SETTINGS, nll, rows, trajectory
from torch import Tensor

from clients.flat_parameters import FlatParameters
from clients.losses.satimp import satimp
from clients.losses.wga import wga
from clients.unlearning import unlearn
from evaluation.engine.sequences import TokenSequence

LN2 = math.log(2)


def log_p(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log().requires_grad_()


def test_by_hand() -> None:
    """p (1 − p) log p is −(1/4) log 2 at 1/2 and −(3/16)·2 log 2 at 1/4: the mean is −(5/16) log 2."""
    records, retain = [log_p(0.5, 0.25)], torch.tensor([LN2, 3 * LN2])
    assert satimp(records, beta_1=1.0, gamma=1.0).item() == pytest.approx(-5 / 16 * LN2)
    assert satimp(records, retain, beta_1=1.0, gamma=2.0, alpha=0.5).item() == pytest.approx(-5 / 8 * LN2 + LN2)


def test_the_weights_get_no_gradient() -> None:
    record = log_p(0.5, 0.25)
    satimp([record], beta_1=2.0, beta_2=3.0, gamma=1.0).backward()
    assert record.grad is not None
    np.testing.assert_allclose(record.grad, [0.5**2 * 0.5**3 / 2, 0.25**2 * 0.75**3 / 2], rtol=1e-12)


def test_without_importance_it_is_wga() -> None:
    records, retain = [log_p(0.5, 0.1), log_p(0.3, 0.2, 0.9)], torch.tensor([0.4, 0.7], dtype=torch.float64)
    expected = wga(records, retain, beta=1.7, gamma=0.7, alpha=1.3).item()
    found = satimp(records, retain, beta_1=1.7, beta_2=0.0, gamma=0.7, alpha=1.3).item()
    assert found == pytest.approx(expected, rel=1e-12)


def test_tokens_that_are_forgotten_or_certain_are_let_go() -> None:
    token = torch.tensor([-2000.0, 0.0], requires_grad=True)
    satimp([token]).backward()
    assert token.grad is not None and token.grad.tolist() == [0.0, 0.0]


def test_trajectory_equals_the_slow_loop() -> None:
    def loss(model: Any, received: Any, forget: list[TokenSequence], retain: list[TokenSequence]) -> Tensor:
        terms = []
        for record in forget:
            each = [rows(model, record)[i, token] for i, token in enumerate(record.answer)]
            terms.append(sum(math.exp(x.item()) ** 0.5 * (1 - math.exp(x.item())) ** 2 * x for x in each) / len(each))
        return 1.4 * torch.stack(terms).mean() + 0.6 * nll(model, retain)

    expected_history, expected = trajectory(loss)
    model = tiny_llama.shallow()
    flat, history = FlatParameters(model), []
    unlearn(
        model, flat, FORGET, RETAIN, "satimp", {"beta_1": 0.5, "beta_2": 2.0, "gamma": 1.4, "alpha": 0.6}, SETTINGS,
        seed=SEED, on_step=lambda _, value: history.append(value),
    )  # fmt: skip
    np.testing.assert_allclose(history, expected_history, rtol=0, atol=2e-4)
    np.testing.assert_allclose(flat.numpy(), expected, rtol=0, atol=3e-4)
