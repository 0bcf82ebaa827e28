"""Negative preference optimisation: numbers by hand, its limits."""

from __future__ import annotations

import math

import pytest
import torch

from clients.losses.npo import npo

LN2 = math.log(2)


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_npo_eq_38_uses_the_sequence_likelihood() -> None:
    """Answer of two tokens, p = 1/2 · 1/8 against 1/2 · 1/2: the ratio is 1/4, so −2 log σ(log 4) = 2 log(5/4)."""
    value = npo(t(-4 * LN2), t(-2 * LN2), beta=1.0)
    assert value.item() == pytest.approx(2 * math.log(5 / 4))
    assert npo(t(-4 * LN2), t(-2 * LN2), t(LN2, 3 * LN2), beta=1.0, alpha=0.5).item() == pytest.approx(
        2 * math.log(5 / 4) + LN2
    )


def test_npo_at_the_reference_is_two_log_two_over_beta() -> None:
    assert npo(t(-7.0, -3.0), t(-7.0, -3.0), beta=0.1).item() == pytest.approx(20 * LN2)


def test_npo_is_a_mean_over_records() -> None:
    one, other = npo(t(-9.0), t(-2.0)).item(), npo(t(-1.0), t(-2.0)).item()
    assert npo(t(-9.0, -1.0), t(-2.0, -2.0)).item() == pytest.approx((one + other) / 2)


def test_npo_gradient_tends_to_gradient_ascent_on_the_sequence_for_small_beta() -> None:
    log_p = t(-5.0, -40.0)
    npo(log_p, t(-1.0, -2.0), beta=1e-7).backward()
    assert log_p.grad is not None
    torch.testing.assert_close(log_p.grad, torch.full((2,), 0.5, dtype=torch.float64), rtol=1e-5, atol=0)


@pytest.mark.parametrize("gap", [-1e4, 1e4])
def test_far_out_it_stays_finite(gap: float) -> None:
    log_p = t(-2e4 + gap)
    value = npo(log_p, t(-2e4), beta=5.0)
    value.backward()
    assert value.item() == pytest.approx(max(0.0, 2 * gap), abs=1e-9)
    assert log_p.grad is not None and torch.isfinite(log_p.grad).all()


@pytest.mark.parametrize("beta", [0.0, -1.0])
def test_beta_must_be_positive(beta: float) -> None:
    with pytest.raises(ValueError, match="beta"):
        npo(t(-1.0), t(-1.0), beta=beta)


def test_the_gradient_by_finite_differences() -> None:
    assert torch.autograd.gradcheck(npo, (t(-3.0, -8.0), t(-2.0, -9.0).detach(), t(0.3, 1.9)))
