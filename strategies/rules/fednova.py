"""FedNova: FedAvg that does not favour the clients with many local steps."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import ArrayRecord

from strategies.arrays import merged
from strategies.client_update import ClientUpdate, shares
from strategies.rules.fedavg import FedAvg

LABEL = "FedNova"
TAKES_MEAN = False
SINGLE_UPDATES = True


class FedNova(FedAvg):
    """φ_t = φ_{t-1} − τ_eff Σ p_k d_k with d_k = (φ_{t-1} − φ_k) / τ_k and τ_eff = Σ p_k τ_k.

    Wang et al., NeurIPS 2020. p_k = n_k / Σ n_j; τ_k is the number of local optimiser steps, for plain SGD the paper's
    ‖a_k‖₁: whatever else the clients run, their updates are divided by the number of steps. It is FedAvg when all τ_k
    are equal.
    """

    needs_steps = True
    takes_mean = TAKES_MEAN

    def combine(self, sent: ArrayRecord, updates: Sequence[ClientUpdate]) -> ArrayRecord:
        """φ_{t-1} + Σ (p_k τ_eff / τ_k) (φ_k − φ_{t-1}), which is the same."""
        p, tau = shares(updates), [update.steps or 0.0 for update in updates]
        tau_eff = sum(p_k * tau_k for p_k, tau_k in zip(p, tau, strict=True))
        weights = [p_k * tau_eff / tau_k for p_k, tau_k in zip(p, tau, strict=True)]
        return merged(sent, [update.arrays for update in updates], weights)
