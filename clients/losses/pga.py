"""Projected gradient ascent."""

from __future__ import annotations

from torch import Tensor


def pga(forget_nll: Tensor) -> Tensor:
    """−E_forget ℓ(y_f|x): the client maximises its loss (Halimi et al. 2022, eq. 2).

    The constraint ‖φ − φ_ref‖₂ ≤ δ is not in the loss: see `clients.optimisation.Ball`. `forget_nll` (B,): mean
    negative log-likelihood over the answer tokens of each record, in nats.
    """
    return -forget_nll.mean()
