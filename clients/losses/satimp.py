"""SatImp: gradient ascent weighted by saturation and importance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LABEL = "SatImp"
LIMITS = {
    "beta_1": {"help": "Power of a token's own probability (saturation); 0: no such weight.", "at_least": 0},
    "beta_2": {"help": "Power of one less that probability (importance); 0: WGA.", "at_least": 0},
    "gamma": {"help": "Weight of the forget term.", "at_least": 0},
    "alpha": {"help": "Weight of the retain term.", "at_least": 0},
}


def satimp(
    forget_token_log_p: Sequence[Tensor],
    retain_loss: Tensor | None = None,
    *,
    beta_1: float = 5.0,
    beta_2: float = 1.0,
    gamma: float = 0.1,
    alpha: float = 1.0,
) -> Tensor:
    """γ E_forget (1/|y|) Σ_i p_i^β₁ (1 − p_i)^β₂ log p_i + α E_retain ℓ(y|x): Yang et al. 2025, SatImp.

    The weights get no gradient: tokens that are forgotten already, and those that are certain, have little weight.

    Parameters
    ----------
    forget_token_log_p : sequence of B tensors (L_i,)
        log p_i of each record's answer tokens, nats.
    retain_loss : tensor (B,), optional
        Mean over answer tokens of ℓ, or of KL(f_ref‖f), nats.
    beta_1, beta_2, gamma, alpha : float, at least 0
        β₁, β₂, γ, α.

    Returns
    -------
    tensor, scalar
    """
    terms = []
    for log_p in forget_token_log_p:
        known = log_p.detach()
        weights = (beta_1 * known).exp() * (-torch.expm1(known)) ** beta_2
        terms.append((weights * log_p).mean())
    loss = gamma * torch.stack(terms).mean()
    return loss if retain_loss is None else loss + alpha * retain_loss.mean()
