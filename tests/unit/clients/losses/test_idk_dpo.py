"""IdkDPO: numbers by hand, NPO and plain ascent and descent as its limits, a slow loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from support.slow_unlearning import FORGET, OTHERS, SEED, SETTINGS, fast, in_turn, log_p, nll, trajectory
from torch import Tensor

from clients.flat_parameters import FlatParameters
from clients.losses.idk_dpo import idk_dpo
from clients.losses.npo import npo
from clients.unlearning import unlearn
from evaluation.engine.sequences import TokenSequence

LN2 = math.log(2)


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_by_hand() -> None:
    """The true answer is half as likely as before, the other twice: σ(β log 4) is 4/5 for β = 1 and 2/3 for 1/2."""
    ratios = (t(-5 * LN2), t(-4 * LN2), t(-2 * LN2), t(-3 * LN2))
    assert idk_dpo(*ratios, beta=1.0).item() == pytest.approx(2 * math.log(5 / 4))
    assert idk_dpo(*ratios, beta=0.5).item() == pytest.approx(4 * math.log(3 / 2))
    both = idk_dpo(*ratios, t(LN2, 3 * LN2), beta=1.0, alpha=0.5).item()
    assert both == pytest.approx(2 * math.log(5 / 4) + LN2)


def test_it_is_a_mean_over_records_and_starts_at_two_log_two_over_beta() -> None:
    forget, idk = t(-7.0, -3.0), t(-20.0, -30.0)
    assert idk_dpo(forget, forget, idk, idk, beta=0.1).item() == pytest.approx(20 * LN2)
    one, other = (idk_dpo(t(a), t(-2.0), t(b), t(-9.0)).item() for a, b in ((-5.0, -6.0), (-1.0, -8.0)))
    assert idk_dpo(t(-5.0, -1.0), t(-2.0, -2.0), t(-6.0, -8.0), t(-9.0, -9.0)).item() == pytest.approx(
        (one + other) / 2
    )


def test_where_the_idk_answer_is_as_likely_as_before_it_is_npo() -> None:
    forget, reference, idk, retain = t(-9.0, -1.0), t(-2.0, -2.0), t(-30.0, -20.0), t(0.4, 0.8)
    expected = npo(forget, reference, retain, beta=0.3, alpha=0.7).item()
    assert idk_dpo(forget, reference, idk, idk, retain, beta=0.3, alpha=0.7).item() == pytest.approx(
        expected, rel=1e-12
    )


def test_for_small_beta_it_is_ascent_on_the_true_and_descent_on_the_idk_answer() -> None:
    forget, idk = t(-5.0, -40.0), t(-60.0, -8.0)
    idk_dpo(forget, t(-1.0, -2.0), idk, t(-50.0, -30.0), beta=1e-7).backward()
    assert forget.grad is not None and idk.grad is not None
    np.testing.assert_allclose(forget.grad, [0.5, 0.5], rtol=1e-5)
    np.testing.assert_allclose(idk.grad, [-0.5, -0.5], rtol=1e-5)


def test_gradient_by_finite_differences() -> None:
    reference = (torch.tensor([-2.0, -9.0]).double(), torch.tensor([-12.0, -7.0]).double())

    def loss(forget: Tensor, idk: Tensor, retain: Tensor) -> Tensor:
        return idk_dpo(forget, reference[0], idk, reference[1], retain, beta=0.4, alpha=0.7)

    assert torch.autograd.gradcheck(loss, (t(-3.0, -8.0), t(-11.0, -9.0), t(0.3, 1.9)))


@pytest.mark.parametrize("beta", [0.0, -1.0])
def test_beta_must_be_positive(beta: float) -> None:
    with pytest.raises(ValueError, match="beta"):
        idk_dpo(t(-1.0), t(-1.0), t(-1.0), t(-1.0), beta=beta)


@pytest.mark.parametrize("mode", ["", "padded"])
@pytest.mark.slow
def test_trajectory_equals_the_slow_loop(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others = in_turn()

    def loss(model: Any, received: Any, forget: list[TokenSequence], retain: list[TokenSequence]) -> Tensor:
        terms = []
        for true, idk in zip(forget, others(forget), strict=True):
            with torch.no_grad():
                before = log_p(received, idk) - log_p(received, true)
            odds = torch.exp(-0.3 * (log_p(model, idk) - log_p(model, true) - before))
            terms.append(2 / 0.3 * torch.log(1 + odds))
        return torch.stack(terms).mean() + 0.6 * nll(model, retain)

    expected_history, expected = trajectory(loss)
    if mode:
        monkeypatch.setattr("evaluation.engine.forward.resolve_mode", lambda *_: "padded")
    history, found = fast("idk_dpo", {"beta": 0.3, "alpha": 0.6})
    np.testing.assert_allclose(history, expected_history, rtol=0, atol=2e-4)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-4)


def test_without_retain_records_it_starts_at_two_log_two_over_beta() -> None:
    """The references of the other answers are there, whoever else takes part."""
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    report = unlearn(model, flat, FORGET, [], "idk_dpo", {"beta": 0.5}, SETTINGS, seed=SEED, alternatives=OTHERS)
    assert report.first_loss == pytest.approx(4 * LN2, rel=1e-4) and not report.retain_used
