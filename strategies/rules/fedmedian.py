"""FedMedian: the median of the clients' numbers, place by place.

    φ_t[i] = median of φ_k[i] over the clients k

Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018, algorithm 1, option I.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from strategies.rules.fedavg import FedAvg
from strategies.rules.server_step import Floats

LABEL = "FedMedian"
TAKES_MEAN = False
SINGLE_UPDATES = True


def median(updates: Sequence[NDArray]) -> Floats:
    """Coordinate-wise median of client updates (Yin et al., 2018, definition 1).

    Parameters
    ----------
    updates : sequence of K arrays (n,)
        One flat update per client.

    Returns
    -------
    array (n,), float64
        Of an even number of clients the mean of the middle two.
    """
    return np.median(np.stack(updates, dtype=np.float64), axis=0)


class FedMedian(FedAvg):
    """FedMedian: the coordinate-wise median of the clients' models; every client counts the same.

    Robust while fewer than half of the clients of a round are malicious. With one client it is that client's model,
    with two their unweighted mean. Settings as `ServerStep`.
    """

    takes_mean = TAKES_MEAN

    def average(self, updates: Sequence[NDArray], weights: Sequence[float]) -> Floats:
        """Coordinate-wise median of the updates; `weights` are not used. See `median`."""
        return median(updates)
