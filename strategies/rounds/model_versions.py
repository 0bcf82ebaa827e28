"""Versions of the global model in asynchronous rounds, and the barrier against updates from before an unlearning."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Buffer:
    """Settings of buffered asynchronous aggregation (FedBuff, Nguyen et al. 2022, arXiv:2106.06639).

    Attributes
    ----------
    size : int, at least 1
        Updates K that make a server step.
    concurrency : int, at least 1
        Clients M that train at any time.
    staleness_exponent : float, at least 0
        a: an update computed s server steps ago is weighted by (1 + s)^−a; ½ in the paper.

    Raises
    ------
    ValueError
        If a value is out of range.
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
        """Weight (1 + staleness)^−a of an update, 1 for 0."""
        return (1.0 + staleness) ** -self.staleness_exponent


@dataclass(slots=True)
class Versions:
    """Counts the versions of the global model.

    Attributes
    ----------
    now : int
        The current version; 0 is the one that a stage starts from, and every change adds one.
    barrier : int
        The version that the newest unlearning made. Every earlier model may contain what was forgotten, and so may
        every update computed from one, whichever client computed it and on whatever data.
    """

    now: int = 0
    barrier: int = 0

    def stepped(self) -> None:
        """Count a server step."""
        self.now += 1

    def unlearned(self) -> None:
        """Count an unlearning, and raise the barrier to it."""
        self.now += 1
        self.barrier = self.now

    def admits(self, version: int) -> bool:
        """Whether an update computed from this version may still be merged."""
        return version >= self.barrier

    def staleness(self, version: int) -> int:
        """Server steps from an admitted version to the current one."""
        return self.now - version
