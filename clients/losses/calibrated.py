"""Calibrated forgetting: an answer becomes as likely as a model that never saw it would find it, and no less."""

from __future__ import annotations

from torch import Tensor

LABEL = "Calibrated"
LIMITS = {
    "gamma": {"help": "Weight of the squared distance from the target.", "above": 0},
    "kappa": {"help": "Weight of the divergence from the base model on the forget records.", "at_least": 0},
    "alpha": {"help": "Weight of the retain term.", "at_least": 0},
}


def calibrated(
    forget_nll: Tensor,
    forget_target_nll: Tensor,
    forget_base_kl: Tensor,
    retain_loss: Tensor | None = None,
    *,
    gamma: float = 3.0,
    kappa: float = 1.0,
    alpha: float = 1.0,
) -> Tensor:
    """E_forget [γ (−(1/|y|) log p(y|x) − t)² + κ KL(f_base‖f)] + α E_retain ℓ(y|x): our own.

    `forget_nll`, `forget_target_nll` (B,): mean negative log-likelihood of each answer, and its target t
    (`clients.target`), nats per token. Two-sided: what is known too well is pushed away, what is avoided is pulled
    back. `forget_base_kl` (B,): mean over the answer tokens of the divergence from the untouched base model, which
    says where the probability goes that is taken away: without it the answers that are left are no language.
    `retain_loss` (B,): mean over answer tokens of ℓ, or of KL(f_ref‖f).
    """
    gap = forget_nll - forget_target_nll.to(forget_nll)
    loss = (gamma * gap**2 + kappa * forget_base_kl).mean()
    return loss if retain_loss is None else loss + alpha * retain_loss.mean()
