"""CE-U: cross-entropy unlearning, towards the model's own distribution without the true token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LABEL = "CE-U"
LIMITS = {
    "gamma": {"help": "Weight of the forget term.", "at_least": 0},
    "alpha": {"help": "Weight of the retain term; the paper has none.", "at_least": 0},
}


def ce_u(
    forget_token_log_p: Sequence[Tensor],
    retain_loss: Tensor | None = None,
    *,
    gamma: float = 1.0,
    alpha: float = 0.0,
) -> Tensor:
    """γ E_forget (1/|y|) Σ_i KL(q_i‖p_i) + α E_retain ℓ(y|x): Yang 2025, CE-U, with a retain term.

    q_i is p_i with the true token's logit at −∞, held fixed: q = p / (1 − p_y) elsewhere. So KL(q‖p) = −log(1 − p_y),
    which also has the same gradient when q is not held fixed, p_y at the true token and −p_y q_j at the others: it is
    the unlikelihood loss, and the likelihoods of the true tokens suffice. It is the paper's cross-entropy less the
    entropy of q, whose gradient is none. The gradient is bounded, and vanishes as a token is forgotten.

    Parameters
    ----------
    forget_token_log_p : sequence of B tensors (L_i,)
        log p_i of each record's answer tokens, nats; 1 − p_i counts as the precision of the numbers where it is less.
    retain_loss : tensor (B,), optional
        Mean over answer tokens of ℓ, or of KL(f_ref‖f), nats.
    gamma, alpha : float, at least 0
        γ, α.

    Returns
    -------
    tensor, scalar
    """
    terms = []
    for log_p in forget_token_log_p:
        other = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).eps)
        terms.append(-other.log().mean())
    loss = gamma * torch.stack(terms).mean()
    return loss if retain_loss is None else loss + alpha * retain_loss.mean()
