"""FedProx: FedAvg on the server, a proximal term on the clients."""

from __future__ import annotations

from typing import Any

from flwr.serverapp.strategy import FedProx as FlowerFedProx

from strategies import message_keys
from strategies.rules.fedavg import FedAvg

LABEL = "FedProx"
LIMITS = {
    "proximal_mu": {"help": "Weight μ of the proximal term in the clients' loss.", "at_least": 0},
}


class FedProx(FedAvg, FlowerFedProx):
    """FedProx: clients add (μ/2)‖φ_k − φ_{t-1}‖² to their loss (Oblivionis eqs. 34–35); the server runs FedAvg.

    Flower's FedProx sends μ as `proximal-mu` in the train config. μ = 0 is FedAvg.

    Parameters
    ----------
    proximal_mu : float, at least 0
        Weight μ of the proximal term.
    **sampling
        Settings of `ServerStep`.

    Raises
    ------
    ValueError
        If `proximal_mu` is below 0.
    """

    settings = ("proximal_mu",)

    def __init__(self, proximal_mu: float = 0.01, **sampling: Any) -> None:
        super().__init__(proximal_mu=_checked(proximal_mu), **sampling)

    @property
    def client_settings(self) -> dict[str, float]:
        """μ under the name by which Flower's own `configure_train` sends it."""
        return {message_keys.PROXIMAL_MU: self.proximal_mu}


def _checked(mu: float) -> float:
    """μ itself; raises ValueError if it is below 0."""
    if not mu >= 0:
        raise ValueError(f"proximal_mu is {mu}, expected at least 0")
    return mu
