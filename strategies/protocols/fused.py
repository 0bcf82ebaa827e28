"""FUSED: sparse adapters in the most sensitive layers learn what is left, and overwrite what is to be forgotten."""

from __future__ import annotations

import time
from collections.abc import Sequence
from logging import INFO

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from strategies import message_keys
from strategies.arrays import view
from strategies.client_update import ClientUpdate
from strategies.errors import ParameterError
from strategies.flower_internals import AggregationError, log
from strategies.protocols.auxiliary_rounds import AuxiliaryRounds
from strategies.protocols.base import Answer, ProtocolContext, Served, Train, UnlearningProtocol
from strategies.protocols.update_history import History

LABEL = "FUSED"
OTHERS = True
NOT_WITH = {"ranks": "its adapters are numbers of the common rank, and clients of other ranks have other numbers"}
LIMITS = {
    "rounds": {"help": "Rounds in which the sparse adapters are trained on what is left.", "at_least": 1},
    "layers": {"help": "How many layers, the most sensitive ones, get an adapter.", "at_least": 1},
    "share": {"help": "Share of such a layer's numbers that its adapter may change.", "above": 0, "at_most": 1},
}


def sensitivity(
    sent: ArrayRecord, updates: Sequence[ClientUpdate], layer_of: NDArray[np.integer]
) -> NDArray[np.float64]:
    """How much training changes each layer: FUSED's critical layer identification (Zhong et al., CVPR 2025).

    Diff_v = (1/K) Σ_k mean_{i ∈ v} |φ_k,i − φ_i| for each layer v.

    Parameters
    ----------
    sent : ArrayRecord
        φ, from which the clients started.
    updates : sequence of K ClientUpdate
        At least one, with the names and shapes of φ.
    layer_of : array (n,), int
        The layer of each number of φ, from 0, one array after the other; every layer has at least one.

    Returns
    -------
    array (layers,), float64
        At least 0.
    """
    sizes, total = np.bincount(layer_of), np.zeros(int(layer_of.max()) + 1)
    before = flattened(sent).astype(np.float64)
    for update in updates:
        total += np.bincount(layer_of, np.abs(flattened(update.arrays) - before)) / sizes
    return total / len(updates)


def adapter_places(
    diff: NDArray[np.float64], layer_of: NDArray[np.integer], *, layers: int, share: float, seed: str
) -> NDArray[np.bool_]:
    """Choose the numbers that the sparse adapters may change: a random share of each of the most sensitive layers.

    Parameters
    ----------
    diff : array (all layers,)
        Sensitivity of each layer.
    layer_of : array (n,), int
        The layer of each number, from 0.
    layers : int, at least 1
        How many layers get an adapter; of equally sensitive ones the first.
    share : float in (0, 1]
        Share of a layer's numbers, rounded; at least one number.
    seed : str
        Determines which.

    Returns
    -------
    array (n,), bool
    """
    chosen = np.argsort(-diff, kind="stable")[:layers]
    rng = np.random.default_rng([*seed.encode()])
    where = np.zeros(layer_of.size, dtype=bool)
    for layer in sorted(chosen.tolist()):
        places = np.flatnonzero(layer_of == layer)
        where[rng.choice(places, max(1, round(share * places.size)), replace=False)] = True
    return where


def flattened(arrays: ArrayRecord) -> NDArray:
    """All numbers of a model, one array after the other.

    Parameters
    ----------
    arrays : ArrayRecord
        At least one.

    Returns
    -------
    array (n,)
    """
    return np.concatenate([view(array).reshape(-1) for array in arrays.values()])


def kept_outside(before: ArrayRecord, after: ArrayRecord, where: NDArray[np.bool_]) -> ArrayRecord:
    """Keep a model's numbers outside of the adapters, bit for bit.

    Parameters
    ----------
    before, after : ArrayRecord
        Models of n numbers in all, with the same names and shapes.
    where : array (n,), bool
        Which numbers the adapters may change.

    Returns
    -------
    ArrayRecord
        `after` where `where` is true, else `before`, in its dtypes.
    """
    result, start = {}, 0
    for name, array in before.items():
        old, new = view(array), view(after[name])
        inside = where[start : start + old.size].reshape(old.shape)
        result[name], start = Array(np.where(inside, new, old).astype(old.dtype, copy=False)), start + old.size
    return ArrayRecord(result)


class FusedProtocol(UnlearningProtocol):
    """The asking clients only exclude their records (message type `query.bury`); sparse adapters learn what is left.

    Zhong et al., *Unlearning through Knowledge Overwriting: Reversible Federated Unlearning via Selective Sparse
    Adapter*, CVPR 2025 (arXiv:2502.20709). One round of training shows the layers that change most (`sensitivity`); a
    random share of their numbers are the adapters (`adapter_places`). Further rounds train these on the records that
    are left, which overwrites what they held of the forgotten ones. All other numbers stay as they are: clients do not
    change them, and the server ignores it if one does. The sum of the model and its adapters is the new global model.
    The aggregator has its old moments afterwards.

    Parameters
    ----------
    auxiliary : AuxiliaryRounds
        The rounds in which the adapters are trained.
    layer_of : array (n,), int
        The layer of each of the model's n numbers, from 0.
    layers : int, at least 1
        How many layers get an adapter.
    share : float in (0, 1]
        Share of such a layer's numbers that its adapter may change.
    history : History, optional
        As `UnlearningProtocol`.

    Raises
    ------
    ValueError
        If `layers` or `share` is out of range.
    """

    message_type = message_keys.BURY
    models_travel = False

    def __init__(
        self,
        auxiliary: AuxiliaryRounds,
        layer_of: NDArray[np.integer],
        *,
        layers: int,
        share: float,
        history: History | None = None,
    ) -> None:
        super().__init__(history)
        if layers < 1 or not 0 < share <= 1:
            raise ValueError(f"expected layers >= 1 and share in (0, 1], got {layers} and {share}")
        self._auxiliary, self._layer_of, self._layers, self._share = auxiliary, layer_of, layers, share

    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        """Train the adapters; see `UnlearningProtocol.serve`.

        All are refused if too few clients train in a round, or a model is not finite.
        """
        began, auxiliary = time.monotonic(), self._auxiliary
        old_state = auxiliary.inner.state_dict()
        able, model, used = auxiliary.able(answers), arrays, 0
        auxiliary.inner.reset_state()
        try:
            stage = f"overwriting/{server_round}"
            updates = auxiliary.train(train, stage, 0, able, arrays, {message_keys.EPOCHS: 1})
            diff = sensitivity(arrays, updates, self._layer_of)
            seed = f"{auxiliary.seed}/{stage}"
            where = adapter_places(diff, self._layer_of, layers=self._layers, share=self._share, seed=seed)
            log(INFO, "%s: %d rounds, %d of %d numbers", LABEL, auxiliary.rounds, where.sum(), where.size)
            settings = {message_keys.MOVING: np.packbits(where).tobytes()}
            for number in range(1, auxiliary.rounds + 1):
                updates = auxiliary.train(train, stage, number, able, model, settings)
                model = kept_outside(model, auxiliary.merged(model, updates), where)
                used += len(updates)
        except AggregationError as error:
            return Served.nobody(arrays, answers, f"{LABEL}: {error}")
        finally:
            auxiliary.inner.load_state_dict(old_state)
        work = dict(zip(message_keys.ERASURE, (auxiliary.rounds, used, time.monotonic() - began), strict=True))
        return Served.everyone(model, answers, work)


def build(context: ProtocolContext, *, rounds: int, layers: int, share: float) -> FusedProtocol:
    """Make the protocol from what a run offers.

    Parameters
    ----------
    context : ProtocolContext
    rounds : int, at least 1
        Rounds in which the adapters are trained.
    layers, share
        As in `FusedProtocol`.

    Returns
    -------
    FusedProtocol

    Raises
    ------
    ParameterError
        If fewer layers are trained than get an adapter.
    ValueError
        If a parameter is out of range.
    """
    layer_of = context.layer_of()
    if layers > (trained := int(layer_of.max()) + 1):
        raise ParameterError(f"layers is {layers}, and {trained} layers are trained; lower it")
    auxiliary = AuxiliaryRounds.of(context, LABEL, rounds)
    return FusedProtocol(auxiliary, layer_of, layers=layers, share=share, history=context.history)
