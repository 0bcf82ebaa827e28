"""UNDIAL: self-distillation from adjusted logits."""

from __future__ import annotations

from torch import Tensor

LABEL = "UNDIAL"
LIMITS = {
    "strength": {"help": "By how much the true token's logit is lowered in the distribution to learn.", "at_least": 0},
    "alpha": {"help": "Weight of the retain term; the paper has none.", "at_least": 0},
}


def undial(
    forget_adjusted_kl: Tensor, retain_loss: Tensor | None = None, *, strength: float = 10.0, alpha: float = 0.0
) -> Tensor:
    """E_forget KL(softmax(z_ref − γ onehot(y))‖f) + α E_retain ℓ(y|x): Dong et al. 2025, with a retain term.

    It is the paper's cross-entropy less the entropy of the target, which does not depend on the model: the same
    gradient, and 0 where the target is reached.

    Parameters
    ----------
    forget_adjusted_kl : tensor (B,)
        Mean over the answer tokens of each record, nats; z_ref are the logits of the model as received.
    retain_loss : tensor (B,), optional
        Mean over answer tokens of ℓ, or of KL(f_ref‖f), nats.
    strength : float, at least 0
        γ; used where the divergence is computed.
    alpha : float, at least 0
        α.

    Returns
    -------
    tensor, scalar
    """
    loss = forget_adjusted_kl.mean()
    return loss if retain_loss is None else loss + alpha * retain_loss.mean()
