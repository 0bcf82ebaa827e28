"""Gradient difference."""

from __future__ import annotations

from torch import Tensor

LABEL = "GradDiff"
PER_RECORD = True
LIMITS = {
    "gamma": {"help": "Weight of the forget term.", "at_least": 0},
    "alpha": {"help": "Weight of the retain term.", "at_least": 0},
}


def grad_diff(
    forget_nll: Tensor, retain_loss: Tensor | None = None, *, gamma: float = 1.0, alpha: float = 1.0
) -> Tensor:
    """−γ E_forget ℓ(y_f|x) + α E_retain ℓ(y|x): Oblivionis eq. 37.

    Parameters
    ----------
    forget_nll : tensor (B,)
        Mean negative log-likelihood over the answer tokens of each record, nats.
    retain_loss : tensor (B,), optional
        The same of the retain records, or their KL(f_ref‖f).
    gamma, alpha : float, at least 0
        γ, α.

    Returns
    -------
    tensor, scalar
    """
    loss = -gamma * forget_nll.mean()
    return loss if retain_loss is None else loss + alpha * retain_loss.mean()
