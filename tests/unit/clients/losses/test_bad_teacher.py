"""Bad teacher: numbers by hand."""

from __future__ import annotations

import math

import pytest
import torch

from clients.losses.bad_teacher import bad_teacher

LN2, LN3 = math.log(2), math.log(3)


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_bad_teacher_by_hand() -> None:
    assert bad_teacher(t(LN2, LN3), t(LN2, LN2), t(LN3, LN3), gamma=2.0, alpha=0.5).item() == pytest.approx(
        LN2 + LN3 + 0.5 * (LN2 + LN3)
    )
    assert bad_teacher(t(LN2)).item() == pytest.approx(LN2)


def test_the_gradient_by_finite_differences() -> None:
    assert torch.autograd.gradcheck(bad_teacher, (t(0.7, 2.1), t(0.3, 1.9), t(1.5, 0.2)))
