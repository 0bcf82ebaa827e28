"""NegGrad: ascent on the forget records against descent on the retain records."""

from __future__ import annotations

from torch import Tensor

LABEL = "NegGrad"
LIMITS = {
    "alpha": {"help": "Weight of the retain term; the forget term has 1 - alpha.", "at_least": 0, "at_most": 1},
}


def neg_grad(forget_nll: Tensor, retain_nll: Tensor, *, alpha: float = 0.5) -> Tensor:
    """α E_retain ℓ(y|x) − (1 − α) E_forget ℓ(y_f|x): NegGrad+ of Kurmanji et al. 2023, NegGrad of RULER §4.2.

    Parameters
    ----------
    forget_nll, retain_nll : tensor (B,)
        Mean negative log-likelihood over the answer tokens of each record, nats.
    alpha : float in [0, 1]
        α.

    Returns
    -------
    tensor, scalar

    Raises
    ------
    ValueError
        Unless `alpha` lies in [0, 1].
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in [0, 1], got {alpha}")
    return alpha * retain_nll.mean() - (1 - alpha) * forget_nll.mean()
