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


class PGAProtocol(ByUnlearning):
    """As `ByUnlearning`; the asking clients also receive the mean of the other clients' newest models (PGA's w_ref)."""

    def __init__(self, history: History, mean: Mean | None = None, *, summed: bool = False) -> None:
        super().__init__(mean, history, summed=summed)
        self._past = history

    def beside(self, asking: Collection[int]) -> dict[str, ArrayRecord]:
        """The model of the clients that do not ask."""
        return {message_keys.REFERENCE: mean_of_others(self._past, asking, self._mean)}


def build(context: ProtocolContext, *, radius: float | None = None) -> PGAProtocol:
    """`radius` is for the clients, and nothing to the server."""
    return PGAProtocol(context.kept, context.mean, summed=context.summed)
