"""Weighted gradient ascent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LABEL = "WGA"
LIMITS = {
    "beta": {"help": "Power of a token's own probability that is its weight; 0: gradient ascent.", "at_least": 0},
    "gamma": {"help": "Weight of the forget term.", "at_least": 0},
    "alpha": {"help": "Weight of the retain term.", "at_least": 0},
}


def wga(
    forget_token_log_p: Sequence[Tensor],
    retain_loss: Tensor | None = None,
    *,
    beta: float = 1.0,
    gamma: float = 1.0,
    alpha: float = 1.0,
) -> Tensor:
    """γ E_forget (1/|y|) Σ_i p_i^β log p_i + α E_retain ℓ(y|x): Wang et al. 2025, WGA, whose α is our β.

    The weights p_i^β get no gradient: tokens that are forgotten already have little weight.

    Parameters
    ----------
    forget_token_log_p : sequence of B tensors (L_i,)
        log p_i of each record's answer tokens, nats.
    retain_loss : tensor (B,), optional
        Mean over answer tokens of ℓ, or of KL(f_ref‖f), nats.
    beta, gamma, alpha : float, at least 0
        β, γ, α.

    Returns
    -------
    tensor, scalar
    """
    terms = [((beta * log_p.detach()).exp() * log_p).mean() for log_p in forget_token_log_p]
    loss = gamma * torch.stack(terms).mean()
    return loss if retain_loss is None else loss + alpha * retain_loss.mean()
