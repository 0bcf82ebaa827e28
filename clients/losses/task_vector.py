"""Task-vector negation: what the forget records teach a copy of the model is taken away from it."""

from __future__ import annotations

from torch import Tensor

LABEL = "task vector"
SCALED_BY = "alpha"
LIMITS = {
    "alpha": {
        "help": "α: how many times the way that the copy went is gone in the other direction.",
        "above": 0,
        "at_most": 100,
    }
}


def task_vector(forget_nll: Tensor, *, alpha: float = 3.0) -> Tensor:
    """E_forget ℓ(y_f|x), which a copy of the model minimises (Ilharco et al. 2023, arXiv:2212.04089).

    Parameters
    ----------
    forget_nll : tensor (B,)
        Mean negative log-likelihood over the answer tokens of each record, nats.
    alpha : float above 0
        Of `finish`; no part of the loss.

    Returns
    -------
    tensor, scalar
    """
    return forget_nll.mean()


def finish(received: Tensor, trained: Tensor, *, alpha: float) -> Tensor:
    """Negate the task vector: θ − α τ with τ = θ_ft − θ.

    Of LoRA's factors it is −α times the change of the product B·A to first order only: with changes b and a of the
    factors it is −α (bA + Ba) + α² ba. It is exact where A is frozen, and in full mode.

    Parameters
    ----------
    received, trained : tensor (n,)
        θ and θ_ft: all trainable parameters.
    alpha : float
        α.

    Returns
    -------
    tensor (n,)
    """
    return received - alpha * (trained - received)
