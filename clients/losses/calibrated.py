"""Calibrated forgetting: an answer becomes as likely as a model that never saw it would find it, and no less."""

from __future__ import annotations

from torch import Tensor

LABEL = "Calibrated"
LIMITS = {
    "gamma": {"help": "Weight of the squared distance from the target.", "above": 0},
    "kappa": {
        "help": "Weight of the divergence from the target distributions of the forget records' tokens.",
        "at_least": 0,
    },
    "alpha": {"help": "Weight of the retain term.", "at_least": 0},
}


def calibrated(
    forget_nll: Tensor,
    forget_target_nll: Tensor,
    forget_target_kl: Tensor,
    retain_loss: Tensor | None = None,
    *,
    gamma: float = 3.0,
    kappa: float = 2.0,
    alpha: float = 1.0,
) -> Tensor:
    """E_forget [γ (−(1/|y|) log p(y|x) − t)² + κ KL(q‖f)] + α E_retain ℓ(y|x): our own.

    `forget_nll`, `forget_target_nll` (B,): mean negative log-likelihood of each answer, and its target t
    (`clients.forgetting_target`), nats per token. Two-sided: what is known too well is pushed away, what is avoided is
    pulled back. `forget_target_kl` (B,): mean over the answer tokens of the divergence from q, the untouched base
    model's distribution with the true token as likely as it is to be. It says which tokens give way, where a few could
    meet the mean, and where the probability goes that is taken away: without it the answers that are left are no
    language. `retain_loss` (B,): mean over answer tokens of ℓ, or of KL(f_ref‖f).
    """
    gap = forget_nll - forget_target_nll.to(forget_nll)
    loss = (gamma * gap**2 + kappa * forget_target_kl).mean()
    return loss if retain_loss is None else loss + alpha * retain_loss.mean()
