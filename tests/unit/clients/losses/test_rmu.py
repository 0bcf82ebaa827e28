"""RMU: numbers by hand, the direction, the layers that move."""

from __future__ import annotations

import pytest
import torch

from clients.losses.rmu import control_vector, layers, rmu


def test_rmu_by_hand() -> None:
    """Two records of one and two tokens, d = 2, c·u = (1.2, 1.6) for u = (0.6, 0.8)."""
    u = torch.tensor([0.6, 0.8], dtype=torch.float64)
    forget = [torch.tensor([[1.2, 2.6]], dtype=torch.float64), torch.tensor([[0.2, 1.6], [1.2, 4.6]]).double()]
    retain = [torch.tensor([[1.0, 1.0]], dtype=torch.float64)]
    reference = [torch.tensor([[1.0, 3.0]], dtype=torch.float64)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clients.losses.rmu.control_vector", lambda size, seed: u)
        assert rmu(forget, steering_coefficient=2.0).item() == pytest.approx((1 + (1 + 9) / 2) / 2)
        assert rmu(forget, retain, reference, steering_coefficient=2.0, alpha=0.5).item() == pytest.approx(3 + 2)


def test_long_states_in_half_precision_do_not_overflow() -> None:
    states = torch.full((2, 4), 300.0, dtype=torch.float16)
    assert rmu([states], steering_coefficient=0.0).item() == pytest.approx(4 * 300.0**2)


def test_the_direction_of_rmu_is_a_unit_vector_of_its_seed() -> None:
    u = control_vector(500, 1)
    assert torch.linalg.vector_norm(u).item() == pytest.approx(1, abs=1e-6) and (u >= 0).all()
    assert torch.equal(u, control_vector(500, 1)) and not torch.equal(u, control_vector(500, 2))


@pytest.mark.parametrize(
    ("count", "layer", "moved", "expected"),
    [
        (32, 7, 3, range(5, 8)),
        (32, -1, 3, range(5, 8)),
        (4, -1, 3, range(2)),
        (1, -1, 3, range(1)),
        (12, -1, 1, range(2, 3)),
        (48, -1, 2, range(10, 12)),
        (80, -1, 1, range(18, 19)),
        (4, 0, 3, range(1)),
        (2, 1, 1, range(1, 2)),
    ],
)
def test_layers_that_rmu_moves(count: int, layer: int, moved: int, expected: range) -> None:
    assert layers(count, layer=layer, moved_layers=moved) == expected


@pytest.mark.parametrize(("layer", "moved"), [(4, 1), (-2, 1), (0, 0)])
def test_layers_that_do_not_exist(layer: int, moved: int) -> None:
    with pytest.raises(ValueError, match="rmu"):
        layers(4, layer=layer, moved_layers=moved)


def test_the_gradient_by_finite_differences() -> None:
    states = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    other = torch.randn(2, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: rmu([x], [x[:2]], [other], alpha=2.0), (states,))
