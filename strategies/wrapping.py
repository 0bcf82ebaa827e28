"""A Flower strategy around another: what its subclasses do not change goes to that one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy


class WrappingStrategy(Strategy):
    """Passes every call on to `inner`, which may be any Flower strategy."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner

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
        return dict(self.inner.state_dict()) if hasattr(self.inner, "state_dict") else {}  # type: ignore[attr-defined]

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state_dict` gave. Raises ValueError when `inner` cannot take it."""
        if hasattr(self.inner, "load_state_dict"):
            self.inner.load_state_dict(state)  # type: ignore[attr-defined]
        elif state:
            raise ValueError(f"{type(self.inner).__name__} cannot load a state ({sorted(state)})")

    def refresh_copies(self, arrays: ArrayRecord) -> None:
        """Give the current model to whatever keeps an old one: `inner`, and the strategies that it wraps itself.

        Flower's FedAvgM computes with its own copy of the model, `current_arrays`, whatever it is given later.
        """
        strategy: object = self.inner
        seen: set[int] = set()
        while strategy is not None and id(strategy) not in seen:
            seen.add(id(strategy))
            if isinstance(getattr(strategy, "current_arrays", None), ArrayRecord):
                strategy.current_arrays = arrays.copy()  # type: ignore[attr-defined]
            strategy = getattr(strategy, "strategy", None)
