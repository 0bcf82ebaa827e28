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
    """FedNova: φ_t = φ_{t-1} − τ_eff Σ p_k d_k with d_k = (φ_{t-1} − φ_k) / τ_k and τ_eff = Σ p_k τ_k.

    Wang et al., NeurIPS 2020, with p_k = n_k / Σ n_j. τ_k is the number of local optimiser steps, which for plain SGD
    is the paper's ‖a_k‖₁; it is used whatever optimiser the clients run. With equal τ_k it is FedAvg. Settings as
    `ServerStep`.
    """

    needs_steps = True
    takes_mean = TAKES_MEAN

    def combine(self, sent: ArrayRecord, updates: Sequence[ClientUpdate]) -> ArrayRecord:
        """The new global model φ_{t-1} + Σ (p_k τ_eff / τ_k) (φ_k − φ_{t-1}), an equivalent form.

        Parameters
        ----------
        sent : ArrayRecord
            φ_{t-1}, from which the clients started.
        updates : sequence of ClientUpdate
            At least one, each with `steps` above 0.

        Returns
        -------
        ArrayRecord
            φ_t, in the shapes and dtypes of `sent`.
        """
        p, tau = shares(updates), [update.steps or 0.0 for update in updates]
        tau_eff = sum(p_k * tau_k for p_k, tau_k in zip(p, tau, strict=True))
        weights = [p_k * tau_eff / tau_k for p_k, tau_k in zip(p, tau, strict=True)]
        return merged(sent, [update.arrays for update in updates], weights)
