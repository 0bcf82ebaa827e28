"""FedOSD's unlearning cross-entropy: numbers by hand, its gradient, a slow loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from support.slow_unlearning import fast, rows, trajectory
from torch import Tensor

from clients.losses.fedosd import fedosd


def test_by_hand() -> None:
    """p = 1 and ½ of one record, ¼ of another: (ln 2 + ln 4/3)/2 and ln 8/7."""
    given = [torch.tensor([0.0, -math.log(2)]), torch.tensor([-math.log(4)])]
    expected = ((math.log(2) + math.log(4 / 3)) / 2 + math.log(8 / 7)) / 2
    assert fedosd(given).item() == pytest.approx(expected)


def test_the_gradient_in_the_logit_is_bounded_and_ends() -> None:
    """d/dz −log(1 − p/2) = p (1 − p)/(2 − p) for the true token's logit z."""
    z = torch.tensor([-20.0, -1.0, 0.0, 3.0, 20.0], dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(5 * fedosd([torch.nn.functional.logsigmoid(z)]), z)
    p = z.detach().sigmoid()
    torch.testing.assert_close(found, p * (1 - p) / (2 - p))


def test_trajectory_equals_the_slow_loop() -> None:
    def loss(model: Any, received: Any, forget: list[Any], retain: list[Any]) -> Tensor:
        terms = []
        for record in forget:
            p = rows(model, record).exp()
            terms.append(torch.stack([-(1 - p[i, t] / 2).log() for i, t in enumerate(record.answer)]).mean())
        return torch.stack(terms).mean()

    expected_history, expected = trajectory(loss)
    history, found = fast("fedosd", {})
    np.testing.assert_allclose(history, expected_history, rtol=1e-4, atol=2e-4)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-4)
