"""Projected gradient ascent."""

from __future__ import annotations

from torch import Tensor

LABEL = "PGA"
LIMITS = {
    "radius": {
        "help": "Farthest from the reference model; null: a third of a random model's distance.",
        "above": 0,
    },
}
BALL = "radius"
STOPS_AT_CHANCE = True


def pga(forget_nll: Tensor, *, radius: float | None = None) -> Tensor:
    """−E_forget ℓ(y_f|x): the client maximises its loss (Halimi et al. 2022).

    Parameters
    ----------
    forget_nll : tensor (B,)
        Mean negative log-likelihood over the answer tokens of each record, nats.
    radius : float above 0, optional
        δ of the constraint ‖φ − φ_ref‖₂ ≤ δ; no part of the loss: the caller of `unlearn` makes a
        `clients.optimisation.Ball` of it.

    Returns
    -------
    tensor, scalar
    """
    return -forget_nll.mean()
