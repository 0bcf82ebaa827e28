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
    """Diff_v = (1/N) Σ_k mean_{i ∈ v} |φ_k,i − φ_i| of each layer v, (layers,): FUSED's critical layer identification.

    `layer_of` (n,): the layer of each number, from 0, one array after the other; every layer has one at least.
    """
    sizes, total = np.bincount(layer_of), np.zeros(int(layer_of.max()) + 1)
    before = flattened(sent).astype(np.float64)
    for update in updates:
        total += np.bincount(layer_of, np.abs(flattened(update.arrays) - before)) / sizes
    return total / len(updates)


def adapter_places(
    diff: NDArray[np.float64], layer_of: NDArray[np.integer], *, layers: int, share: float, seed: str
) -> NDArray[np.bool_]:
    """Which numbers the adapters may change, (n,), bool: of each of the `layers` layers of the largest `diff` a random
    `share`, rounded, one at least; of equal layers the first counts.
    """
    chosen = np.argsort(-diff, kind="stable")[:layers]
    rng = np.random.default_rng([*seed.encode()])
    where = np.zeros(layer_of.size, dtype=bool)
    for layer in sorted(chosen.tolist()):
        places = np.flatnonzero(layer_of == layer)
        where[rng.choice(places, max(1, round(share * places.size)), replace=False)] = True
    return where


def flattened(arrays: ArrayRecord) -> NDArray:
    """All numbers, one array after the other."""
    return np.concatenate([view(array).reshape(-1) for array in arrays.values()])


def kept_outside(before: ArrayRecord, after: ArrayRecord, where: NDArray[np.bool_]) -> ArrayRecord:
    """`after` where `where` (n,) is true, `before` elsewhere, bit for bit."""
    result, start = {}, 0
    for name, array in before.items():
        old, new = view(array), view(after[name])
        inside = where[start : start + old.size].reshape(old.shape)
        result[name], start = Array(np.where(inside, new, old).astype(old.dtype, copy=False)), start + old.size
    return ArrayRecord(result)


class FusedProtocol(UnlearningProtocol):
    """The asking clients only bury their records (message type `query.bury`); clients then teach sparse adapters what
    they have left (Zhong et al., *Unlearning through Knowledge Overwriting: Reversible Federated Unlearning via
    Selective Sparse Adapter*, CVPR 2025, arXiv:2502.20709).

    One exchange of training finds the layers that change most (`sensitivity`); of these a random share of the numbers
    are the adapters (`adapter_places`), which the rounds of `beside` train while everything else stays as it is, on the
    clients and, whatever a client sends, on the server. Knowledge of what is left overwrites what those numbers held of
    the forgotten. The sum of the model and its adapters is the new global model; the model without them is that before
    the exchange, so nothing but the old model is needed to take it back. `inner` has its old moments afterwards.

    `layer_of` (n,): the layer of each number of the model, from 0.
    """

    message_type = message_keys.BURY
    models_travel = False

    def __init__(
        self,
        beside: AuxiliaryRounds,
        layer_of: NDArray[np.integer],
        *,
        layers: int,
        share: float,
        history: History | None = None,
    ) -> None:
        super().__init__(history)
        if layers < 1 or not 0 < share <= 1:
            raise ValueError(f"expected layers >= 1 and share in (0, 1], got {layers} and {share}")
        self._beside, self._layer_of, self._layers, self._share = beside, layer_of, layers, share

    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        """The model with its adapters; all are refused where an exchange has nobody left or makes no finite model."""
        began, kept, beside = time.monotonic(), self._beside.inner.state_dict(), self._beside
        able, model, used = beside.able(answers), arrays, 0
        beside.inner.reset_state()
        try:
            stage = f"overwriting/{server_round}"
            updates = beside.train(train, stage, 0, able, arrays, {message_keys.EPOCHS: 1})
            diff = sensitivity(arrays, updates, self._layer_of)
            seed = f"{beside.seed}/{stage}"
            where = adapter_places(diff, self._layer_of, layers=self._layers, share=self._share, seed=seed)
            log(INFO, "%s: %d rounds, %d of %d numbers", LABEL, beside.rounds, where.sum(), where.size)
            settings = {message_keys.MOVING: np.packbits(where).tobytes()}
            for number in range(1, beside.rounds + 1):
                updates = beside.train(train, stage, number, able, model, settings)
                model = kept_outside(model, beside.merged(model, updates), where)
                used += len(updates)
        except AggregationError as error:
            return Served(arrays, {}, {answer.client: f"{LABEL}: {error}" for answer in answers})
        finally:
            beside.inner.load_state_dict(kept)
        work = dict(zip(message_keys.ERASURE, (beside.rounds, used, time.monotonic() - began), strict=True))
        return Served(model, {answer.client: {**answer.metrics, **work} for answer in answers}, {})


def build(context: ProtocolContext, *, rounds: int, layers: int, share: float) -> FusedProtocol:
    """Raises ParameterError where fewer than `layers` layers are trained."""
    layer_of = context.layer_of()
    if layers > (known := int(layer_of.max()) + 1):
        raise ParameterError(f"layers is {layers}, and {known} layers are trained; lower it")
    beside = AuxiliaryRounds.of(context, LABEL, rounds)
    return FusedProtocol(beside, layer_of, layers=layers, share=share, history=context.history)
