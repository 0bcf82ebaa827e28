"""Multi-Krum: the mean of those clients' models that lie closest to the others.

    score(k) = Σ ‖φ_k − φ_j‖² over the K − f − 2 clients j ≠ k that are nearest to k
    φ_t = Σ α_k φ_k over the m clients of least score, with α_k = n_k / Σ n_j of these

Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from strategies.arrays import blocks, view
from strategies.client_update import ClientUpdate
from strategies.rules.fedavg import FedAvg
from strategies.rules.server_step import Floats

LABEL = "Multi-Krum"
LIMITS = {
    "num_malicious_nodes": {"help": "Clients f of a round that may lie; f > 0 takes 2f + 3 answers.", "at_least": 0},
    "num_nodes_to_select": {"help": "Clients m whose models are averaged; f > 0 takes m + f answers.", "at_least": 1},
}
LEAST = {
    "num_malicious_nodes": [
        {"num_malicious_nodes": 2, "constant": 3},
        {"num_malicious_nodes": 1, "num_nodes_to_select": 1},
    ]
}
SINGLE_UPDATES = True


def squared_distances(sent: ArrayRecord, updates: Sequence[ClientUpdate]) -> Floats:
    """Squared Euclidean distances between the clients' models, over all their arrays together.

    ‖x‖² + ‖y‖² − 2 x·y of the differences to the model that was sent, in float64 and block by block: of the models
    themselves, which differ by little, nothing but rounding would be left.

    Parameters
    ----------
    sent : ArrayRecord
        The global model from which the clients started.
    updates : sequence of K ClientUpdate
        Their models, with the names and shapes of `sent`.

    Returns
    -------
    array (K, K), float64
        Symmetric, at least 0; infinite where float64 cannot hold it.
    """
    products = np.zeros((len(updates), len(updates)))
    with np.errstate(over="ignore", invalid="ignore"):
        for name, array in sent.items():
            base = view(array).reshape(-1)
            rows = [view(update.arrays[name]).reshape(-1) for update in updates]
            for block in blocks(base.size):
                moved = np.stack([np.subtract(row[block], base[block], dtype=np.float64) for row in rows])
                products += moved @ moved.T
        squares = np.diagonal(products)
        distances = squares[:, None] + squares[None, :] - 2 * products
    return np.maximum(np.nan_to_num(distances, nan=np.inf, posinf=np.inf), 0.0)


def krum_scores(distances: Floats, num_malicious_nodes: int) -> Floats:
    """Krum score of each client: sum of squared distances to its nearest others (Blanchard et al., 2017, section 4).

    Parameters
    ----------
    distances : array (K, K)
        Squared distances between the clients' models.
    num_malicious_nodes : int, at least 0
        Clients f that may be malicious.

    Returns
    -------
    array (K,), float64
        Over the max(1, K − f − 2) nearest others.
    """
    nearest = max(1, len(distances) - num_malicious_nodes - 2)
    others = [np.sort(np.delete(row, client)) for client, row in enumerate(distances)]
    return np.array([row[:nearest].sum() for row in others])


class MultiKrum(FedAvg):
    """Multi-Krum: the weighted mean of the models of the m clients with the lowest scores.

    With K replies in a round, f > 0 needs K ≥ 2f + 3, as in the paper, and K ≥ m + f; f = 0 protects from nothing and
    takes any K.

    Parameters
    ----------
    num_malicious_nodes : int, at least 0
        Clients f of a round that may be malicious.
    num_nodes_to_select : int, at least 1
        Clients m whose models are averaged.
    **sampling
        Settings of `ServerStep`.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    settings = ("num_malicious_nodes", "num_nodes_to_select")

    def __init__(self, num_malicious_nodes: int = 0, num_nodes_to_select: int = 2, **sampling: Any) -> None:
        if num_malicious_nodes < 0:
            raise ValueError(f"num_malicious_nodes is {num_malicious_nodes}, expected at least 0")
        if num_nodes_to_select < 1:
            raise ValueError(f"num_nodes_to_select is {num_nodes_to_select}, expected at least 1")
        self.num_malicious_nodes, self.num_nodes_to_select = num_malicious_nodes, num_nodes_to_select
        super().__init__(**sampling)

    @property
    def least(self) -> int:
        """max(2f + 3, m + f) for f > 0, else 1."""
        f, m = self.num_malicious_nodes, self.num_nodes_to_select
        return max(2 * f + 3, m + f) if f else 1

    def combine(self, sent: ArrayRecord, updates: Sequence[ClientUpdate]) -> ArrayRecord:
        """As `ServerStep.combine`, of the selected clients alone."""
        return super().combine(sent, [updates[place] for place in self.choose(sent, updates)])

    def choose(self, sent: ArrayRecord, updates: Sequence[ClientUpdate]) -> list[int]:
        """Select the clients with the lowest Krum scores; of equal scores the one that comes first.

        Returns
        -------
        list of int
            Ascending indices into `updates`, at most `num_nodes_to_select`.
        """
        scores = krum_scores(squared_distances(sent, updates), self.num_malicious_nodes)
        return sorted(np.argsort(scores, kind="stable")[: self.num_nodes_to_select].tolist())
