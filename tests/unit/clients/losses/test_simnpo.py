"""Simple negative preference optimisation: numbers by hand."""

from __future__ import annotations

import math

import pytest
import torch

from clients.losses.simnpo import simnpo

LN2, LN4 = math.log(2), math.log(4)


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_simnpo_eq_39_has_delta_outside_beta() -> None:
    """|y| = 2, p = 1/16, so −log p / |y| = log 4. β = 2, δ = log 2: σ(2 log 4 − log 2) = σ(log 8) = 8/9."""
    assert simnpo(t(LN4), beta=2.0, delta=LN2).item() == pytest.approx(-math.log(8 / 9))
    assert simnpo(t(LN4), t(LN2), beta=2.0, delta=0.0, alpha=3.0).item() == pytest.approx(-math.log(16 / 17) + 3 * LN2)


@pytest.mark.parametrize("delta", [-1e4, 1e4])
def test_far_out_it_stays_finite(delta: float) -> None:
    nll = t(1e5)
    value = simnpo(nll, beta=4.0, delta=delta)
    value.backward()
    assert value.isfinite() and nll.grad is not None and nll.grad.isfinite().all()


@pytest.mark.parametrize("beta", [0.0, -1.0])
def test_beta_must_be_positive(beta: float) -> None:
    with pytest.raises(ValueError, match="beta"):
        simnpo(t(1.0), beta=beta)


def test_the_gradient_by_finite_differences() -> None:
    assert torch.autograd.gradcheck(simnpo, (t(0.7, 2.1), t(0.3, 1.9)))
