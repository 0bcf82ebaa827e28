"""IdkNLL: fine-tuning on "I don't know" in place of what is to be forgotten."""

from __future__ import annotations

from torch import Tensor

LABEL = "IdkNLL"
LIMITS = {
    "gamma": {"help": "Weight of the forget term.", "at_least": 0},
    "alpha": {"help": "Weight of the retain term.", "at_least": 0},
}


def idk_nll(
    alternative_nll: Tensor, retain_loss: Tensor | None = None, *, gamma: float = 1.0, alpha: float = 1.0
) -> Tensor:
    """γ E_forget ℓ(y_idk|x) + α E_retain ℓ(y|x): what Maini et al. 2024 (TOFU) call preference optimisation.

    The true answer is not used.

    Parameters
    ----------
    alternative_nll : tensor (B,)
        Mean negative log-likelihood over the tokens of an "I don't know" answer, nats.
    retain_loss : tensor (B,), optional
        Mean over answer tokens of ℓ, or of KL(f_ref‖f), nats.
    gamma, alpha : float, at least 0
        γ, α.

    Returns
    -------
    tensor, scalar
    """
    loss = gamma * alternative_nll.mean()
    return loss if retain_loss is None else loss + alpha * retain_loss.mean()
