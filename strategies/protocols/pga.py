"""PGA on the server: the asking clients start from the model of those that do not ask."""

from __future__ import annotations

from collections.abc import Collection

from flwr.app import ArrayRecord

from strategies import message_keys
from strategies.arrays import Mean
from strategies.protocols.base import ByUnlearning, ProtocolContext
from strategies.protocols.update_history import History, mean_of_others

UPDATES = "newest"
REFERENCE = True
NOT_WITH = {
    "shards": "all that ask in a round are sent one model of the clients that do not, and each shard has its own"
}


class PGAProtocol(ByUnlearning):
    """As `ByUnlearning`; the asking clients also receive the mean of the other clients' newest models.

    That mean is the reference model w_ref of PGA (Halimi et al., *Federated Unlearning: How to Erase a Client in FL?*,
    2022), there over all other clients, here over those that took part in the newest round.

    Parameters
    ----------
    history : History
        Stores the newest round.
    mean : Mean, optional
        How models are averaged; None: number by number.
    summed : bool
        As in `ByUnlearning`.
    """

    def __init__(self, history: History, mean: Mean | None = None, *, summed: bool = False) -> None:
        super().__init__(mean, history, summed=summed)
        self._past = history

    def further_records(self, asking: Collection[int]) -> dict[str, ArrayRecord]:
        """The model of the clients that do not ask; see `UnlearningProtocol.further_records` and `mean_of_others`."""
        return {message_keys.REFERENCE: mean_of_others(self._past, asking, self._mean)}


def build(context: ProtocolContext, *, radius: float | None = None) -> PGAProtocol:
    """Make the protocol from what a run offers.

    Parameters
    ----------
    context : ProtocolContext
    radius : float, optional
        Used by the clients, and not here.

    Returns
    -------
    PGAProtocol

    Raises
    ------
    ValueError
        If no updates are stored.
    """
    return PGAProtocol(context.kept, context.mean, summed=context.summed)
