"""Versions of the global model in asynchronous rounds, and the barrier that no older update passes."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Buffer:
    """Buffered asynchronous aggregation (FedBuff, Nguyen et al. 2022, arXiv:2106.06639).

    `size` K: updates that make a server step. `concurrency` M: clients that train at any time. An update computed from
    a model that s server steps have changed since counts (1 + s)^−`staleness_exponent` of itself; the paper's choice is
    ½. Raises ValueError for values out of range.
    """

    size: int
    concurrency: int
    staleness_exponent: float = 0.5

    def __post_init__(self) -> None:
        if self.size < 1 or self.concurrency < 1:
            raise ValueError(f"expected size >= 1 and concurrency >= 1, got {self.size} and {self.concurrency}")
        if not 0 <= self.staleness_exponent < math.inf:
            raise ValueError(f"staleness_exponent is {self.staleness_exponent}, expected at least 0")

    def weight(self, staleness: int) -> float:
        """What an update of this staleness counts, 1 for 0."""
        return (1.0 + staleness) ** -self.staleness_exponent


@dataclass(slots=True)
class Versions:
    """`now`: the version of the global model; 0 is the one that a stage starts from, and whatever changes it adds one.

    `barrier`: the version that the newest unlearning made. Every earlier model may have known what was forgotten, and
    so may every update computed from one, whichever client computed it and whatever it trained on.
    """

    now: int = 0
    barrier: int = 0

    def stepped(self) -> None:
        """Clients' updates changed the model."""
        self.now += 1

    def unlearned(self) -> None:
        """An unlearning changed the model."""
        self.now += 1
        self.barrier = self.now

    def admits(self, version: int) -> bool:
        """Whether an update computed from this version may still be merged."""
        return version >= self.barrier

    def staleness(self, version: int) -> int:
        """How many server steps lie between this version, which is admitted, and the present one."""
        return self.now - version
