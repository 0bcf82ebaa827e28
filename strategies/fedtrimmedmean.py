"""FedTrimmedMean: the mean of the clients' numbers without the largest and the smallest, place by place."""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedTrimmedAvg

from strategies.client_update import ClientUpdate
from strategies.flower import log
from strategies.flower_rules import CoordinateWise, Unchecked
from strategies.shares import above, floor_of

LABEL = "Trimmed mean"
LIMITS = {"beta": {"help": "Share of the clients that is cut off at either end.", "at_least": 0, "below": 0.5}}
TAKES_MEAN = False
SINGLE_UPDATES = True


class _TrimmedMean(Unchecked, FedTrimmedAvg):
    """Flower's rule on checked replies."""


class FedTrimmedMean(CoordinateWise):
    """φ_t[i] = mean of the φ_k[i] that are left when ⌊β K⌋ are cut off at either end (Yin et al., ICML 2018).

    K is the number of clients that answered, β is `beta` in [0, 0.5). Holds while at most ⌊β K⌋ of them send nonsense.
    With fewer than 1/β clients nothing is cut: it is their plain mean then, and a warning says so.
    """

    settings = ("beta",)

    def __init__(self, beta: float = 0.2, **sampling: Any) -> None:
        if not 0 <= beta < 0.5:
            raise ValueError(f"beta is {beta}, expected at least 0 and below 0.5")
        super().__init__(_TrimmedMean(beta=above(beta)), **sampling)
        self.beta = beta

    def combine(self, sent: ArrayRecord, updates: Sequence[ClientUpdate]) -> ArrayRecord:
        """As `CoordinateWise`."""
        if floor_of(self.beta, len(updates)) == 0 < self.beta:
            text = "FedTrimmedMean: of %d updates beta %g cuts off none: this round is not protected"
            log(WARNING, text, len(updates), self.beta)
        return super().combine(sent, updates)
