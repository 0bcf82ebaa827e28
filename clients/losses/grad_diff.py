"""Gradient difference."""

from __future__ import annotations

from torch import Tensor


def grad_diff(
    forget_nll: Tensor, retain_nll: Tensor | None = None, *, gamma: float = 1.0, alpha: float = 1.0
) -> Tensor:
    """−γ E_forget ℓ(y_f|x) + α E_retain ℓ(y|x): Oblivionis eq. 37.

    Both (B,): mean negative log-likelihood over the answer tokens of each record, in nats.
    """
    loss = -gamma * forget_nll.mean()
    return loss if retain_nll is None else loss + alpha * retain_nll.mean()
