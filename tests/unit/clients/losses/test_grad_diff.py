"""Gradient difference: numbers by hand."""

from __future__ import annotations

import math

import pytest
import torch

from clients.losses.grad_diff import grad_diff

LN2, LN4 = math.log(2), math.log(4)


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_grad_diff_eq_37() -> None:
    value = grad_diff(t(LN2, LN4), t(LN4, LN4), gamma=2.0, alpha=0.5)
    assert value.item() == pytest.approx(-3 * LN2 + LN2)
    assert grad_diff(t(LN2, LN4), None, gamma=2.0).item() == pytest.approx(-3 * LN2)


def test_the_gradient_by_finite_differences() -> None:
    assert torch.autograd.gradcheck(grad_diff, (t(0.7, 2.1), t(0.3, 1.9)))
