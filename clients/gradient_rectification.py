"""Gradient rectified unlearning (GRU): the unlearning gradient without what would undo the retain records."""

from __future__ import annotations

import torch
from torch import Tensor


class Rectifier:
    """Projects gradients of an unlearning loss onto the half-space in which the loss on retain records does not rise.

    Wang et al. 2025 (arXiv:2503.09117). With the gradients g_u of the unlearning objective and g_r of the retain
    records' loss, both (n,) and of losses that are minimised: ḡ_r ← γ g_r + (1 − γ) ḡ_r from ḡ_r = 0, and
    g ← g_u − (⟨g_u, ḡ_r⟩ / ‖ḡ_r‖²) ḡ_r where ⟨g_u, ḡ_r⟩ < 0, the vector nearest to g_u with ⟨g, ḡ_r⟩ ≥ 0; otherwise
    g ← g_u. `smoothing`: γ, 0 < γ ≤ 1; at 1 each update looks at its own retain records alone. `moving` (n,), bool:
    the numbers that may change, None for all; the others take no part in the products and get no gradient. `rectified`
    counts the projections. Raises ValueError for γ out of range.
    """

    def __init__(self, smoothing: float, moving: Tensor | None = None) -> None:
        if not 0 < smoothing <= 1:
            raise ValueError(f"smoothing must lie in (0, 1], got {smoothing}")
        self._smoothing, self._moving = smoothing, moving
        self._mean: Tensor | None = None
        self.rectified = 0

    @torch.no_grad()
    def rectify(self, unlearning: Tensor, retain: Tensor) -> Tensor:
        """The gradient (n,) to go by, in place of `unlearning` (n,); `retain` (n,) moves the mean first."""
        if self._moving is not None:
            unlearning, retain = (torch.where(self._moving, x, 0.0) for x in (unlearning, retain))
        if self._mean is None:
            self._mean = torch.zeros_like(retain)
        self._mean.lerp_(retain, self._smoothing)
        along = torch.dot(unlearning, self._mean)
        if along >= 0:
            return unlearning
        self.rectified += 1
        return unlearning - self._mean * (along / torch.dot(self._mean, self._mean))
