"""NoT: the server negates weights of the first layers, and the clients that stay train them anew."""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from strategies import message_keys
from strategies.arrays import view
from strategies.errors import ParameterError
from strategies.flower_internals import log
from strategies.protocols.base import Answer, ProtocolContext, Served, Train, UnlearningProtocol
from strategies.protocols.update_history import History

LABEL = "NoT"
LIMITS = {"layers": {"help": "How many of the first decoder layers are negated.", "at_least": 1}}
NOT_WITH = {"requests_in_a_row": "a negation in the round after another gives the weights back nearly as they were"}


def negated(arrays: ArrayRecord, where: NDArray[np.bool_]) -> ArrayRecord:
    """`arrays` with their numbers at `where` (n,), bool, negated; n: all numbers, one array after the other.

    Raises ValueError for another n.
    """
    size = sum(view(array).size for array in arrays.values())
    if where.shape != (size,):
        raise ValueError(f"expected a mask of shape ({size},), got {where.shape}")
    result, start = {}, 0
    for name, array in arrays.items():
        numbers = view(array).copy()
        flat = numbers.reshape(-1)
        part = where[start : start + flat.size]
        np.negative(flat, out=flat, where=part)
        result[name], start = Array(numbers), start + flat.size
    return ArrayRecord(result)


class WeightNegationProtocol(UnlearningProtocol):
    """The asking clients only bury their records (message type `query.bury`); φ becomes φ with the numbers at `where`
    (n,), bool, negated: θ_l ← −θ_l of Khalil et al. 2025 (arXiv:2503.05657).

    No client's data or update is needed for it. The exchange does not tell which records are forgotten: whatever the
    negated weights take part in breaks, and the FedFT exchanges that follow teach the clients' live records again. All
    that ask in one round are served by one negation. A second one before these weights have been learned anew would
    give back the first sign: a warning says so where it comes in the round after.
    """

    message_type = message_keys.BURY
    models_travel = False

    def __init__(self, where: NDArray[np.bool_], history: History | None = None) -> None:
        super().__init__(history)
        if not where.any():
            raise ValueError("nothing is to be negated")
        self._where, self._last = where, -1

    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        """The global model with its chosen weights negated; `train` is not called."""
        if self._last == server_round - 1:
            text = "NoT: negated again in the round after the last one (%d): the weights are nearly as before that"
            log(WARNING, text, self._last)
        self._last = server_round
        return Served(negated(arrays, self._where), {answer.client: answer.metrics for answer in answers}, {})


def build(context: ProtocolContext, *, layers: int) -> WeightNegationProtocol:
    """Of the first `layers` layers. Raises ParameterError where the model has no such layers."""
    try:
        return WeightNegationProtocol(context.first_layers(layers), context.history)
    except ValueError as error:
        raise ParameterError(f"layers: {error}") from None
