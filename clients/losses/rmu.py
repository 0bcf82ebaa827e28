"""Representation misdirection for unlearning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

LABEL = "RMU"
LIMITS = {
    "steering_coefficient": {"help": "Length c of the vector to which forget records' states are led."},
    "alpha": {"help": "Weight of the retain term.", "at_least": 0},
    "layer": {
        "help": "Decoder layer, from 0, whose states are led; -1: as deep as layer 7 of 32.",
        "at_least": -1,
    },
    "moved_layers": {"help": "Layers whose parameters move: `layer` and those right before it.", "at_least": 1},
    "direction_seed": {"help": "Seed of that vector's direction.", "at_least": 0},
}


def rmu(
    forget_states: Sequence[Tensor],
    retain_states: Sequence[Tensor] | None = None,
    retain_reference_states: Sequence[Tensor] | None = None,
    *,
    steering_coefficient: float = 6.5,
    alpha: float = 1200.0,
    layer: int = -1,
    moved_layers: int = 3,
    direction_seed: int = 0,
) -> Tensor:
    """E_forget ‖h(x) − c·u‖² + α E_retain ‖h(x) − h_ref(x)‖²: Li et al. 2024 (WMDP), eqs. 1 and 2.

    ‖·‖² is the mean over a record's tokens of the squared length, E the mean over records.

    Parameters
    ----------
    forget_states, retain_states, retain_reference_states : sequence of B tensors (L_i, d)
        States of each record's tokens after one layer; the last under the model as received. Without retain states
        their term is left out.
    steering_coefficient : float
        c.
    alpha : float, at least 0
        α.
    layer, moved_layers : int
        See `layers`.
    direction_seed : int
        Seed of the direction u.

    Returns
    -------
    tensor, scalar
    """
    target = steering_coefficient * control_vector(forget_states[0].shape[-1], direction_seed)
    loss = _mean([_distance(h, target.to(h.device)) for h in forget_states])
    if retain_states is None or retain_reference_states is None:
        return loss
    pairs = zip(retain_states, retain_reference_states, strict=True)
    return loss + alpha * _mean([_distance(h, reference) for h, reference in pairs])


def control_vector(size: int, seed: int) -> Tensor:
    """Random direction u: entries uniform in [0, 1), scaled to length 1; equal for all clients and rounds of a seed.

    Parameters
    ----------
    size : int
        Length of a state, d.
    seed : int

    Returns
    -------
    tensor (size,)
    """
    vector = torch.rand(size, generator=torch.Generator().manual_seed(seed))
    return vector / torch.linalg.vector_norm(vector)


def layers(count: int, *, layer: int, moved_layers: int, **_: Any) -> range:
    """Decoder layers whose parameters move; states are read after the last of them.

    Parameters
    ----------
    count : int
        Decoder layers of the model.
    layer : int
        The last of them, from 0; −1: as deep as the paper's layer 7 of 32.
    moved_layers : int, at least 1
        At most so many.

    Returns
    -------
    range

    Raises
    ------
    ValueError
        If there is no such layer, or `moved_layers` is below 1.
    """
    if layer == -1:
        layer = round(7 / 31 * (count - 1))
    if not 0 <= layer < count:
        raise ValueError(f"rmu: the model has layers 0 to {count - 1}, not {layer}")
    if moved_layers < 1:
        raise ValueError(f"rmu: moved_layers must be at least 1, got {moved_layers}")
    return range(max(0, layer - moved_layers + 1), layer + 1)


def _distance(states: Tensor, target: Tensor) -> Tensor:
    """Mean over tokens of the squared distance, at least float32: half precision would overflow."""
    wide = states.to(torch.promote_types(states.dtype, torch.float32))
    return (wide - target.to(wide.dtype)).square().sum(-1).mean()


def _mean(values: list[Tensor]) -> Tensor:
    """Mean of scalars."""
    return torch.stack(values).mean()
