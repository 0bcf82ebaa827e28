"""CE-U: against the cross-entropy with the distribution whose true token is taken out, held fixed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from support.slow_unlearning import FORGET, RETAIN, SEED, SETTINGS, nll, rows, trajectory
from torch import Tensor

from clients.flat_parameters import FlatParameters
from clients.losses.ce_u import ce_u
from clients.unlearning import unlearn
from evaluation.engine.sequences import TokenSequence


def divergence(logits: Tensor, label: int) -> Tensor:
    """KL(q‖p) of one token, q from the logits with that of the label at −∞, without a gradient."""
    without = logits.detach().clone()
    without[label] = -torch.inf
    q = without.softmax(0)
    terms = q * (q.log() - logits.log_softmax(0))
    return torch.where(q > 0, terms, 0.0).sum()


@pytest.mark.parametrize("scale", [0.1, 1.0, 6.0])
def test_value_and_gradient_are_those_of_the_divergence(scale: float) -> None:
    logits = (
        scale * torch.randn(5, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ).requires_grad_()
    labels = [0, 4, 10, 4, 7]
    slow = torch.stack([divergence(row, label) for row, label in zip(logits, labels, strict=True)]).mean()
    (expected,) = torch.autograd.grad(slow, logits)
    found = ce_u([logits.log_softmax(1)[range(5), labels]])
    (gradient,) = torch.autograd.grad(found, logits)
    assert found.item() == pytest.approx(slow.item(), rel=1e-9)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-12)
    p = logits.softmax(1)[range(5), labels]
    np.testing.assert_allclose(gradient[range(5), labels], p.detach() / 5, rtol=1e-9)


def test_forgotten_tokens_are_let_go_and_certain_ones_give_numbers() -> None:
    token = torch.tensor([-2000.0, 0.0, -1e-9], requires_grad=True)
    loss = ce_u([token])
    loss.backward()
    assert token.grad is not None and token.grad[0] == 0.0 and torch.isfinite(token.grad).all()
    assert loss.isfinite()


def test_a_retain_term_is_added() -> None:
    records, retain = [torch.tensor([-0.5, -1.0])], torch.tensor([0.4, 0.8])
    assert ce_u(records, retain, gamma=2.0, alpha=0.5).item() == pytest.approx(2 * ce_u(records).item() + 0.3)


def test_trajectory_equals_the_slow_loop() -> None:
    def loss(model: Any, received: Any, forget: list[TokenSequence], retain: list[TokenSequence]) -> Tensor:
        terms = []
        for record in forget:
            log_p = rows(model, record)
            each = [divergence(log_p[i], token) for i, token in enumerate(record.answer)]
            terms.append(torch.stack(each).mean())
        return 1.4 * torch.stack(terms).mean() + 0.6 * nll(model, retain)

    expected_history, expected = trajectory(loss)
    model = tiny_llama.shallow()
    flat, history = FlatParameters(model), []
    unlearn(
        model, flat, FORGET, RETAIN, "ce_u", {"gamma": 1.4, "alpha": 0.6}, SETTINGS,
        seed=SEED, on_step=lambda _, value: history.append(value),
    )  # fmt: skip
    np.testing.assert_allclose(history, expected_history, rtol=0, atol=2e-4)
    np.testing.assert_allclose(flat.numpy(), expected, rtol=0, atol=3e-4)
