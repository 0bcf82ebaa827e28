"""Simple negative preference optimisation."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

LABEL = "SimNPO"
PER_RECORD = True
LIMITS = {
    "beta": {"help": "Inverse temperature of the preference loss.", "above": 0},
    "delta": {"help": "Margin of the preference loss, outside the beta factor (eq. 39)."},
    "alpha": {"help": "Weight of the retain term.", "at_least": 0},
}


def simnpo(
    forget_nll: Tensor,
    retain_loss: Tensor | None = None,
    *,
    beta: float = 4.5,
    delta: float = 0.0,
    alpha: float = 1.0,
) -> Tensor:
    """−(2/β) E_forget log σ(−(β/|y_f|) log p(y_f|x; f_unl) − δ) + α E_retain ℓ(y|x): Oblivionis eq. 39.

    δ stands outside the factor β here; an implementation that has it inside agrees only at δ = 0.

    Parameters
    ----------
    forget_nll : tensor (B,)
        −log p / |y|, nats per answer token.
    retain_loss : tensor (B,), optional
        The same of the retain records, or their KL(f_ref‖f).
    beta : float above 0
        β.
    delta : float
        δ.
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
    loss = -(2.0 / beta) * logsigmoid(beta * forget_nll - delta).mean()
    return loss if retain_loss is None else loss + alpha * retain_loss.mean()
