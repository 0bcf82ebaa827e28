"""FedTrimmedMean: the mean of the clients' numbers without the largest and the smallest, place by place.

    φ_t[i] = 1 / (K − 2c) · Σ φ_(k)[i] for k = c + 1, …, K − c, with c = ⌊β K⌋

where φ_(1)[i] ≤ … ≤ φ_(K)[i] are the clients' numbers in order.
Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018, algorithm 1, option II.
"""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from strategies.client_update import ClientUpdate
from strategies.exact_shares import floor_of
from strategies.flower_internals import log
from strategies.rules.fedavg import FedAvg
from strategies.rules.server_step import Floats

LABEL = "Trimmed mean"
LIMITS = {"beta": {"help": "Share of the clients that is cut off at either end.", "at_least": 0, "below": 0.5}}
TAKES_MEAN = False
SINGLE_UPDATES = True


def trimmed_mean(updates: Sequence[NDArray], beta: float) -> Floats:
    """Coordinate-wise trimmed mean of client updates (Yin et al., 2018, definition 2).

    Parameters
    ----------
    updates : sequence of K arrays (n,)
        One flat update per client.
    beta : float in [0, 0.5)
        Share of clients cut at either end; ⌊beta · K⌋ of them.

    Returns
    -------
    array (n,), float64

    Raises
    ------
    ValueError
        If nothing is left after the cut.
    """
    cut = floor_of(beta, len(updates))
    end = len(updates) - cut
    if not 0 <= cut < end:
        raise ValueError(f"beta {beta} of {len(updates)} updates leaves none, expected beta in [0, 0.5)")
    ordered = np.partition(np.stack(updates, dtype=np.float64), (cut, end - 1), axis=0)
    return ordered[cut:end].mean(axis=0)


class FedTrimmedMean(FedAvg):
    """FedTrimmedMean: the coordinate-wise trimmed mean of the clients' models; every client counts the same.

    Of K replies ⌊β K⌋ numbers are cut at either end; it is robust while at most so many clients are malicious. With
    fewer than 1/β replies nothing is cut: the result is the unweighted mean, and a warning is logged.

    Parameters
    ----------
    beta : float in [0, 0.5)
        Share β of clients cut at either end.
    **sampling
        Settings of `ServerStep`.

    Raises
    ------
    ValueError
        If `beta` is out of range.
    """

    settings = ("beta",)
    takes_mean = TAKES_MEAN

    def __init__(self, beta: float = 0.2, **sampling: Any) -> None:
        if not 0 <= beta < 0.5:
            raise ValueError(f"beta is {beta}, expected at least 0 and below 0.5")
        super().__init__(**sampling)
        self.beta = beta

    def combine(self, sent: ArrayRecord, updates: Sequence[ClientUpdate]) -> ArrayRecord:
        """As `ServerStep.combine`; logs a warning where nothing is cut."""
        if floor_of(self.beta, len(updates)) == 0 < self.beta:
            text = "FedTrimmedMean: of %d updates beta %g cuts off none: this round is not protected"
            log(WARNING, text, len(updates), self.beta)
        return super().combine(sent, updates)

    def average(self, updates: Sequence[NDArray], weights: Sequence[float]) -> Floats:
        """Coordinate-wise trimmed mean of the updates; `weights` are not used. See `trimmed_mean`."""
        return trimmed_mean(updates, self.beta)
