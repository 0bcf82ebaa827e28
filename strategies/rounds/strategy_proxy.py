"""A Flower strategy around another: what its subclasses do not change goes to that one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from strategies import message_keys
from strategies.rules.server_step import ServerStep


class ForeignStrategy:
    """What FedTU uses of a strategy that is none of ours, beyond Flower's interface, with a default for what it lacks.

    This is the only place that looks at what such a strategy has. Attributes are read once, when it is made.

    Parameters
    ----------
    strategy : Strategy
        Any strategy of Flower's kind.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self.arrayrecord_key: str = getattr(strategy, "arrayrecord_key", message_keys.ARRAYS)
        self.configrecord_key: str = getattr(strategy, "configrecord_key", message_keys.CONFIG)
        self.weighted_by_key: str = getattr(strategy, "weighted_by_key", message_keys.NUM_EXAMPLES)
        self.needs_steps: bool = getattr(strategy, "needs_steps", False)
        self.min_train_nodes: int = getattr(strategy, "min_train_nodes", 1)
        self.min_available_nodes: int = getattr(strategy, "min_available_nodes", 1)
        self.fraction_evaluate: float = getattr(strategy, "fraction_evaluate", 1.0)
        self.can_reset = hasattr(strategy, "reset_state")

    def reset_state(self) -> None:
        """Forget what the strategy accumulated; nothing for one that cannot."""
        if self.can_reset:
            self._strategy.reset_state()  # type: ignore[attr-defined]

    def state_dict(self) -> Mapping[str, np.ndarray]:
        """What the strategy accumulated; empty for one that offers nothing."""
        return self._strategy.state_dict() if hasattr(self._strategy, "state_dict") else {}  # type: ignore[attr-defined]

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state_dict` gave. Raises ValueError for a state that the strategy cannot take."""
        if hasattr(self._strategy, "load_state_dict"):
            self._strategy.load_state_dict(state)  # type: ignore[attr-defined]
        elif state:
            raise ValueError(f"{type(self._strategy).__name__} cannot load a state ({sorted(state)})")

    def refresh_copies(self, arrays: ArrayRecord) -> None:
        """Give the current model to whatever keeps an old one: the strategy, and those that it wraps itself.

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


class WrappingStrategy(Strategy):
    """Passes every call on to `inner`, which may be any Flower strategy."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
        self._adapted = inner if isinstance(inner, ServerStep) else ForeignStrategy(inner)

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

    def state_dict(self) -> dict[str, np.ndarray]:
        """That of `inner`; empty for a strategy that offers none."""
        return dict(self._adapted.state_dict())

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state_dict` gave. Raises ValueError when `inner` cannot take it."""
        self._adapted.load_state_dict(state)

    def refresh_copies(self, arrays: ArrayRecord) -> None:
        """Give the current model to whatever keeps an old one: `inner`, and the strategies that it wraps itself."""
        self._adapted.refresh_copies(arrays)
