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
    "rho": {"help": "Weight of the lead of recited tokens.", "at_least": 0},
    "alpha": {"help": "Weight of the retain term.", "at_least": 0},
}


def calibrated(
    forget_nll: Tensor,
    forget_target_nll: Tensor,
    forget_target_kl: Tensor,
    forget_recited_lead: Tensor,
    retain_loss: Tensor | None = None,
    *,
    gamma: float = 3.0,
    kappa: float = 2.0,
    rho: float = 2.0,
    alpha: float = 1.0,
) -> Tensor:
    """E_forget [γ (−(1/|y|) log p(y|x) − t)² + κ KL(q‖f) + ρ r] + α E_retain ℓ(y|x): our own.

    Two-sided: what is known too well is pushed away, what is avoided is pulled back. The divergence determines which
    tokens change, where a few could meet the mean, and where the removed probability goes: without it the remaining
    answers are no language.

    Parameters
    ----------
    forget_nll, forget_target_nll : tensor (B,)
        Mean negative log-likelihood of each answer, and its target t (`clients.calibrated_forgetting`), nats per token.
    forget_target_kl : tensor (B,)
        Mean over the answer tokens of the divergence from q, the untouched base model's distribution with the true
        token at its target probability, nats.
    forget_recited_lead : tensor (B,)
        r: of an answer that greedy decoding recites, the mean of max(0, f(true) − max f(other)) over the tokens that q
        would not choose; 0 for other answers.
    retain_loss : tensor (B,), optional
        Mean over answer tokens of ℓ, or of KL(f_ref‖f), nats.
    gamma : float above 0
        γ.
    kappa, rho, alpha : float, at least 0
        κ, ρ, α.

    Returns
    -------
    tensor, scalar
    """
    gap = forget_nll - forget_target_nll.to(forget_nll)
    loss = (gamma * gap**2 + kappa * forget_target_kl + rho * forget_recited_lead).mean()
    return loss if retain_loss is None else loss + alpha * retain_loss.mean()
