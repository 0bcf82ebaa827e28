"""Base class of the aggregators: weighted mean in float64, block by block, and optimiser state that can be saved."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from numpy.typing import NDArray

from strategies import message_keys
from strategies.arrays import Mean, blocks, finite, store, view, weighted_sum
from strategies.client_update import ClientUpdate, shares
from strategies.exact_shares import above
from strategies.flower_internals import AggregationError, log, valid_replies
from strategies.rules.server_rule import ServerRule

Floats = NDArray[np.float64]


class ServerStep(FlowerFedAvg, ServerRule):
    """Flower's FedAvg (its sampling, checks and metric averaging) with a server update of its own.

    A subclass overrides `step`, or `combine` where it needs more of the clients' updates than their weighted mean, and
    names its accumulators in `moments` and its settings in `settings`. The update starts from the arrays that were sent
    in this round: nothing else is remembered of the global model, so a model that FedTU put in its place is never
    undone. Moments are kept in the model's dtype (float32 at least).

    Parameters
    ----------
    fraction_train, fraction_evaluate : float in [0, 1]
        Shares of the n available clients that train and evaluate in a round.
    min_train_nodes, min_evaluate_nodes, min_available_nodes : int
        As in Flower. max(⌊n · fraction_train⌋, min_train_nodes, least) clients are sampled for training.
    mean : Mean, optional
        How the clients' arrays are averaged; None: number by number.
    **flower
        Further parameters of Flower's FedAvg.

    Raises
    ------
    ValueError
        For a `mean` where `takes_mean` is False.
    """

    moments: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[tuple[str, ...]] = ()
    can_reset = True
    takes_mean: ClassVar[bool] = True
    """Whether the clients' models are averaged with weights, so that another `mean` can replace that average."""

    def __init__(
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_train_nodes: int = 1,
        min_evaluate_nodes: int = 1,
        min_available_nodes: int = 1,
        mean: Mean | None = None,
        **flower: Any,
    ) -> None:
        if mean is not None and not self.takes_mean:
            raise ValueError(
                f"{type(self).__name__} combines the clients' numbers by a rule of its own: it takes no mean"
            )
        super().__init__(
            fraction_train=above(fraction_train),
            min_train_nodes=max(min_train_nodes, self.least),
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            **flower,
        )
        self.fraction_evaluate = fraction_evaluate
        self._mean = mean
        self._sent: ArrayRecord | None = None
        self._moments: dict[str, dict[str, NDArray]] = {}

    @property
    def least(self) -> int:
        """Least number of updates; with fewer the model stays as it is. Valid before `__init__` runs."""
        return 1

    @property
    def client_settings(self) -> dict[str, float]:
        """Settings that each train message carries to the clients, by the names of `strategies.message_keys`."""
        return {}

    @abstractmethod
    def step(
        self, previous: Floats, mean: Floats, moments: Mapping[str, Floats] | None
    ) -> tuple[Floats, dict[str, Floats]]:
        """Server update of one block of n numbers.

        Parameters
        ----------
        previous : array (n,), float64
            φ_{t-1}.
        mean : array (n,), float64
            Result of `average`, or of the mean chosen instead.
        moments : mapping of arrays (n,), float64, or None
            The accumulators by name; None before the first aggregation.

        Returns
        -------
        model : array (n,)
            φ_t.
        moments : dict of arrays (n,)
            The new accumulators.
        """

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample clients as Flower does, and remember the arrays that are sent to them.

        Raises
        ------
        AggregationError
            If `least` is above 1 and fewer clients are connected: Flower would wait for ever.
        """
        if self.least > 1 and (nodes := len(list(grid.get_node_ids()))) < self.least:
            raise AggregationError(
                f"{type(self).__name__} with {self._values()} needs the updates of {self.least} clients in a round, "
                f"and {nodes} can take part"
            )
        self._sent = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def starts_from(self, arrays: ArrayRecord) -> None:
        """Aggregate next updates of `arrays`, which were sent by other means than `configure_train`."""
        self._sent = arrays

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the replies of a round; see `aggregate`.

        Returns
        -------
        arrays : ArrayRecord or None
            φ_t; None without a valid reply.
        metrics : MetricRecord or None
            The clients' metrics, averaged.

        Raises
        ------
        AggregationError
            As `aggregate`, which leaves the moments as they were, and before `configure_train`.
        """
        valid = valid_replies(self, replies)
        if not valid:
            return None, None
        contents = [message.content for message in valid]
        if self._sent is None:
            raise AggregationError("aggregate_train was called before configure_train")
        arrays = self.aggregate(self._sent, [ClientUpdate.of(c, self.weighted_by_key) for c in contents])
        return arrays, self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def aggregate(self, sent: ArrayRecord, updates: Sequence[ClientUpdate]) -> ArrayRecord:
        """Aggregate the updates of one round.

        Parameters
        ----------
        sent : ArrayRecord
            φ_{t-1}, from which the clients started.
        updates : sequence of ClientUpdate
            With the names of `sent`.

        Returns
        -------
        ArrayRecord
            φ_t; `sent` itself, with a warning, for fewer updates than `least`.

        Raises
        ------
        AggregationError
            If a shape differs, the number of local steps is needed and missing, or the new model is not finite.
        """
        name = type(self).__name__
        if len(updates) < self.least:
            log(WARNING, "%s needs %d updates, got %d: the model stays as it is", name, self.least, len(updates))
            return sent
        without = [u.partition for u in updates if u.steps is None or not u.steps > 0] if self.needs_steps else []
        if without:
            raise AggregationError(
                f"{name} needs the number of local steps (metric {message_keys.TRAIN_STEPS!r}, above 0) of every "
                f"client; it is missing from {len(without)} of {len(updates)} (clients {without})"
            )
        for key, array in sent.items():
            shape = tuple(array.shape)
            if any(view(update.arrays[key]).shape != shape for update in updates):
                raise AggregationError(f"array {key!r}: the replies do not all have shape {shape}")
        before = self._moments
        new = self.combine(sent, updates)
        for key, array in new.items():
            if not finite(view(array)):
                self._moments = before
                raise AggregationError(f"{name}: the new global {key!r} is not finite; it diverged")
        return new

    def average(self, updates: Sequence[NDArray], weights: Sequence[float]) -> Floats:
        """Combine one block of the clients' updates: their weighted mean in float64.

        Override it for another coordinate-wise rule.

        Parameters
        ----------
        updates : sequence of K arrays (n,)
            One flat piece of an update per client, in the dtype in which it came.
        weights : sequence of K floats
            α_k = n_k / Σ n_j, above 0; they sum to 1.

        Returns
        -------
        array (n,), float64
        """
        return weighted_sum(updates, weights)

    def combine(self, sent: ArrayRecord, updates: Sequence[ClientUpdate]) -> ArrayRecord:
        """New global model from all updates of the round: `average` with weights α_k = n_k / Σ n_j, then `step`.

        Override it where an aggregator needs something else of the updates than that mean.

        Parameters
        ----------
        sent : ArrayRecord
            φ_{t-1}, from which the clients started.
        updates : sequence of ClientUpdate
            At least `least`, with the names and shapes of `sent`.

        Returns
        -------
        ArrayRecord
            φ_t, in the shapes and dtypes of `sent`.

        Raises
        ------
        AggregationError
            If loaded accumulators do not fit, or new ones are not finite.
        """
        alphas = shares(updates)
        result: dict[str, Array] = {}
        new_moments: dict[str, dict[str, NDArray]] = {m: {} for m in self.moments}
        for name, array in sent.items():
            previous = view(array)
            rows = [view(update.arrays[name]) for update in updates]
            old = {m: a[name] for m, a in self._moments.items() if name in a} if self._moments else None
            if old is not None and [a.shape for a in old.values()] != [previous.shape] * len(self.moments):
                raise AggregationError(f"array {name!r}: the loaded moments do not have shape {previous.shape}")
            new, accumulators = self._update_one(previous, rows, alphas, old)
            if not all(finite(a) for a in accumulators.values()):
                raise AggregationError(f"{type(self).__name__}: the new global {name!r} is not finite; it diverged")
            result[name] = Array(new)
            for moment, accumulator in accumulators.items():
                new_moments[moment][name] = accumulator
        self._moments = new_moments
        return ArrayRecord(result)

    def _update_one(
        self, previous: NDArray, rows: list[NDArray], alphas: list[float], old: Mapping[str, NDArray] | None
    ) -> tuple[NDArray, dict[str, NDArray]]:
        """The new array φ_t and accumulators of one array, worked out block by block."""
        flat, flat_rows = previous.reshape(-1), [row.reshape(-1) for row in rows]
        flat_old = None if old is None else {m: a.reshape(-1) for m, a in old.items()}
        new = np.empty(previous.size, previous.dtype)
        precision = np.result_type(previous.dtype, np.float32)
        accumulators = {m: np.empty(previous.size, precision) for m in self.moments}
        whole = None if self._mean is None else self._mean(flat_rows, alphas)
        for block in blocks(previous.size):
            mean = self.average([row[block] for row in flat_rows], alphas) if whole is None else whole[block]
            before = None if flat_old is None else {m: a[block].astype(np.float64) for m, a in flat_old.items()}
            values, after = self.step(flat[block].astype(np.float64), mean, before)
            store(new, block, values)
            for moment, accumulator in accumulators.items():
                store(accumulator, block, after[moment])
        return new.reshape(previous.shape), {m: a.reshape(previous.shape) for m, a in accumulators.items()}

    def state_dict(self) -> dict[str, NDArray]:
        """The accumulators as `moment/array name`; empty before the first aggregation."""
        return {f"{m}/{name}": array for m, arrays in self._moments.items() for name, array in arrays.items()}

    def load_state_dict(self, state: Mapping[str, NDArray]) -> None:
        """Restore the accumulators from a `state_dict`.

        Raises
        ------
        ValueError
            For an unknown accumulator, or accumulators of different arrays.
        """
        loaded: dict[str, dict[str, NDArray]] = {m: {} for m in self.moments} if state else {}
        for key, array in state.items():
            moment, _, name = key.partition("/")
            if moment not in self.moments:
                raise ValueError(f"{type(self).__name__} has no accumulator {moment!r} (key {key!r})")
            loaded[moment][name] = np.array(array)
        if len({frozenset(arrays) for arrays in loaded.values()}) > 1:
            raise ValueError(f"{type(self).__name__}: accumulators for different arrays: {sorted(state)}")
        self._moments = loaded

    def reset_state(self) -> None:
        """Drop the accumulators: the next aggregation is as the first."""
        self._moments = {}

    def summary(self) -> None:
        """Log the settings."""
        log(INFO, "\t├──> %s: %s", type(self).__name__, self._values() or "no settings of its own")
        super().summary()

    def _values(self) -> str:
        """The settings and their values in one line."""
        return ", ".join(f"{name} {getattr(self, name):g}" for name in self.settings)
