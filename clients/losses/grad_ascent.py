"""Gradient ascent."""

from __future__ import annotations

from torch import Tensor

LABEL = "GradAscent"
PER_RECORD = True
LIMITS = {"gamma": {"help": "Weight of the forget term.", "at_least": 0}}


def grad_ascent(forget_nll: Tensor, *, gamma: float = 1.0) -> Tensor:
    """−γ E_forget ℓ(y_f|x): Oblivionis eq. 36. Unbounded below: it diverges when followed for long.

    Parameters
    ----------
    forget_nll : tensor (B,)
        Mean negative log-likelihood over the answer tokens of each record, nats.
    gamma : float, at least 0
        γ.

    Returns
    -------
    tensor, scalar
    """
    return -gamma * forget_nll.mean()
