"""Gradient rectified unlearning (GRU): removes from the unlearning gradient what would harm the retain records."""

from __future__ import annotations

import torch
from torch import Tensor


class Rectifier:
    """Projects gradients of an unlearning loss onto the half-space in which the loss on retain records does not rise.

    Wang et al. 2025 (arXiv:2503.09117). With the gradients g_u of the unlearning objective and g_r of the retain
    records' loss, both (n,) and of losses that are minimised: ḡ_r ← γ g_r + (1 − γ) ḡ_r from ḡ_r = 0, and
    g ← g_u − (⟨g_u, ḡ_r⟩ / ‖ḡ_r‖²) ḡ_r where ⟨g_u, ḡ_r⟩ < 0, the vector nearest to g_u with ⟨g, ḡ_r⟩ ≥ 0; otherwise
    g ← g_u. `rectified` counts the projections.

    Parameters
    ----------
    smoothing : float in (0, 1]
        γ; at 1 each update uses its own retain records alone.
    moving : tensor (n,), bool, optional
        The numbers that may change, None for all; the others take no part in the products and get no gradient.

    Raises
    ------
    ValueError
        For γ out of range.
    """

    def __init__(self, smoothing: float, moving: Tensor | None = None) -> None:
        if not 0 < smoothing <= 1:
            raise ValueError(f"smoothing must lie in (0, 1], got {smoothing}")
        self._smoothing, self._moving = smoothing, moving
        self._mean: Tensor | None = None
        self.rectified = 0

    @torch.no_grad()
    def rectify(self, unlearning: Tensor, retain: Tensor) -> Tensor:
        """Rectify one gradient.

        Parameters
        ----------
        unlearning : tensor (n,)
            g_u.
        retain : tensor (n,)
            g_r, which moves the mean ḡ_r first.

        Returns
        -------
        tensor (n,)
            The gradient to use.
        """
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
