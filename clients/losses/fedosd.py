"""FedOSD's unlearning cross-entropy, whose gradient does not explode; the server makes its update orthogonal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LABEL = "FedOSD"
LIMITS = {
    "epochs": {"help": "Epochs that each other client trains for the direction of its gradient.", "at_least": 1},
    "recovery": {
        "help": "For so many rounds, that of the request included, training does not go back; null: until the end.",
        "type": "int",
        "at_least": 0,
    },
}


def fedosd(forget_token_log_p: Sequence[Tensor], *, epochs: int = 1, recovery: int | None = None) -> Tensor:
    """E_forget (1/|y|) Σ_t −log(1 − p_t/2): Pan et al. 2025, FedOSD's unlearning cross-entropy, from 0 to ln 2.

    The gradient of a token is at most 1 in its logit, and vanishes as the token is forgotten.

    Parameters
    ----------
    forget_token_log_p : sequence of B tensors (L_i,)
        log p_t of each record's answer tokens, nats.
    epochs, recovery : int
        For the server (`strategies.protocols.fedosd`); no part of the loss.

    Returns
    -------
    tensor, scalar
    """
    return torch.stack([-torch.log1p(-log_p.exp() / 2).mean() for log_p in forget_token_log_p]).mean()
