"""AltPO: numbers by hand, a slow loop, and what it does to the answers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from support.slow_unlearning import FORGET, OTHERS, RETAIN, fast, in_turn, log_p, nll, rows, trajectory
from torch import Tensor

from clients.flat_parameters import FlatParameters
from clients.losses.altpo import altpo
from clients.training import TrainSettings
from clients.unlearning import UnlearnOptions, unlearn
from evaluation.engine.sequences import TokenSequence

LN2 = math.log(2)


def test_by_hand() -> None:
    """Ratios 8 of the other answer and 1/2 of the true one: σ(log 16) = 16/17 for β = 1, σ(log 4) = 4/5 for 1/2."""
    known = [torch.tensor([-n * LN2]) for n in (6, 5, 1, 4)]
    assert altpo(*known, beta=1.0).item() == pytest.approx(2 * math.log(17 / 16))
    assert altpo(*known, beta=0.5).item() == pytest.approx(4 * math.log(5 / 4))
    both = altpo(*known, torch.tensor([LN2, 2 * LN2]), beta=1.0, alpha=2.0).item()
    assert both == pytest.approx(2 * math.log(17 / 16) + 3 * LN2)
    with pytest.raises(ValueError, match="beta"):
        altpo(*known, beta=0.0)


@pytest.mark.slow
def test_trajectory_equals_the_slow_loop_with_a_divergence_on_retain_records() -> None:
    """σ by its definition; KL(received‖model) summed over the vocabulary."""
    others = in_turn()

    def divergence(model: Any, received: Any, record: TokenSequence) -> Tensor:
        with torch.no_grad():
            log_q = rows(received, record)
        return (log_q.exp() * (log_q - rows(model, record))).sum(-1).mean()

    def loss(model: Any, received: Any, forget: list[TokenSequence], retain: list[TokenSequence]) -> Tensor:
        terms = []
        for true, other in zip(forget, others(forget), strict=True):
            with torch.no_grad():
                before = log_p(received, other) - log_p(received, true)
            margin = log_p(model, other) - log_p(model, true) - before
            terms.append(-2 / 0.2 * torch.log(1 / (1 + torch.exp(-0.2 * margin))))
        return torch.stack(terms).mean() + 0.8 * torch.stack([divergence(model, received, r) for r in retain]).mean()

    expected_history, expected = trajectory(loss)
    history, found = fast("altpo", {"beta": 0.2, "alpha": 0.8}, options=UnlearnOptions(retain_loss="kl"))
    np.testing.assert_allclose(history, expected_history, rtol=0, atol=2e-4)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-4)


@pytest.mark.slow
def test_the_other_answers_take_the_place_of_the_true_ones() -> None:
    """After learning the true answers by heart, each question has a likelier other answer, and retain records stay."""
    model = tiny_llama.lora(num_hidden_layers=3)
    flat = FlatParameters(model)
    fast_rate = TrainSettings(epochs=60, batch_size=8, learning_rate=1e-2, warmup_epochs=0)
    unlearn(model, flat, [*FORGET, *RETAIN], [*FORGET, *RETAIN], "fine_tune", {}, fast_rate, seed=0)

    def means() -> list[float]:
        with torch.no_grad():
            return [nll(model, records).item() for records in (FORGET, [answers[0] for answers in OTHERS], RETAIN)]

    true, other, retain = means()
    assert true < other
    settings = TrainSettings(epochs=30, batch_size=8, learning_rate=5e-3, warmup_epochs=0)
    unlearn(model, flat, FORGET, RETAIN, "altpo", {}, settings, seed=0, alternatives=[[a[0]] for a in OTHERS])
    after = means()
    assert after[0] > true + 1 and after[1] < other - 1 and after[1] < after[0]
    assert after[2] < retain + 0.3
