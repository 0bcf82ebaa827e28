"""Negative preference optimisation."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

LABEL = "NPO"
PER_RECORD = True
LIMITS = {
    "beta": {"help": "Inverse temperature of the preference loss.", "above": 0},
    "alpha": {"help": "Weight of the retain term.", "at_least": 0},
}


def npo(
    forget_log_p: Tensor,
    forget_reference_log_p: Tensor,
    retain_loss: Tensor | None = None,
    *,
    beta: float = 0.1,
    alpha: float = 1.0,
) -> Tensor:
    """−(2/β) E_forget log σ(−β log(p(y_f|x; f_unl) / p(y_f|x; f_target))) + α E_retain ℓ(y|x): Oblivionis eq. 38.

    Parameters
    ----------
    forget_log_p, forget_reference_log_p : tensor (B,)
        Log-likelihood of the complete answer (sum over its tokens, nats) under the model and the model as received.
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
    if beta <= 0:
        raise ValueError(f"beta must be positive, got {beta}")
    loss = -(2.0 / beta) * logsigmoid(-beta * (forget_log_p - forget_reference_log_p)).mean()
    return loss if retain_loss is None else loss + alpha * retain_loss.mean()
