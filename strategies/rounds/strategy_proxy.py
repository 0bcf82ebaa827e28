"""A Flower strategy that forwards to another one, as a base class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from strategies.rules.server_rule import ServerRule
from strategies.stateful import Stateful


class ForeignStrategy(ServerRule):
    """Adapter to a Flower strategy that is no `ServerRule`, with that class's default for each missing attribute.

    This is the only place that reads such attributes. They are read once, when it is made.

    Parameters
    ----------
    strategy : Strategy
        Any Flower strategy.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self.arrayrecord_key = getattr(strategy, "arrayrecord_key", self.arrayrecord_key)
        self.configrecord_key = getattr(strategy, "configrecord_key", self.configrecord_key)
        self.weighted_by_key = getattr(strategy, "weighted_by_key", self.weighted_by_key)
        self.needs_steps = getattr(strategy, "needs_steps", self.needs_steps)
        self.min_train_nodes = getattr(strategy, "min_train_nodes", self.min_train_nodes)
        self.min_available_nodes = getattr(strategy, "min_available_nodes", self.min_available_nodes)
        self.fraction_evaluate = getattr(strategy, "fraction_evaluate", self.fraction_evaluate)
        self.can_reset = hasattr(strategy, "reset_state")

    def reset_state(self) -> None:
        """Reset the strategy's accumulators, if it can."""
        if self.can_reset:
            self._strategy.reset_state()  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, NDArray]:
        """The strategy's `state_dict`; empty if it has none."""
        return dict(self._strategy.state_dict()) if hasattr(self._strategy, "state_dict") else {}  # type: ignore[attr-defined]

    def load_state_dict(self, state: Mapping[str, NDArray]) -> None:
        """Restore a `state_dict`; ValueError for a state that the strategy cannot load."""
        if hasattr(self._strategy, "load_state_dict"):
            self._strategy.load_state_dict(state)  # type: ignore[attr-defined]
        elif state:
            raise ValueError(f"{type(self._strategy).__name__} cannot load a state ({sorted(state)})")

    def refresh_copies(self, arrays: ArrayRecord) -> None:
        """Give the current model to every object that keeps a copy: the strategy, and those that it wraps itself.

        Flower's FedAvgM computes with its own copy of the model, `current_arrays`, whatever it is given later.
        """
        for strategy in self._with_wrapped():
            if isinstance(getattr(strategy, "current_arrays", None), ArrayRecord):
                strategy.current_arrays = arrays.copy()  # type: ignore[attr-defined]

    def _with_wrapped(self) -> Iterator[object]:
        """The strategy, and by Flower's attribute `strategy` each one within another."""
        strategy: object = self._strategy
        seen: set[int] = set()
        while strategy is not None and id(strategy) not in seen:
            seen.add(id(strategy))
            yield strategy
            strategy = getattr(strategy, "strategy", None)


class WrappingStrategy(Strategy, Stateful):
    """Forwards every call to `inner`, which may be any Flower strategy."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
        self._adapted = inner if isinstance(inner, ServerRule) else ForeignStrategy(inner)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `inner`."""
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As `inner`."""
        return self.inner.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `inner`."""
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As `inner`."""
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """As `inner`."""
        self.inner.summary()

    def state_dict(self) -> dict[str, NDArray]:
        """The state of `inner`; empty if it has none."""
        return self._adapted.state_dict()

    def load_state_dict(self, state: Mapping[str, NDArray]) -> None:
        """Restore a `state_dict`; ValueError when `inner` cannot load it."""
        self._adapted.load_state_dict(state)

    def refresh_copies(self, arrays: ArrayRecord) -> None:
        """Give the current model to all that keep a copy: `inner`, and the strategies that it wraps itself."""
        self._adapted.refresh_copies(arrays)
