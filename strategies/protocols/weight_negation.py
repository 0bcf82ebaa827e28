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
    """Negate some numbers of a model.

    Parameters
    ----------
    arrays : ArrayRecord
        The model, n numbers in all.
    where : array (n,), bool
        Which ones, one array after the other.

    Returns
    -------
    ArrayRecord
        In the shapes and dtypes of `arrays`.

    Raises
    ------
    ValueError
        If `where` has another shape.
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
    """The asking clients only exclude their records (message type `query.bury`); the server negates weights.

    θ_l ← −θ_l (Khalil et al., *NoT: Federated Unlearning via Weight Negation*, 2025, arXiv:2503.05657), here for chosen
    numbers. It needs no client's data or update, and does not depend on which records are to be forgotten: it breaks
    whatever the negated weights take part in, and the FedFT exchanges that follow teach the records that are left
    again. One negation serves all that ask in a round. Another one before these weights have been learned anew would
    restore their sign: in the round after the last one a warning is logged.

    Parameters
    ----------
    where : array (n,), bool
        Which of the model's n numbers are negated.
    history : History, optional
        As `UnlearningProtocol`.

    Raises
    ------
    ValueError
        If `where` names no number.
    """

    message_type = message_keys.BURY
    models_travel = False

    def __init__(self, where: NDArray[np.bool_], history: History | None = None) -> None:
        super().__init__(history)
        if not where.any():
            raise ValueError("nothing is to be negated")
        self._where, self._last = where, -1

    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        """Negate the chosen weights; `train` is not called. See `UnlearningProtocol.serve`."""
        if self._last == server_round - 1:
            text = "NoT: negated again in the round after the last one (%d): the weights are nearly as before that"
            log(WARNING, text, self._last)
        self._last = server_round
        return Served.everyone(negated(arrays, self._where), answers)


def build(context: ProtocolContext, *, layers: int) -> WeightNegationProtocol:
    """Make the protocol from what a run offers.

    Parameters
    ----------
    context : ProtocolContext
    layers : int, at least 1
        How many of the first decoder layers are negated.

    Returns
    -------
    WeightNegationProtocol

    Raises
    ------
    ParameterError
        If the model has fewer layers, or nothing to train in them.
    """
    try:
        return WeightNegationProtocol(context.first_layers(layers), context.history)
    except ValueError as error:
        raise ParameterError(f"layers: {error}") from None
