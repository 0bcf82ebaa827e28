"""Gradient ascent: numbers by hand."""

from __future__ import annotations

import math

import pytest
import torch

from clients.losses.grad_ascent import grad_ascent

LN2, LN4 = math.log(2), math.log(4)


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_grad_ascent_eq_36() -> None:
    assert grad_ascent(t(LN2, LN4), gamma=2.0).item() == pytest.approx(-3 * LN2)


def test_the_gradient_by_finite_differences() -> None:
    assert torch.autograd.gradcheck(grad_ascent, (t(0.7, 2.1),))
