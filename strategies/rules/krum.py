"""Krum: the model of the client that lies closest to the others.

    φ_t = φ_k of the client k of least score(k) = Σ ‖φ_k − φ_j‖² over the K − f − 2 clients j ≠ k that are nearest to k

Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017, section 4.
"""

from __future__ import annotations

from typing import Any

from strategies.rules.multikrum import MultiKrum

LABEL = "Krum"
LIMITS = {
    "num_malicious_nodes": {"help": "Clients f of a round that may lie; f > 0 takes 2f + 3 answers.", "at_least": 0},
}
LEAST = {"num_malicious_nodes": [{"num_malicious_nodes": 2, "constant": 3}]}
SINGLE_UPDATES = True


class Krum(MultiKrum):
    """Krum: the model of the client with the lowest score, unchanged; Multi-Krum with m = 1.

    Parameters
    ----------
    num_malicious_nodes : int, at least 0
        Clients f of a round that may be malicious; f > 0 needs 2f + 3 replies in a round.
    **sampling
        Settings of `ServerStep`.

    Raises
    ------
    ValueError
        If `num_malicious_nodes` is below 0.
    """

    settings = ("num_malicious_nodes",)

    def __init__(self, num_malicious_nodes: int = 0, **sampling: Any) -> None:
        super().__init__(num_malicious_nodes, 1, **sampling)
