"""FedOSD on the server: an unlearning update orthogonal to the other clients' updates, and no way back afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from strategies import message_keys
from strategies.arrays import Mean, blocks, store, view
from strategies.protocols.base import Answer, ByUnlearning, ProtocolContext, Served, Train
from strategies.protocols.update_history import History

OTHERS = True

_LEAST = 1e-6
"""Share of an update's length that must be left of it; less is rounding error."""
_BEFORE, _SINCE = "before", "since"


def orthogonal_update(arrays: ArrayRecord, unlearned: ArrayRecord, others: Sequence[ArrayRecord]) -> ArrayRecord | None:
    """The global model after an unlearning update that is orthogonal to the other clients' updates.

    φ + ‖u‖ d/‖d‖ with d = u − Aᵀ (A Aᵀ)⁺ A u, the vector nearest to u = φ_u − φ that is orthogonal to the rows
    a_i = φ_i − φ of A: FedOSD's orthogonal steepest descent (Pan et al. 2025, arXiv:2412.20200) with updates in place
    of gradients. All arrays together are one vector; computed in float64.

    Parameters
    ----------
    arrays : ArrayRecord
        φ.
    unlearned : ArrayRecord
        φ_u, with the names and shapes of φ.
    others : sequence of K ArrayRecord
        φ_i, the other clients' models.

    Returns
    -------
    ArrayRecord or None
        In the shapes and dtypes of φ; None if d is shorter than a millionth of u, which is rounding error.
    """
    gram, along, length = np.zeros((len(others), len(others))), np.zeros(len(others)), 0.0
    for _, _, u, a in _differences(arrays, unlearned, others):
        gram += a @ a.T
        along += a @ u
        length += float(u @ u)
    shares = np.linalg.pinv(gram, rcond=1e-12, hermitian=True) @ along
    left = sum(float(d @ d) for d in (u - shares @ a for _, _, u, a in _differences(arrays, unlearned, others)))
    if left <= _LEAST**2 * length:
        return None
    stretch = math.sqrt(length / left)
    result = {name: np.empty(view(array).size, view(array).dtype) for name, array in arrays.items()}
    for name, block, u, a in _differences(arrays, unlearned, others):
        store(result[name], block, view(arrays[name]).reshape(-1)[block] + stretch * (u - shares @ a))
    return ArrayRecord({name: Array(flat.reshape(view(arrays[name]).shape)) for name, flat in result.items()})


def _differences(arrays: ArrayRecord, one: ArrayRecord, others: Sequence[ArrayRecord]):
    """Yield (name, block, one − arrays (b,), others − arrays (k, b)) for each block of each array, in float64."""
    for name, array in arrays.items():
        base, first = (view(x).reshape(-1) for x in (array, one[name]))
        rows = [view(other[name]).reshape(-1) for other in others]
        for block in blocks(base.size):
            start = base[block].astype(np.float64)
            yield name, block, first[block] - start, np.array([row[block] - start for row in rows])


class FedOSDProtocol(ByUnlearning):
    """The asking clients unlearn (message type `train.unlearn`), without conflict with the other clients' training.

    The other clients train from the same model, and the merged unlearning update is made orthogonal to each of their
    updates (`orthogonal_update`). In the rounds of recovery that follow, training must not lead back: with φ₀ the model
    before the newest unlearning and v = φ − φ₀, FedFT's update g = φ' − φ is projected onto the normal plane of v and
    keeps its length, g ← ‖g‖ ĝ/‖ĝ‖, ĝ = g − (⟨g, v⟩/‖v‖²) v. Pan et al., *Federated Unlearning with Gradient Descent
    and Conflict Mitigation*, 2025 (arXiv:2412.20200), where the clients' gradients are projected.

    Parameters
    ----------
    others : callable () -> sequence of int
        The clients that may train now.
    epochs : int, at least 1
        Local epochs of the other clients' training.
    recovery : int, at least 0, optional
        Rounds of recovery, that of the exchange included; None: all that follow.
    mean, history, summed
        As in `ByUnlearning`.

    Raises
    ------
    ValueError
        If `epochs` or `recovery` is out of range.
    """

    def __init__(
        self,
        others: Callable[[], Sequence[int]],
        *,
        epochs: int = 1,
        recovery: int | None = None,
        mean: Mean | None = None,
        history: History | None = None,
        summed: bool = False,
    ) -> None:
        super().__init__(mean, history, summed=summed)
        if epochs < 1 or (recovery is not None and recovery < 0):
            raise ValueError(f"expected epochs >= 1 and recovery >= 0, got {epochs} and {recovery}")
        self._others, self._epochs, self._recovery = others, epochs, recovery
        self._before: ArrayRecord | None = None
        self._since = 0

    @property
    def privately(self) -> bool:
        """Never: each client's update is needed."""
        return False

    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        """Make the orthogonal update; see `UnlearningProtocol.serve`.

        All are refused if no other client trains, or nothing is left of the update.
        """
        asking = {answer.client for answer in answers}
        clients = [client for client in self._others() if client not in asking]
        settings = {message_keys.EPOCHS: self._epochs, message_keys.STAGE: f"orthogonal/{server_round}"}
        replies = [verdict.reply for verdict in train(clients, arrays, settings)] if clients else []
        models = [next(iter(reply.content.array_records.values())) for reply in replies if reply is not None]
        if not models:
            return Served.nobody(arrays, answers, "FedOSD: no other client trained beside those that unlearn")
        served = super().serve(server_round, arrays, answers, train)
        new = orthogonal_update(arrays, served.arrays, models)
        if new is None:
            return Served.nobody(arrays, answers, "FedOSD: the unlearning lies within what the other clients learn")
        self._before, self._since = arrays, server_round
        return Served(new, served.info, {})

    def after_training(self, server_round: int, before: ArrayRecord, after: ArrayRecord) -> ArrayRecord:
        """Project FedFT's update so that it does not lead back; see `UnlearningProtocol.after_training`."""
        over = self._recovery is not None and server_round >= self._since + self._recovery
        if self._before is None or over:
            return after
        return orthogonal_update(before, after, [self._before]) or after

    def state_dict(self) -> dict[str, NDArray]:
        """The model before the newest unlearning, and the round of that; empty before the first.

        Returns
        -------
        dict
            `before/NAME` for each array of the model, and `since` (1,), int64.
        """
        if self._before is None:
            return {}
        kept = {f"{_BEFORE}/{name}": view(array) for name, array in self._before.items()}
        return {**kept, _SINCE: np.array([self._since], dtype=np.int64)}

    def load_state_dict(self, state: Mapping[str, NDArray]) -> None:
        """Restore a `state_dict`; an empty one means that nothing was unlearned yet."""
        arrays = {name.removeprefix(f"{_BEFORE}/"): array for name, array in state.items() if name != _SINCE}
        self._before = (
            ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()}) if state else None
        )
        self._since = int(state[_SINCE][0]) if state else 0


def build(context: ProtocolContext, *, epochs: int, recovery: int | None) -> FedOSDProtocol:
    """Make the protocol from what a run offers.

    Parameters
    ----------
    context : ProtocolContext
    epochs, recovery
        As in `FedOSDProtocol`.

    Returns
    -------
    FedOSDProtocol

    Raises
    ------
    ValueError
        If `epochs` or `recovery` is out of range.
    """
    return FedOSDProtocol(
        context.able,
        epochs=epochs,
        recovery=recovery,
        mean=context.mean,
        history=context.history,
        summed=context.summed,
    )
