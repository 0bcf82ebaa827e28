"""FedMedian: the median of the clients' numbers, place by place."""

from __future__ import annotations

from typing import Any

from flwr.serverapp.strategy import FedMedian as FlowerFedMedian

from strategies.flower_rules import CoordinateWise, Unchecked

LABEL = "FedMedian"
TAKES_MEAN = False
SINGLE_UPDATES = True


class _Median(Unchecked, FlowerFedMedian):
    """Flower's rule on checked replies."""


class FedMedian(CoordinateWise):
    """φ_t[i] = median of φ_k[i] over the clients (Yin et al., ICML 2018); of an even number the mean of the middle two.

    Holds while fewer than half of the clients of a round send nonsense. With one client it is that client's model, with
    two their plain mean.
    """

    def __init__(self, **sampling: Any) -> None:
        super().__init__(_Median(), **sampling)
