"""Fine-tuning: the client goes on with its retain records, and the others fade."""

from __future__ import annotations

from torch import Tensor

LABEL = "Fine-tuning"


def fine_tune(retain_nll: Tensor) -> Tensor:
    """E_retain ℓ(y|x): RULER §4.2. Forgets by drift only.

    Parameters
    ----------
    retain_nll : tensor (B,)
        Mean negative log-likelihood over the answer tokens of each retain record, nats.

    Returns
    -------
    tensor, scalar
    """
    return retain_nll.mean()
