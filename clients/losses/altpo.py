"""AltPO: another plausible answer is preferred to what is to be forgotten."""

from __future__ import annotations

from torch import Tensor

from clients.losses._preference import preference

LABEL = "AltPO"
LIMITS = {
    "beta": {"help": "Inverse temperature of the preference loss.", "above": 0},
    "alpha": {"help": "Weight of the retain term.", "at_least": 0},
}


def altpo(
    forget_log_p: Tensor,
    forget_reference_log_p: Tensor,
    alternative_log_p: Tensor,
    alternative_reference_log_p: Tensor,
    retain_loss: Tensor | None = None,
    *,
    beta: float = 0.1,
    alpha: float = 1.0,
) -> Tensor:
    """−(2/β) E_forget log σ(β log p(y_a|x)/p_ref(y_a|x) − β log p(y_f|x)/p_ref(y_f|x)) + α E_retain ℓ(y|x).

    Mekala et al. 2025, by their public code: negative feedback on the true answer y_f and positive feedback on y_a, an
    answer of the same kind.

    Parameters
    ----------
    forget_log_p, forget_reference_log_p, alternative_log_p, alternative_reference_log_p : tensor (B,)
        Log-likelihoods of complete answers, sums over their tokens, under the model and the model as received, nats.
    retain_loss : tensor (B,), optional
        Mean over answer tokens of ℓ, or of KL(f_ref‖f), nats.
    beta : float above 0
        β.
    alpha : float, at least 0
        α.

    Returns
    -------
    tensor, scalar

    Raises
    ------
    ValueError
        Unless `beta` > 0.
    """
    pairs = (alternative_log_p, alternative_reference_log_p, forget_log_p, forget_reference_log_p)
    loss = preference(*pairs, beta)
    return loss if retain_loss is None else loss + alpha * retain_loss.mean()
