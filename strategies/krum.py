"""Krum: the model of the client that lies closest to the others."""

from __future__ import annotations

from typing import Any

from strategies.multikrum import MultiKrum

LABEL = "Krum"
LIMITS = {
    "num_malicious_nodes": {"help": "Clients f of a round that may lie; f > 0 takes 2f + 3 answers.", "at_least": 0},
}
LEAST = {"num_malicious_nodes": [{"num_malicious_nodes": 2, "constant": 3}]}
SINGLE_UPDATES = True


class Krum(MultiKrum):
    """φ_t = φ_k of the client of least score, bit for bit: Multi-Krum with m = 1 (Blanchard et al., NeurIPS 2017).

    f = `num_malicious_nodes` > 0 takes 2f + 3 answers in a round.
    """

    settings = ("num_malicious_nodes",)

    def __init__(self, num_malicious_nodes: int = 0, **sampling: Any) -> None:
        super().__init__(num_malicious_nodes, 1, **sampling)
