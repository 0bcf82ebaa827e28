"""Unlearning losses against numbers derived by hand.

The answers come from a vocabulary of two tokens with probabilities 1/2 and 1/2 or 1/4 and 3/4.
"""

from __future__ import annotations

import math

import pytest
import torch

from clients import losses
from clients.losses.grad_ascent import grad_ascent
from clients.losses.grad_diff import grad_diff
from clients.losses.npo import npo
from clients.losses.simnpo import simnpo

LN2, LN4 = math.log(2), math.log(4)


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_names_and_unknown_name() -> None:
    assert {"grad_ascent", "grad_diff", "npo", "simnpo"} <= set(losses.names())
    with pytest.raises(ValueError, match=r"'simnop'.*simnpo"):
        losses.get("simnop")


@pytest.mark.parametrize("name", losses.names())
def test_every_method_file_defines_a_usable_method(name: str) -> None:
    method = losses.get(name)
    assert method.name == name and method.names
    assert losses.hyperparameters(name) == dict(method.defaults)
    assert method.function.__doc__


def test_signature_tells_what_a_method_needs() -> None:
    method = losses.get("npo")
    assert method.required == ("forget_log_p", "forget_reference_log_p")
    assert method.optional == ("retain_loss",)
    assert losses.hyperparameters("npo") == {"beta": 0.1, "alpha": 1.0}


def test_hyperparameters_are_checked() -> None:
    method = losses.get("npo")
    assert method.parameters({"beta": 2}) == {"beta": 2, "alpha": 1.0}
    with pytest.raises(ValueError, match=r"'btea'.*beta"):
        method.parameters({"btea": 1.0})
    for bad in (math.nan, math.inf, "1", True, None):
        with pytest.raises(ValueError, match="beta"):
            method.parameters({"beta": bad})


def test_grad_ascent_eq_36() -> None:
    assert grad_ascent(t(LN2, LN4), gamma=2.0).item() == pytest.approx(-3 * LN2)


def test_grad_diff_eq_37() -> None:
    value = grad_diff(t(LN2, LN4), t(LN4, LN4), gamma=2.0, alpha=0.5)
    assert value.item() == pytest.approx(-3 * LN2 + LN2)
    assert grad_diff(t(LN2, LN4), None, gamma=2.0).item() == pytest.approx(-3 * LN2)


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


def test_simnpo_eq_39_has_delta_outside_beta() -> None:
    """|y| = 2, p = 1/16, so −log p / |y| = log 4. β = 2, δ = log 2: σ(2 log 4 − log 2) = σ(log 8) = 8/9."""
    assert simnpo(t(LN4), beta=2.0, delta=LN2).item() == pytest.approx(-math.log(8 / 9))
    assert simnpo(t(LN4), t(LN2), beta=2.0, delta=0.0, alpha=3.0).item() == pytest.approx(-math.log(16 / 17) + 3 * LN2)


@pytest.mark.parametrize("gap", [-1e4, 1e4])
def test_preference_losses_stay_finite_far_out(gap: float) -> None:
    log_p = t(-2e4 + gap)
    value = npo(log_p, t(-2e4), beta=5.0)
    value.backward()
    assert value.item() == pytest.approx(max(0.0, 2 * gap), abs=1e-9)
    assert log_p.grad is not None and torch.isfinite(log_p.grad).all()
    nll = t(1e5)
    assert simnpo(nll, beta=4.0, delta=gap).isfinite()


@pytest.mark.parametrize("beta", [0.0, -1.0])
def test_beta_must_be_positive(beta: float) -> None:
    with pytest.raises(ValueError, match="beta"):
        npo(t(-1.0), t(-1.0), beta=beta)
    with pytest.raises(ValueError, match="beta"):
        simnpo(t(1.0), beta=beta)


def test_gradients_by_finite_differences() -> None:
    log_p, reference, nll, retain = t(-3.0, -8.0), t(-2.0, -9.0), t(0.7, 2.1), t(0.3, 1.9)
    for function, inputs in (
        (grad_diff, (nll, retain)),
        (npo, (log_p, reference.detach(), retain)),
        (simnpo, (nll, retain)),
    ):
        assert torch.autograd.gradcheck(function, inputs)
