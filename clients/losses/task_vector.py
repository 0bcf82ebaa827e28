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
    """E_forget ℓ(y_f|x), which the copy minimises (Ilharco et al. 2023, arXiv:2212.04089).

    `forget_nll` (B,): mean negative log-likelihood over the answer tokens of each record, in nats. `alpha` is that of
    `finish`, and no part of the loss.
    """
    return forget_nll.mean()


def finish(received: Tensor, trained: Tensor, *, alpha: float) -> Tensor:
    """θ − α τ with the task vector τ = θ_ft − θ; `received` θ, `trained` θ_ft: all trainable parameters, (n,).

    Of LoRA's factors it is −α times the change of the product B·A to first order only: with changes b and a of the
    factors it is −α (bA + Ba) + α² ba. It is exact where A is frozen, and in full mode.
    """
    return received - alpha * (trained - received)
