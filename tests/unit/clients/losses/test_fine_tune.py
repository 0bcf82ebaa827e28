"""Fine-tuning: numbers by hand."""

from __future__ import annotations

import math

import pytest
import torch

from clients.losses.fine_tune import fine_tune

LN2 = math.log(2)


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_fine_tune_by_hand() -> None:
    assert fine_tune(t(LN2, 3 * LN2)).item() == pytest.approx(2 * LN2)


def test_the_gradient_by_finite_differences() -> None:
    assert torch.autograd.gradcheck(fine_tune, (t(0.7, 2.1),))
