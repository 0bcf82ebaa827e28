"""SCRUB: numbers by hand, and which steps come when."""

from __future__ import annotations

import math

import pytest
import torch

from clients.losses.scrub import phases, scrub

LN2, LN3 = math.log(2), math.log(3)


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_scrub_by_hand() -> None:
    assert scrub(None, None, t(LN2, LN3)).item() == pytest.approx(-(LN2 + LN3) / 2)
    assert scrub(t(LN2, LN2), t(LN3, LN3), alpha=0.5, gamma=2.0).item() == pytest.approx(0.5 * LN2 + 2 * LN3)
    with pytest.raises(ValueError, match="min-step"):
        scrub(t(LN2))


def test_scrub_takes_max_steps_in_the_first_epochs_only() -> None:
    assert [len(phases(epoch, msteps=2)) for epoch in range(4)] == [2, 2, 1, 1]
    assert phases(0, msteps=0) == phases(5, msteps=3) == [("retain_reference_kl", "retain_nll")]


def test_the_gradients_of_both_steps_by_finite_differences() -> None:
    assert torch.autograd.gradcheck(scrub, (t(0.7, 2.1), t(0.3, 1.9)))
    assert torch.autograd.gradcheck(lambda x: scrub(None, None, x), (t(0.7, 2.1),))
