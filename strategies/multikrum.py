"""Multi-Krum: the mean of those clients' models that lie closest to the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import MultiKrum as FlowerMultiKrum
from numpy.typing import NDArray

from strategies import protocol
from strategies.arrays import blocks, view
from strategies.client_update import ClientUpdate
from strategies.fedavg import FedAvg
from strategies.flower_rules import Unchecked, apply_rule

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


class _Choice(Unchecked, FlowerMultiKrum):
    """Flower's rule on checked replies."""


class MultiKrum(FedAvg):
    """φ_t = Σ α_k φ_k over the m clients of least score, α_k = n_k / Σ n_j of these (Blanchard et al., NeurIPS 2017).

    The score of a client is the sum of the squared distances to the K − f − 2 others that are nearest to its model, one
    at least. K is the number of clients that answered, f is `num_malicious_nodes` of a round, m is
    `num_nodes_to_select`. f > 0 takes K ≥ 2f + 3 and K ≥ m + f, of which the paper asks the first; f = 0 protects from
    nothing and takes any K.
    """

    settings = ("num_malicious_nodes", "num_nodes_to_select")

    def __init__(self, num_malicious_nodes: int = 0, num_nodes_to_select: int = 2, **sampling: Any) -> None:
        if num_malicious_nodes < 0:
            raise ValueError(f"num_malicious_nodes is {num_malicious_nodes}, expected at least 0")
        if num_nodes_to_select < 1:
            raise ValueError(f"num_nodes_to_select is {num_nodes_to_select}, expected at least 1")
        self.num_malicious_nodes, self.num_nodes_to_select = num_malicious_nodes, num_nodes_to_select
        super().__init__(**sampling)
        self._rule = _Choice(
            num_malicious_nodes=num_malicious_nodes,
            num_nodes_to_select=num_nodes_to_select,
            train_metrics_aggr_fn=_places,
        )

    @property
    def least(self) -> int:
        f, m = self.num_malicious_nodes, self.num_nodes_to_select
        return max(2 * f + 3, m + f) if f else 1

    def combine(self, sent: ArrayRecord, updates: Sequence[ClientUpdate]) -> ArrayRecord:
        """The weighted mean of the chosen."""
        return super().combine(sent, [updates[place] for place in self.choose(sent, updates)])

    def choose(self, sent: ArrayRecord, updates: Sequence[ClientUpdate]) -> list[int]:
        """Places of the chosen in `updates`, in order."""
        _, chosen = apply_rule(self._rule, list(_points(sent, updates)), [1.0] * len(updates))
        assert chosen is not None, "`_places` gives a record"
        return sorted(chosen[protocol.PARTITION_ID])  # type: ignore[arg-type]


def _places(chosen: list[RecordDict], weight_key: str) -> MetricRecord:
    """In place of averaged metrics: whom Flower chose."""
    places = [int(next(iter(c.metric_records.values()))[protocol.PARTITION_ID]) for c in chosen]  # type: ignore[arg-type]
    return MetricRecord({protocol.PARTITION_ID: places})


def _points(sent: ArrayRecord, updates: Sequence[ClientUpdate]) -> NDArray[np.float64]:
    """K points in K dimensions, (K, K), as far from each other as the K models are.

    Distances are all that Krum looks at. Flower takes them from ‖x‖² + ‖y‖² − 2xy in the models' own dtype, in which
    nothing but rounding is left of models that differ by little. These points come from the scalar products of the
    φ_k − φ_{t-1}, gathered in float64 and block by block.
    """
    products = np.zeros((len(updates), len(updates)))
    for name, array in sent.items():
        base = view(array).reshape(-1)
        rows = [view(update.arrays[name]).reshape(-1) for update in updates]
        for block in blocks(base.size):
            moved = np.stack([np.subtract(row[block], base[block], dtype=np.float64) for row in rows])
            products += moved @ moved.T
    values, vectors = np.linalg.eigh(products)
    return vectors * np.sqrt(np.maximum(values, 0.0))
