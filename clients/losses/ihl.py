"""IHL, the inverted hinge loss of LoKU: the true token gives way to the next likely one."""

from __future__ import annotations

from torch import Tensor

LABEL = "IHL (LoKU)"
LIMITS = {
    "gamma": {"help": "Weight of the forget term.", "at_least": 0},
    "alpha": {"help": "Weight of the retain term.", "at_least": 0},
}


def ihl(forget_lead: Tensor, retain_loss: Tensor | None = None, *, gamma: float = 1.0, alpha: float = 1.0) -> Tensor:
    """γ E_forget (1/|y|) Σ_t [1 + p(y_t|·) − max_{v≠y_t} p(v|·)] + α E_retain ℓ(y|x): Cha et al. 2025, LoKU's losses.

    The bracket lies in [0, 2], so that the loss, unlike ascent, is bounded.

    Parameters
    ----------
    forget_lead : tensor (B,)
        Mean over the answer tokens of each record of p(y_t|·) − max_{v≠y_t} p(v|·), from −1 to 1.
    retain_loss : tensor (B,), optional
        Mean over answer tokens of ℓ, or of KL(f_ref‖f), nats.
    gamma, alpha : float, at least 0
        γ, α.

    Returns
    -------
    tensor, scalar
    """
    loss = gamma * (1 + forget_lead).mean()
    return loss if retain_loss is None else loss + alpha * retain_loss.mean()
