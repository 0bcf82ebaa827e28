"""NegGrad: numbers by hand."""

from __future__ import annotations

import math

import pytest
import torch

from clients.losses.neg_grad import neg_grad

LN2 = math.log(2)


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_neg_grad_by_hand() -> None:
    assert neg_grad(t(LN2, 3 * LN2), t(LN2, LN2), alpha=0.75).item() == pytest.approx(0.75 * LN2 - 0.25 * 2 * LN2)
    for alpha in (-0.1, 1.1):
        with pytest.raises(ValueError, match="alpha"):
            neg_grad(t(1.0), t(1.0), alpha=alpha)


def test_the_gradient_by_finite_differences() -> None:
    assert torch.autograd.gradcheck(neg_grad, (t(0.7, 2.1), t(0.3, 1.9)))
